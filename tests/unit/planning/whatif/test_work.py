"""Work: compute speeds, second profiles and batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.whatif.machines import setting_of
from syncopate.planning.whatif.work import Work, batch_of
from tests.unit import examples

SETTING = setting_of(Cluster.preset("10gbe", 4))


def _profile(batch: int, factor: float = 1.0, update_s: float = 1e-3) -> Workload:
    work = examples.workload().scaled(factor)
    return replace(work, update_s=update_s, metadata={"batch": str(batch)})


def test_a_batch_is_read_off_the_metadata():
    assert batch_of(_profile(32)) == 32
    assert batch_of(examples.workload()) is None
    assert batch_of(replace(examples.workload(), metadata={"batch": "many"})) is None


def test_the_profile_is_the_work_of_its_own_setting():
    base = _profile(32)
    assert Work(base).at(replace(SETTING, batch=32)) is base
    assert Work(examples.workload()).at(SETTING) == examples.workload()


def test_devices_twice_as_fast_take_half_of_every_time():
    found = Work(_profile(32)).at(replace(SETTING, gpu_speed=2.0, batch=32))
    assert found.compute_s == pytest.approx(_profile(32).compute_s / 2)
    assert found.tensors[1].backward_s == pytest.approx(5e-3)


def test_of_one_profile_a_batch_is_in_proportion_and_the_update_is_not():
    found = Work(_profile(32)).at(replace(SETTING, batch=64))
    assert found.forward_s == pytest.approx(18e-3)
    assert found.backward_s == pytest.approx(34e-3)
    assert [one.backward_s for one in found.tensors] == pytest.approx([4e-3, 20e-3, 10e-3])
    assert found.update_s == 1e-3


def test_two_profiles_give_the_line():
    # Twice the batch takes half as long again: 9 ms at 32, 13.5 at 64, so 22.5 at 128.
    work = Work(_profile(32), other_batch=_profile(64, 1.5))
    found = work.at(replace(SETTING, batch=128))
    assert found.forward_s == pytest.approx(22.5e-3)
    assert found.backward_s == pytest.approx(2.5 * 17e-3)
    assert [one.backward_s for one in found.tensors] == pytest.approx([5e-3, 25e-3, 12.5e-3])
    assert work.at(replace(SETTING, batch=64)).compute_s == pytest.approx(39e-3 + 1e-3)
    assert work.at(replace(SETTING, batch=16)).forward_s == pytest.approx(6.75e-3)


def test_another_device_is_another_profile():
    work = Work(_profile(32), {"h100": _profile(32, 0.25)})
    found = work.at(replace(SETTING, profile="h100", batch=64))
    assert found.forward_s == pytest.approx(0.25 * 18e-3)
    with pytest.raises(UnknownNameError, match="unknown profile 'b200'; known: h100"):
        work.at(replace(SETTING, profile="b200"))


def test_profiles_of_another_model_or_of_the_same_batch_are_refused():
    other = replace(examples.workload(), tensors=examples.workload().tensors[:2])
    with pytest.raises(InvalidValueError, match="of the same gradients as three layers"):
        Work(_profile(32), {"h100": other})
    with pytest.raises(InvalidValueError, match="two different ones"):
        Work(_profile(32), other_batch=_profile(32))


def test_a_batch_of_an_unknown_one_is_refused():
    with pytest.raises(InvalidValueError, match="does not say which batch it had"):
        Work(examples.workload()).at(replace(SETTING, batch=64))
    for wrong in ({"batch": 0}, {"gpu_speed": 0.0}):
        with pytest.raises(InvalidValueError):
            Work(_profile(32)).at(replace(SETTING, **wrong))

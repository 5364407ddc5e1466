"""What an ended calibration keeps, and what the next one does with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CurvePoint
from syncopate.calibration import partial as module
from syncopate.calibration.partial import Partial, Taken, begun, taken_into

ASKED = {"budget_s": "10"}


def _point(nbytes: int) -> CurvePoint:
    return CurvePoint(nbytes=nbytes, samples_s=(1e-3, 2e-3), options={"blocks": 2})


def _kept(hosts: tuple[str, ...] = ()) -> Partial:
    points = {"all_reduce": {"ring": (_point(4), _point(16)), "native": (_point(4),)}}
    network = structs.replace(Cluster.preset("10gbe", 2), hosts=hosts)
    return Partial(asked=ASKED, network=network, points=points, spent_s=5.0)


@pytest.fixture
def ranks(monkeypatch) -> SimpleNamespace:
    """Return a communicator of two ranks on hosts a and b, seen from rank 0."""
    monkeypatch.setattr(module, "hosts_of", lambda _: ("a", "b"))
    return SimpleNamespace(broadcast_object=lambda given: given)


def test_what_is_kept_is_read_back(tmp_path) -> None:
    _kept().save(tmp_path / "kept")
    assert Partial.load(tmp_path / "kept") == _kept()


def test_the_next_calibration_has_it_and_the_time_that_it_took(ranks) -> None:
    taken = Taken(_kept(("a", "b")))
    with taken_into(taken):
        assert begun(ranks) is taken
    assert taken.resumed
    assert taken.spent_s >= 5.0
    assert taken.summary() == "links and 2 sizes of all_reduce"
    again = taken.partial(ASKED)
    assert again is not None
    assert (again.network, again.points) == (_kept(("a", "b")).network, _kept().points)


def test_of_other_hosts_nothing_is_taken(ranks) -> None:
    taken = Taken(_kept(("b", "a")))
    with taken_into(taken):
        begun(ranks)
    assert (taken.network, taken.points, taken.resumed) == (None, {}, False)
    assert taken.partial(ASKED) is None
    assert taken.spent_s < 5.0


def test_a_calibration_outside_has_nothing_yet(ranks) -> None:
    assert begun(ranks).network is None

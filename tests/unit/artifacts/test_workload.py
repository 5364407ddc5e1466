"""Workload: sizes, ready times, identity, and what it refuses."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import GradientTensor, Workload, fingerprint
from syncopate.errors import InvalidValueError, UnknownNameError
from tests.unit import strategies


def _tensor(name="w", numel=4, backward_s=1.0, **rest):
    return GradientTensor(name=name, numel=numel, backward_s=backward_s, **rest)


def _workload(*tensors, backward_s=10.0):
    return Workload(model="m", tensors=tensors, forward_s=2.0, backward_s=backward_s, update_s=0.5)


@given(strategies.workloads())
def test_round_trip(workload):
    assert Workload.from_json(workload.to_json()) == workload


@given(strategies.workloads())
def test_ready_times_ascend_from_the_end_of_forward_to_the_end_of_backward(workload):
    ready_s = workload.ready_s
    assert len(ready_s) == len(workload.tensors)
    assert list(ready_s) == sorted(ready_s)
    assert ready_s[0] >= workload.forward_s
    assert ready_s[-1] <= (workload.forward_s + workload.backward_s) * (1 + 1e-6) + 1e-9


@given(strategies.workloads(), st.randoms())
def test_the_fingerprint_depends_on_names_sizes_and_dtypes_alone(workload, random):
    triples = [(tensor.name, tensor.numel, tensor.dtype) for tensor in workload.tensors]
    random.shuffle(triples)
    assert fingerprint(triples) == workload.fingerprint
    name, numel, dtype = triples.pop()
    assert fingerprint([*triples, (name, numel + 1, dtype)]) != workload.fingerprint
    assert fingerprint([*triples, (name + "x", numel, dtype)]) != workload.fingerprint
    assert fingerprint(triples) != workload.fingerprint


def test_sums():
    workload = _workload(_tensor("a", 4), _tensor("b", 3, 2.0, dtype="bfloat16"))
    assert workload.nbytes == 16 + 6
    assert workload.compute_s == 12.5
    assert workload.ready_s == (3.0, 5.0)


@given(strategies.workloads())
def test_weights_are_needed_while_forward_runs_the_first_layer_at_once(workload):
    needed_s = workload.needed_s
    assert len(needed_s) == len(workload.tensors)
    assert all(0 <= at_s <= workload.forward_s for at_s in needed_s)
    first = (workload.forward_order or (len(needed_s) - 1,))[0]
    assert needed_s[first] == 0


def test_a_forward_order_has_every_tensor_once():
    tensors = (_tensor("a"), _tensor("b"), _tensor("c"))
    workload = msgspec.structs.replace(_workload(*tensors), forward_order=(1, 0, 2))
    assert Workload.from_json(workload.to_json()).forward_order == (1, 0, 2)
    assert workload.scaled(2).forward_order == (1, 0, 2)
    for wrong in ((0, 1), (0, 1, 1), (0, 1, 3)):
        with pytest.raises(InvalidValueError, match=r"forward_order is .*permutation of 0\.\.2"):
            msgspec.structs.replace(workload, forward_order=wrong)


def test_names_that_stand_twice_are_named_once_each():
    with pytest.raises(InvalidValueError, match=r"name of tensors is \['a', 'b'\]"):
        _workload(*map(_tensor, "babca"))


def test_scaling_multiplies_every_time_and_nothing_else():
    workload = _workload(
        _tensor("a", 4, forward_s=0.5), _tensor("b", 3, 2.0, dtype="bfloat16", forward_s=0.25)
    )
    scaled = workload.scaled(3)
    assert (scaled.forward_s, scaled.backward_s, scaled.update_s) == (6.0, 30.0, 1.5)
    assert scaled.compute_s == 3 * workload.compute_s
    assert scaled.ready_s == (9.0, 15.0)
    assert [tensor.forward_s for tensor in scaled.tensors] == [1.5, 0.75]
    assert scaled.fingerprint == workload.fingerprint
    assert scaled.scaled(1 / 3) == workload


@given(strategies.workloads(), st.floats(1e-3, 1e3))
def test_a_workload_can_be_scaled_by_any_sane_factor(workload, factor):
    scaled = workload.scaled(factor)
    assert scaled.compute_s == pytest.approx(factor * workload.compute_s)
    assert scaled.ready_s == pytest.approx([factor * ready_s for ready_s in workload.ready_s])


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_workload_is_not_scaled_by_nonsense(factor):
    with pytest.raises(InvalidValueError, match="factor of a workload"):
        _workload(_tensor()).scaled(factor)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (_workload, "nothing to communicate"),
        (lambda: _workload(_tensor("a"), _tensor("a"), _tensor("b")), r"tensors is \['a'\]"),
        (lambda: _workload(_tensor(), backward_s=0.5), r"at least the sum over the tensors, 1\.0"),
        (lambda: _workload(_tensor(), backward_s=math.nan), "backward_s is nan"),
        (lambda: _tensor(numel=-1), "numel of w is -1"),
        (lambda: _tensor(numel=2**61), "numel of w is .*; it must be at most 2305843009213693951"),
        (lambda: _tensor(backward_s=-1.0), "backward_s of w is -1.0"),
        (lambda: _tensor(forward_s=math.inf), "forward_s of w is inf"),
        (lambda: _tensor(forward_s=1e308), r"forward_s of w is 1e\+308; .* at most 1e\+15"),
    ],
)
def test_nonsense_is_refused(build, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        build()


def test_an_unknown_dtype_is_refused():
    with pytest.raises(UnknownNameError, match="unknown dtype 'f32'"):
        _tensor(dtype="f32")


def test_what_was_measured_with_the_model_counts_before_what_the_cluster_says() -> None:
    said, measured = Interference(compute_rate=0.5), Interference(compute_rate=0.9)
    cluster = Cluster.flat(2, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    cluster = msgspec.structs.replace(cluster, interference=said)
    workload = _workload(_tensor())
    assert workload.interference_on(cluster) == said
    for own in (measured, Interference()):
        with_own = msgspec.structs.replace(workload, interference=own)
        assert with_own.interference_on(cluster) == own

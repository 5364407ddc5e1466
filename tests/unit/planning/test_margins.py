"""Margins: intervals by hand."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Prediction
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.validated import BY_KIND
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.margins import (
    MEASURED,
    TYPICAL,
    margins,
    predict_surely,
    sure,
    with_interval,
)
from syncopate.planning.planner import make_plan
from syncopate.simulation import busy


def _found(iteration_s: float = 1.0, communication_s: float = 1.0, bound_s: float = 0.5):
    return Prediction(
        iteration_s=iteration_s,
        compute_s=0.4,
        communication_s=communication_s,
        exposed_s=iteration_s - 0.4,
        bound_s=bound_s,
    )


def test_shifts_and_the_method_add_as_squares():
    found = with_interval(_found(), [1.03, 1.0, 1.0], 0.04)
    assert found.high_s == pytest.approx(1.05)
    assert found.low_s == pytest.approx(1 / 1.05)


def test_the_method_errs_no_more_than_all_communication():
    found = with_interval(_found(communication_s=0.01), [1.0], 0.2)
    assert found.high_s == pytest.approx(1.01)


def test_nothing_is_below_the_bound_with_favourable_inputs():
    found = with_interval(_found(bound_s=0.99), [1.1], 0.5)
    assert found.low_s == pytest.approx(0.99 / 1.1)
    assert found.high_s == pytest.approx(1 + math.hypot(0.1, 0.5))


def test_what_takes_no_time_has_no_interval():
    found = with_interval(_found(0.4, 0.0), [0.4], 0.2)
    assert (found.low_s, found.high_s) == (0.4, 0.4)


def test_a_calibrated_cluster_is_surer_than_a_typical_one():
    measured, typical = margins("cuda", True, {}), margins("cuda", False, {})
    assert (measured.bandwidth, measured.latency, measured.compute) == MEASURED
    assert (typical.bandwidth, typical.latency, typical.compute) == TYPICAL
    assert measured.method == BY_KIND["gpu"].p90
    assert margins("cpu", True, {}).method == BY_KIND["lab"].p90


def test_what_is_given_takes_the_place_of_the_usual():
    found = margins("cpu", True, {"latency": 0.7, "method": 0.01})
    assert (found.latency, found.bandwidth) == (0.7, MEASURED[0])
    assert found.words.endswith("the method within 1% (as given)")


def test_wrong_shares_and_names_are_refused():
    with pytest.raises(UnknownNameError, match="unknown uncertain input 'humour'"):
        margins("cpu", True, {"humour": 0.1})
    with pytest.raises(InvalidValueError, match="uncertainty of latency"):
        margins("cpu", True, {"latency": 1.0})


def test_a_prediction_lies_within_its_interval():
    with pytest.raises(InvalidValueError, match="given together"):
        Prediction(iteration_s=1, compute_s=1, communication_s=0, exposed_s=0, bound_s=1, low_s=1)
    with pytest.raises(InvalidValueError, match="holds the iteration"):
        Prediction(
            iteration_s=1, compute_s=1, communication_s=0, exposed_s=0, bound_s=1, low_s=2, high_s=3
        )


def test_a_plan_s_interval_is_that_of_its_inputs_and_the_method():
    """Nothing overlaps on two ranks with one gradient, so each input's share is known by hand."""
    tensors = (GradientTensor(name="w", numel=250_000, backward_s=0.05),)
    workload = Workload(model="m", tensors=tensors, forward_s=0.05, backward_s=0.05)
    cluster = Cluster.flat(2, latency_s=0.0, bandwidth_bytes_per_s=1e7)
    plan = make_plan(workload, cluster, "single", algorithm="ring")
    found = sure(plan, workload, cluster)
    assert replace(found, prediction=plan.prediction) == plan
    # 0.1 s of computation and 0.1 s of messages.
    shares = (0.5 * TYPICAL[0], 0.5 * TYPICAL[2], min(BY_KIND["gpu"].p90, 0.5))
    assert plan.prediction.iteration_s == pytest.approx(0.2)
    assert found.prediction.high_s == pytest.approx(0.2 * (1 + math.hypot(*shares)))


def test_a_plan_on_a_busy_network_has_an_interval_there():
    tensors = (GradientTensor(name="w", numel=250_000, backward_s=0.05),)
    workload = Workload(model="m", tensors=tensors, forward_s=0.05, backward_s=0.05)
    cluster = Cluster.flat(2, latency_s=0.0, bandwidth_bytes_per_s=1e7)
    plan = make_plan(workload, cluster, "single", algorithm="ring")
    assert predict_surely(workload, plan, cluster) == sure(plan, workload, cluster).prediction
    found = predict_surely(workload, plan, cluster, lambda one: (busy(one, {"host": 0.5}), None))
    # Messages take 0.2 s of 0.3 s, and so does what is uncertain of them.
    shares = (2 / 3 * TYPICAL[0], 1 / 3 * TYPICAL[2], min(BY_KIND["gpu"].p90, 2 / 3))
    assert found.iteration_s == pytest.approx(0.3)
    assert found.high_s == pytest.approx(0.3 * (1 + math.hypot(*shares)))

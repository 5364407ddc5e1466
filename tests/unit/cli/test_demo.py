"""The demo's arithmetic: predictions at another pace, and the errors it reports."""

from __future__ import annotations

import math

import msgspec
import pytest

from syncopate.artifacts.artifact import Artifact
from syncopate.cli.demo.pace import at_pace
from syncopate.cli.demo.result import DemoResult, Pace, PolicyResult
from syncopate.cli.demo.story import first_alike
from syncopate.planning import compare
from tests.unit import examples


def _policy(name="optimal", *, predicted_s=0.03, paced_s=0.024, samples_s=(0.2, 0.02, 0.019)):
    return PolicyResult(
        name=name,
        buckets=1,
        algorithms=("ring",),
        predicted_s=predicted_s,
        paced_s=paced_s,
        samples_s=samples_s,
    )


def _demo(*policies, pace=None):
    return DemoResult(
        world_size=4, policies=policies, pace=pace, accuracies=(0.9,), scale=(), wall_s=60.0
    )


def test_errors_are_of_the_prediction_at_the_pace_and_of_the_one_as_planned():
    policy = _policy()
    assert policy.measured_s == 0.02
    assert policy.error == pytest.approx(0.2)
    assert policy.planned_error == pytest.approx(0.5)
    ddp = _policy("ddp", predicted_s=None, paced_s=None)
    assert (ddp.error, ddp.planned_error) == (None, None)


def test_the_medians_are_over_sizes_and_leave_out_what_was_not_predicted():
    demo = _demo(
        _policy(paced_s=0.019, predicted_s=0.03),
        _policy(paced_s=0.024, predicted_s=0.01),
        _policy(paced_s=0.022, predicted_s=0.022),
        _policy("ddp", predicted_s=None, paced_s=None, samples_s=(9.0,)),
    )
    assert demo.median_error == pytest.approx(0.1)
    assert demo.median_planned_error == pytest.approx(0.5)


def test_the_change_of_pace_is_below_zero_where_computation_became_faster():
    pace = Pace(profiled_s=0.05, samples_s=(0.04, 0.9, 0.03))
    assert pace.measured_s == 0.04
    assert pace.change == pytest.approx(-0.2)


def test_a_result_survives_its_file_and_older_files_have_no_pace():
    demo = _demo(_policy(), pace=Pace(profiled_s=0.05, samples_s=(0.04,)))
    assert DemoResult.from_json(demo.to_json()) == demo
    older = msgspec.json.decode(demo.to_json())
    del older["pace"], older["policies"][0]["paced_s"]
    read = DemoResult.from_json(msgspec.json.encode(older))
    assert isinstance(read, Artifact)
    assert read.pace is None
    assert math.isnan(read.median_error)
    assert read.median_planned_error == pytest.approx(0.5)


@pytest.fixture
def plans():
    return {plan.policy: plan for plan in compare(examples.workload(), examples.cluster())}


def test_at_the_pace_of_the_profile_predictions_are_those_of_the_plans(plans):
    workload, cluster = examples.workload(), examples.cluster()
    assert at_pace(plans, workload, cluster, workload.compute_s) == plans


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_at_another_pace_only_computation_and_what_hides_behind_it_change(plans, factor):
    workload, cluster = examples.workload(), examples.cluster()
    paced = at_pace(plans, workload, cluster, factor * workload.compute_s)
    assert list(paced) == list(plans)
    for name, plan in plans.items():
        before, after = plan.prediction, paced[name].prediction
        assert msgspec.structs.replace(paced[name], prediction=before) == plan
        assert after.compute_s == pytest.approx(factor * before.compute_s)
        assert after.communication_s == before.communication_s
    # A single bucket starts when backward has ended: nothing of it hides at any pace.
    before, after = plans["single"].prediction, paced["single"].prediction
    assert after.exposed_s == pytest.approx(before.exposed_s)
    assert after.iteration_s != pytest.approx(factor * before.iteration_s)


def test_plans_that_train_alike_are_run_as_one():
    plan = examples.plan()
    other = msgspec.structs.replace(plan, channels=2, buckets=plan.buckets[:1])
    again = msgspec.structs.replace(plan, policy="wfbp", prediction=None)
    plans = {"optimal": plan, "single": other, "wfbp": again}
    assert first_alike(plans) == {"optimal": "optimal", "single": "single", "wfbp": "optimal"}

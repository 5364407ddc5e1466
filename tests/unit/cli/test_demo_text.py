"""What the demo says: two screens of 100 columns, and the page to open last."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.cli.demo import story, text
from syncopate.cli.demo.result import DemoResult, Pace, PolicyResult, ScalePrediction
from syncopate.errors import SyncopateError
from syncopate.planning import compare, make_plan
from syncopate.simulation import simulate
from tests.unit import examples

FOLDER = Path("syncopate-demo")


@pytest.fixture
def plans():
    return {plan.policy: plan for plan in compare(examples.workload(), examples.cluster())}


def _result(plans):
    own = [
        PolicyResult(
            name=name,
            buckets=len(plan.buckets),
            algorithms=("ring",),
            predicted_s=0.03,
            paced_s=0.018,
            samples_s=(0.02,),
        )
        for name, plan in plans.items()
    ]
    ddp = PolicyResult(name="ddp", buckets=0, algorithms=(), predicted_s=None, samples_s=(0.03,))
    scale = tuple(
        ScalePrediction(
            cluster="c",
            nodes=nodes,
            iteration_s={**dict.fromkeys(plans, 0.11234), "optimal": 0.1},
            compute_s=0.09,
            bound_s=0.09,
        )
        for nodes in (8, 16, 64)
    )
    return DemoResult(
        world_size=4,
        policies=(*own, ddp),
        pace=Pace(profiled_s=0.05, samples_s=(0.04,)),
        accuracies=(0.5, 0.96),
        scale=scale,
        wall_s=60.0,
    )


def test_all_of_it_fits_on_two_screens_and_ends_with_the_page(plans):
    result = _result(plans)
    told = [
        text.calibrated(examples.cluster()),
        text.profiled(examples.workload()),
        text.planned(plans),
        text.compared(result.policies, result.pace),
        text.trained(result.accuracies, 9.0),
        *(text.scaled(each, 25) for each in result.scale),
        text.concluded(result),
        text.what_next(FOLDER, FOLDER / "report.html"),
    ]
    lines = "".join(examples.text(each, 100) for each in told).splitlines()
    whole = "".join(examples.text(each, 400) for each in told).splitlines()
    assert [line for line in whole if len(line.rstrip()) > 100] == []  # nothing is folded
    # Titles of six chapters, with a line before each, two more heads, and two lines at the top.
    assert len(lines) + 6 * 2 + 2 * 2 + 2 <= 2 * 45
    assert lines[-1].startswith(f"open {FOLDER}/report.html")


def test_a_few_sizes_have_their_fastest_algorithm():
    shown = examples.text(text.calibrated(examples.steady_cluster()), 100)
    assert "4 ranks on 2 hosts; a message takes 50.0 us to arrive" in shown
    rows = [line.split() for line in shown.splitlines()[2:]]
    assert rows == [
        ["1.0", "KiB", "recursive_doubling", "100.0", "us"],
        ["1.0", "MiB", "ring", "2.00", "ms"],
    ]
    assert "fastest" not in examples.text(text.calibrated(Cluster.preset("1gbe", 2)))


def test_plans_are_held_against_ddp_and_predictions_against_what_was_measured(plans):
    result = _result(plans)
    (table,) = examples.tables(text.compared(result.policies, result.pace))
    rows = list(zip(*([str(cell) for cell in c.cells] for c in table.columns), strict=True))
    optimal = next(row for row in rows if row[0] == "optimal")
    assert optimal[3:] == ("18.00 ms", "20.00 ms", "-10.0%", "1.50x")
    assert rows[-1][2:] == ("-", "-", "30.00 ms", "-", "1.00x")
    assert "1.50x DDP's speed" in examples.text(text.concluded(result))


def test_without_a_page_it_says_how_to_have_one(plans):
    last = examples.text(text.what_next(FOLDER, None)).splitlines()[-1]
    assert last.startswith("a page of this run: syncopate report ")
    assert f"syncopate report {FOLDER}/timeline.json" in last


def test_a_missing_data_set_is_found_before_anything_is_measured(run, monkeypatch):
    def missing():
        raise SyncopateError("the digits need scikit-learn")

    monkeypatch.setattr("syncopate.cli.demo.command.find_spec", lambda name: None)
    monkeypatch.setattr("syncopate.zoo.digits", missing)
    assert run("demo --quick") == (1, "", "error: the digits need scikit-learn\n")


def _timed(name, *samples_s):
    return PolicyResult(name=name, buckets=2, algorithms=(), predicted_s=None, samples_s=samples_s)


def test_a_gain_within_noise_is_not_called_one(plans):
    result = structs.replace(
        _result(plans),
        policies=(_timed("optimal", 1.0, 1.3, 0.8, 1.1), _timed("ddp", 1.1, 1.0, 1.2, 1.0)),
    )
    shown = examples.text(text.concluded(result), 200)
    assert "no gain beyond noise (1.00x DDP's speed in the median turn, 0.87x to 1.20x" in shown
    # The medians alone, 1.05 over 0.9, would say 1.17x.
    skewed = _timed("optimal", 0.8, 0.9, 1.1), _timed("ddp", 0.8, 1.05, 1.1)
    gain = skewed[0].gain_over(skewed[1])
    assert gain.low <= gain.ratio <= gain.high
    assert gain.ratio == 1.0
    real = (_timed("optimal", 1.0, 1.01, 1.0), _timed("decoupled", 0.9, 0.9, 0.91))
    ddp = _timed("ddp", 1.2, 1.21, 1.2)
    shown = examples.text(text.concluded(structs.replace(result, policies=(*real, ddp))), 200)
    assert "the decoupled plan takes 900.00 ms" in shown
    assert "1.33x DDP's speed" in shown
    assert "noise" not in shown


def test_a_machine_that_is_slow_for_some_turns_hides_no_gain():
    pace = (1.0, 1.1, 1.0, 2.0, 2.1, 1.9, 1.0, 1.0)
    ours = _timed("optimal", *pace)
    assert ours.gain_over(_timed("ddp", *(1.2 * each for each in pace))).is_real
    assert _timed("ddp", *(1.2 * each for each in pace)).gain_over(ours).is_real
    assert not ours.gain_over(_timed("ddp", *reversed(pace))).is_real


def test_a_run_at_another_pace_than_its_profile_has_a_page(tmp_path):
    """Profiled on a machine that did other work at the time."""
    workload, cluster = examples.workload(), examples.steady_cluster()
    plan = make_plan(workload, cluster, "optimal")
    timeline = simulate(workload, plan, cluster, iterations=6)
    page = story._page(tmp_path, timeline, (workload.scaled(10.0), cluster, plan))
    assert page == tmp_path / "report.html"
    assert "<!doctype html>" in page.read_text()[:20].lower()

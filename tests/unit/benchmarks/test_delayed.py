"""Figs. 6 and 7 of SSD-SGD in a lab: the scale, the steps that count, the commands, the tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.contest import figures, paper, served
from benchmarks.contest.figures import Cell, Results
from benchmarks.contest.served import ALONE, ASGD, METHODS, SSD, SSGD, Case
from benchmarks.contest.works import GOODPUT

from syncopate.errors import ArtifactError
from syncopate.units import parse_rate

RATE = parse_rate("1gbit")


def test_the_scale_gives_the_paper_s_own_speeds_back() -> None:
    # Eq. 2 with what the paper's machines compute and push, pulls as long as pushes.
    ssgd_s = paper.compute_s(32) / 3 + 2 * paper.push_s()
    speed = paper.MACHINES * paper.images(32) / ssgd_s
    assert speed * 1.723 == pytest.approx(4 * 786.86)
    # At 64 images the same network makes SSD-SGD gain about the tenth that it gained there.
    later_s = paper.compute_s(64) / 3 + 2 * paper.push_s()
    assert later_s / paper.compute_s(64) == pytest.approx(1.098, abs=0.1)


@pytest.mark.parametrize("rate", ["1gbit", "10gbit"])
def test_a_lab_computes_in_proportion_to_what_its_links_take(rate: str) -> None:
    rate_bytes_per_s = parse_rate(rate)
    for batch in paper.LINEAR_IMAGES_S:
        work = paper.workload("resnet50", batch, rate_bytes_per_s)
        wire_s = work.nbytes / (rate_bytes_per_s * GOODPUT)
        assert work.compute_s / wire_s == pytest.approx(paper.compute_s(batch) / paper.push_s())
    small = paper.workload("alexnet", 32, rate_bytes_per_s)
    assert small.compute_s == pytest.approx(
        0.25 * paper.workload("resnet50", 32, rate_bytes_per_s).compute_s
    )


def test_turns_count_whole_periods_in_which_weights_are_pulled_as_often() -> None:
    for method in METHODS:
        case = Case("resnet50", 32, 0 if method == ALONE else 2, method)
        for least in (1, 3, 8):
            before, counted = case.steps(least)
            assert counted >= least
            if (delay := case.delay) is None:
                assert (before, counted) == (2, least)
                continue
            k = SSD[method]
            assert (delay.k, delay.wp, counted % k) == (k, k - 1, 0)
            # A pull arrives in the iterations after those of which num % k is k - 1.
            arrives = [num for num in range(before, before + counted) if num % k == 0]
            assert len(arrives) == counted // k
            assert min(arrives) - 1 > delay.wp
            assert before > delay.wp + 1  # the first delayed one has nothing to wait for


@pytest.fixture(scope="module")
def planner() -> served.Planner:
    """Plans each model and number of servers once."""
    return served.Planner("1gbit")


def test_servers_and_scheduler_are_the_project_s_commands(planner: served.Planner) -> None:
    work = paper.workload("alexnet", 32, RATE)
    case = Case("alexnet", 32, 2, "ssd-4")
    plan = planner.plan(case, work)
    assert plan is not None
    assert (plan.exchange, plan.pull_period) == ("served", 4)
    base = planner.plan(Case("alexnet", 32, 2, SSGD), work)
    assert base is not None
    assert base.buckets == plan.buckets
    assert planner.plan(Case("alexnet", 32, 0, ALONE), work) is None
    turn = served.Turn(
        case=case, workload=work, plan=plan, least=3, number=5, limit_s=9, folder="", rate="1gbit"
    )
    topology = served.topology_of("1gbit")
    commands = served.commands(turn, topology)
    assert set(commands) == {"4", "5", "8"}
    for host, command in commands.items():
        role = "scheduler" if host == "8" else "server"
        assert command[:5] == [sys.executable, "-m", "syncopate", "ps", role]
        assert command[command.index("--port") + 1] == "9105"
        assert command[command.index("--host") + 1] == topology.address(8)
    assert commands["5"][-1] == topology.address(5)


@pytest.mark.parametrize("method", [SSGD, "ssd-3"])
def test_what_ran_is_predicted_anew_by_its_buckets(planner: served.Planner, method: str) -> None:
    case = Case("alexnet", 32, 2, method)
    assert served.case_of(case.name) == case
    work = paper.workload("alexnet", 32, RATE)
    plan = planner.plan(case, work)
    assert plan is not None
    assert plan.prediction is not None
    promised_s = plan.prediction.iteration_s
    measured = cell(promised_s / 2, predicted_s=2 * promised_s)
    found = Results(rate="1gbit", quick=False).with_cell(case, measured, plan)
    assert sum(found.counts["alexnet/32/2"]) == len(work.tensors)
    row = next(line for line in figures.predicted_again(found).splitlines() if case.name in line)
    # Promised was four times what was measured, and is now what it was when it was planned.
    assert row.split("|")[4].strip() == "+300%"
    assert row.split("|")[6].strip() == "+100%"
    asynchronous = Case("alexnet", 32, 2, ASGD)
    unknown = Results(rate="1gbit", quick=False).with_cell(asynchronous, measured)
    assert "no case" in figures.predicted_again(unknown)


def cell(*steps_s: float, predicted_s: float | None = None) -> Cell:
    turns = tuple(((step, step), (step, step)) for step in steps_s)
    return Cell(turns=turns, predicted_s=predicted_s)


def test_tables_are_the_paper_s(tmp_path: Path) -> None:
    stretch = paper.stretch(RATE)
    found = Results(rate="1gbit", quick=False)
    for batch in (32, 64):
        alone = Case("resnet50", batch, 0, ALONE)
        own_s = stretch * paper.compute_s(batch)
        found = found.with_cell(alone, cell(own_s, predicted_s=own_s))
    base = Case("resnet50", 32, 4, SSGD)
    found = found.with_cell(base, cell(3.0, 2.0, 1.9, predicted_s=2.2))
    found = found.with_cell(Case("resnet50", 32, 4, "ssd-5"), cell(1.25, predicted_s=1.1))
    found = found.with_cell(Case("resnet50", 32, 4, ASGD), cell(1.6))
    text = figures.report(found)
    speed = 512 / (2.0 / stretch)
    assert f"| 4S-4W, measured | {speed:.0f} | - | - | - | - | {speed * 1.6:.0f} (+60%) |" in text
    assert "(+100%)" in text  # predicted
    assert "3657" in text
    assert "| resnet50 (32) | 2.00 s | 1.25x | 1.60x | 2.00x |" in text
    assert "1.72x |" in text
    path = found.save(tmp_path / "found.json")
    assert figures.resumed(path, "1gbit", False, {}) == found
    with pytest.raises(ArtifactError, match="1gbit"):
        figures.resumed(path, "2gbit", False, {})
    assert figures.resumed(None, "2gbit", True, {}).cells == {}
    assert found.without([base]).cell(base) == Cell()


def test_a_speed_is_that_of_all_workers_together() -> None:
    # Asynchronous workers go at their own pace: 1 and 3 s are 4/3 steps a second, not 1.
    assert Cell(turns=(((1.0,), (3.0,)),)).step_s == pytest.approx(1.5)

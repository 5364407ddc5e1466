"""The programs beside DDP in trainings that measure themselves, which is what a script gets.

Each is long enough to pass through all phases, which are shortened: a few steps hold DDP's buckets,
the plan that needs no measurement, held steps, and a contest of plans. The network alone is not
probed, which no program can notice (``tests/multiprocess/engine/test_selfplan.py`` does it).
"""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from typing import Any

import pytest

from syncopate.engine.selfplan import contest, payback, phases, stepwise
from syncopate.engine.selfplan.background import process
from tests.multiprocess.engine.selfplan_cases import at_any_price, stderr
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.programs import base
from tests.multiprocess.programs.base import MEASURED, Program, failures_of
from tests.multiprocess.programs.test_programs import ALLOWED, THEMES, asked

STEPS = 40
"""Steps of a program, where it does not say a number of its own."""


class _AtOnce:
    """Plans where a process would: the same at every run, and in the midst of a step."""

    def run(self, work: str, *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        process._settle(future, process._answer(work, arguments))
        return future

    def close(self) -> None:
        pass


def shortened() -> None:
    """Let a training pass through all phases in fewer than :data:`STEPS` steps."""
    at_any_price()
    phases.SHARE = payback.SHARE
    for where in (phases, stepwise):
        where.WARMUP = 2  # type: ignore[attr-defined]
    phases.UNMEASURED_STEPS = phases.PROBE_STEPS = phases.SAMPLES = 1
    phases.AT_LEAST = 1
    contest.ROUNDS, contest.UNCOUNTED, contest.MOST = ((1, 1),) * 2, 1, 3
    phases.PlannerProcess = _AtOnce  # type: ignore[assignment,misc]
    # What a clock says is to decide nothing: the plan that was never measured is at work between
    # the phases, and the contest ends with another plan than DDP's buckets.
    phases.longer_beyond_noise = lambda *_: True
    contest.winner = lambda contenders, *_: contenders[-1]
    base.STEPS = STEPS


def _run(rank: int, ranks: int, theme: str) -> list[str]:
    shortened()
    module: Any = importlib.import_module(f"tests.multiprocess.programs.{theme}")
    if hasattr(module, "STEPS"):
        module.STEPS = STEPS
    found: list[str] = []
    programs: list[Program] = module.PROGRAMS
    for program in programs:
        name = program.__name__
        if not asked or name in asked:
            with stderr():
                found += failures_of(program, rank, ranks, [MEASURED], ALLOWED.get(name, {}))
    return found


def _see_the_same(theme: str) -> None:
    results = run_ranks(_run, 2, theme)
    found = list(dict.fromkeys(words for each in results for words in each))
    assert not found, "\n" + "\n".join(found)


def test_corners_see_what_they_see_under_ddp() -> None:
    _see_the_same("corners")


@pytest.mark.parametrize("theme", [theme for theme in THEMES if theme != "corners"])
def test_every_program_sees_what_it_sees_under_ddp(theme: str) -> None:
    _see_the_same(theme)

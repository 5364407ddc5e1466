"""Programs of users, side by side with DDP: the same bits on two ranks, to rounding on more."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from tests.multiprocess.harness import run_ranks
from tests.multiprocess.programs.base import PLANS, failures_of

THEMES = ("optimizers", "checkpoints", "gradients", "models", "held", "around")

_A_2_NORM = {"": 1e-5}
"""A 2-norm comes from sums of squares, which ranks sum up by shards: its last bit may differ."""

_ROUNDED = {"": 1e-5}
"""A compiled graph rounds otherwise than its layers do, and may be compiled a step later."""

ALLOWED: dict[str, dict[str, float]] = dict.fromkeys(("compiled", "compiled_before"), _ROUNDED)
ALLOWED |= dict.fromkeys(
    (
        "clipped_by_2_norm",
        "clipped_by_2_norm_foreach",
        "clipped_by_2_norm_one_by_one",
        "clipped_and_not_looked_at",
        "clipped_twice",
        "clipped_by_layer",
        "norm_of_all",
        "rank_0_logs_the_norm",
        "scaled_by_other_tensors",
        "scaler",
    ),
    _A_2_NORM,
)
"""Program -> what the names of observations begin with -> how far they may be off."""


def _programs(theme: str) -> list[Any]:
    programs: list[Any] = importlib.import_module(f"tests.multiprocess.programs.{theme}").PROGRAMS
    return programs


def _run(rank: int, ranks: int, theme: str) -> list[str]:
    plans, found = list(PLANS), []
    only = os.environ.get("ONLY", "")
    for place, program in enumerate(_programs(theme)):
        if only and program.__name__ not in only.split(","):
            continue
        # Every program by two plans, in turns; the all-reduced one is among them.
        chosen = {plans[place % len(plans)], plans[(3 * place + ranks) % len(plans)]}
        if only:
            chosen = set(plans)
        found += failures_of(
            program, rank, ranks, sorted(chosen), ALLOWED.get(program.__name__, {})
        )
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("theme", THEMES)
def test_programs_see_what_they_see_under_ddp(theme: str, ranks: int) -> None:
    results = run_ranks(_run, ranks, theme, timeout_s=170.0)
    found = list(dict.fromkeys(words for each in results for words in each))
    assert not found, "\n" + "\n".join(found)

"""Programs of users, side by side with DDP: the same bits on two ranks, to rounding on more."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from tests.multiprocess.harness import run_ranks
from tests.multiprocess.programs.base import IN_TURNS, PLANS, failures_of

THEMES = (
    "optimizers",
    "states",
    "checkpoints",
    "gradients",
    "accumulation",
    "models",
    "weights",
    "held",
    "threads",
    "around",
    "elsewhere",
    "hooks",
    "loops",
    "changes",
    "corners",
)

_A_2_NORM = {"": 1e-5}
"""A 2-norm comes from sums of squares, which ranks sum up by shards: its last bit may differ."""

_ROUNDED = {"": 1e-5}
"""A compiled graph or a script rounds otherwise than its layers, and may be compiled later."""

ALLOWED: dict[str, dict[str, float]] = dict.fromkeys(
    ("compiled", "compiled_before", "scripted_as_a_whole"), _ROUNDED
)
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


BY_BITS = ("storages", "printed")
"""Programs that look at bytes or digits: they are run on two ranks, where bits are the same."""


def _programs(theme: str) -> list[Any]:
    programs: list[Any] = importlib.import_module(f"tests.multiprocess.programs.{theme}").PROGRAMS
    return programs


def _plans(place: int, name: str, ranks: int) -> list[str]:
    """Return the plans by which a program runs: every one has its turn, two at a time."""
    plans = [*PLANS, IN_TURNS]
    chosen = (
        set(plans)
        if asked
        else {plans[place % len(plans)], plans[(3 * place + ranks) % len(plans)]}
    )
    return sorted(chosen)


asked = os.environ.get("PROGRAMS", "").split(",") if os.environ.get("PROGRAMS") else []
"""Names of programs that alone are to be run, by every plan: PROGRAMS=compiled,scripted_layer."""


def _run(rank: int, ranks: int, theme: str) -> list[str]:
    found: list[str] = []
    for place, program in enumerate(_programs(theme)):
        name = program.__name__
        if (asked and name not in asked) or (ranks > 2 and name in BY_BITS):
            continue
        plans = _plans(place, name, ranks)
        found += failures_of(program, rank, ranks, plans, ALLOWED.get(name, {}))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("theme", THEMES)
def test_programs_see_what_they_see_under_ddp(theme: str, ranks: int) -> None:
    results = run_ranks(_run, ranks, theme)
    found = list(dict.fromkeys(words for each in results for words in each))
    assert not found, "\n" + "\n".join(found)

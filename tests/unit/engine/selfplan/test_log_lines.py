"""Words: what is said of a plan that stays."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from syncopate.delay import Delay, LocalSGD
from syncopate.engine.selfplan import log_lines
from syncopate.engine.selfplan.contest import BEFORE, Contender
from syncopate.engine.selfplan.ddp_buckets import DDP
from syncopate.engine.selfplan.replanning.slowdown import COMPUTATION, LINKS
from tests.unit import examples


def test_a_gain_is_told_with_what_repays_it_and_a_loss_without() -> None:
    before = Contender(DDP, examples.plan("threshold"), [0.2])
    faster = log_lines.verdict(Contender("fast", examples.plan(), [0.1]), before, 1.0)
    slower = log_lines.verdict(Contender("asked for", examples.plan(), [0.3]), before, 1.0)
    assert "measuring took 1.00 s, which 10 more steps repay" in faster
    assert slower.endswith("measuring took 1.00 s")
    assert "None" not in slower


def test_what_became_slower_and_what_came_of_it() -> None:
    assert log_lines.slower(0.1, 0.25, (LINKS,)) == (
        "steps take 250.00 ms where they took 100.00 ms (messages take longer)"
    )
    assert log_lines.slower(0.1, 0.25, (COMPUTATION,)).endswith("(computation takes longer)")
    both = log_lines.slower(0.1, 0.25, (LINKS, COMPUTATION))
    assert both.endswith("(messages and computation take longer)")
    assert log_lines.slower(0.1, 0.25, ()).endswith("100.00 ms")

    old, new = Contender("small", examples.plan(), []), replace(examples.plan(), channels=2)
    defends = Contender(BEFORE, old.plan, [0.3])
    replaced = log_lines.replanned(Contender("large", new, [0.2]), old, defends, 2.0)
    assert replaced.startswith("large (")
    assert " replaces small (" in replaced
    assert replaced.endswith(
        "measured 200.00 ms a step, the plan before 300.00 ms; measuring took 2.00 s"
    )
    stays = log_lines.replanned(defends, old, defends, 2.0)
    assert stays.startswith("small (")
    assert stays.endswith("stays, measured 300.00 ms a step, nothing is faster beyond noise")
    only = log_lines.replanned(Contender(DDP, new, [0.2]), old, defends, 2.0, "is good enough")
    assert only.endswith(": it is good enough")


def test_a_delay_is_told_with_when_it_begins() -> None:
    said = log_lines.of_delay(Delay(k=4))
    assert "after 504 iterations weights are pulled every 4 steps" in said
    assert "weights of their own (glu)" in said
    assert "weights stay (none)" in log_lines.of_delay(Delay(k=2, local_update="none"))
    early = log_lines.of_delay(Delay(k=4, warm_up=7))
    assert "begins after 8 iterations, of at least 500 in its paper" in early
    assert "may diverge" not in said
    assert "may diverge" not in log_lines.of_delay(Delay(k=4, warm_up=7, local_update="dc-asgd-a"))
    said = log_lines.of_delay(LocalSGD(period=8, warm_up=100))
    assert "after 100 iterations" in said
    assert "averaged every 8 steps" in said


@pytest.mark.parametrize(
    ("how", "helps"),
    [
        ({}, "a smaller lr, or alpha=1, beta=1.5 (docs"),
        ({"loc_lr": 0.1}, "a smaller lr, or alpha=1, beta=1.5 (docs"),
        ({"alpha": 1.0, "beta": 1.5}, "a smaller lr (docs"),
        ({"local_update": "sgd"}, "a smaller lr, or local_update='glu' (docs"),
    ],
)
def test_a_delay_that_may_diverge_is_told_with_what_helps(how: dict[str, Any], helps: str) -> None:
    said = log_lines.of_delay(Delay(k=4, warm_up=7, **how))
    assert "may diverge" in said
    assert helps in said
    assert "smaller loc_lr" not in said


def test_servers_are_told_with_what_is_not_planned_for_them() -> None:
    assert "1 parameter server has the weights (mode asgd)" in log_lines.of_servers(1, "asgd")
    said = log_lines.of_servers(2, "ssgd")
    assert "2 parameter servers have the weights (mode ssgd)" in said
    assert "--exchange served --servers 2` makes a plan" in said

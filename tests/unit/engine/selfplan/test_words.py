"""Words: what is said of a plan that stays."""

from __future__ import annotations

from syncopate.delay import Delay
from syncopate.engine.selfplan import words
from syncopate.engine.selfplan.contest import Contender
from syncopate.engine.selfplan.safe import DDP
from tests.unit import examples


def test_a_gain_is_told_with_what_repays_it_and_a_loss_without() -> None:
    before = Contender(DDP, examples.plan("threshold"), [0.2])
    faster = words.verdict(Contender("fast", examples.plan(), [0.1]), before, 1.0)
    slower = words.verdict(Contender("asked for", examples.plan(), [0.3]), before, 1.0)
    assert "measuring took 1.00 s, which 10 more steps repay" in faster
    assert slower.endswith("measuring took 1.00 s")
    assert "None" not in slower


def test_a_delay_is_told_with_when_it_begins() -> None:
    said = words.of_delay(Delay(k=4))
    assert "after 504 iterations weights are pulled every 4 steps" in said
    assert "weights of their own (glu)" in said
    assert "weights stay (none)" in words.of_delay(Delay(k=2, local_update="none"))

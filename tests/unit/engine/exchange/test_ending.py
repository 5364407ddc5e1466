"""What a step leaves to come behind it: nothing of it happens where a rank's backward failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from syncopate.engine.exchange.delay.deferred import Due, Ending
from syncopate.engine.trailer import Said

SOUND = Said([], [0, 0], appeared=False)
UNSOUND = {
    "failed": Said([1], [0, 0], appeared=False),
    "behind": Said([], [0, 1], appeared=False),
}


def ended(said: Said) -> list[str]:
    """End a step of two updates and a pull, in which the ranks said ``said``; return what ran."""
    ran: list[str] = []

    def averages() -> Said:
        ran.append("averages")
        return said

    def launch() -> Any:
        ran.append("pull")

    with ThreadPoolExecutor(1) as executor:
        ending = Ending(averages, heard=False)
        pull = Due(launch, ending.wait)
        ending.go_on(executor, [lambda: ran.append("update 0"), lambda: ran.append("update 1")])
        ending.launch(executor, [pull])
        assert ending.wait() is said
    assert pull.done() is (not said.is_sound)
    return ran


def test_a_sound_step_updates_and_then_pulls() -> None:
    assert ended(SOUND) == ["averages", "update 0", "update 1", "pull"]


@pytest.mark.parametrize("said", UNSOUND.values(), ids=UNSOUND)
def test_a_step_that_failed_on_a_rank_neither_updates_nor_pulls(said: Said) -> None:
    assert ended(said) == ["averages"]

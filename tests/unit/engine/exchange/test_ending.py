"""What a step leaves to come behind it: nothing of it happens where a rank's backward failed."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.engine.exchange.delay.deferred import Due, Ending
from syncopate.engine.trailer import Said
from syncopate.errors import CollectiveError

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
        return SimpleNamespace(done=lambda: False)

    with ThreadPoolExecutor(1) as executor:
        ending = Ending(averages, heard=False)
        pull = Due(launch)
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


def test_a_look_of_another_thread_waits_for_a_pull_that_is_not_launched_yet() -> None:
    ran: list[str] = []

    class Handle:
        def wait(self) -> None:
            ran.append("arrived")

    def look() -> None:
        pull.wait()
        ran.append("looked")

    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as another:
        ending = Ending(lambda: SOUND, heard=False)
        pull = Due(Handle)  # type: ignore[arg-type]
        ending.go_on(executor, [])
        looking = another.submit(look)
        wait([looking], timeout=0.2)  # time to go wrong
        assert not ran
        ending.launch(executor, [pull])
        looking.result()
    assert ran == ["arrived", "looked"]


def test_a_pull_that_cannot_be_launched_raises_where_it_is_waited_for() -> None:
    def launch() -> Any:
        raise CollectiveError("all_gather", "rank 1 is lost", (1,))

    with ThreadPoolExecutor(1) as executor:
        ending = Ending(lambda: SOUND, heard=False)
        pulls = [Due(launch), Due(launch)]
        ending.launch(executor, pulls)
        assert ending.wait() is SOUND
    for pull in pulls:
        assert pull.done()
        assert math.isnan(pull.finished_s)
        with pytest.raises(CollectiveError, match="rank 1 is lost"):
            pull.wait()

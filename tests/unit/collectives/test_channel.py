"""A channel: one job at a time, in the order of submission, to the last one before it closed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from syncopate.collectives.channel import Channel
from tests.children import HANGS_S, run_script


class Held(Channel):
    """A channel whose thread begins only when it is told to."""

    def _start(self) -> None:
        pass

    def begin(self) -> None:
        super()._start()


def test_what_may_block_waits_for_what_is_queued() -> None:
    """Also between two jobs, when none is running."""
    channel, done = Held(0), []
    for name in "abc":
        assert channel.run(lambda name=name: done.append(name), background=name != "c")
    assert done == []
    channel.begin()
    assert channel.close(HANGS_S)
    assert done == ["a", "b", "c"]


def test_nothing_runs_beside_a_job_on_its_callers_thread() -> None:
    channel, done = Channel(0), []
    began, end, other = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        end.wait(HANGS_S)
        done.append("first")

    def second(name: str) -> None:
        other.set()
        done.append(name)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(channel.run, first, background=False)
        assert began.wait(HANGS_S)
        channel.run(lambda: second("in the background"), background=True)
        channel.run(lambda: second("blocking"), background=False)
        assert not other.wait(0.2)
        end.set()
        assert running.result(HANGS_S)
    assert channel.close(HANGS_S)
    assert done == ["first", "in the background", "blocking"]


def test_a_channel_that_closes_drains_and_takes_nothing_new() -> None:
    channel, done = Channel(0), []
    began, end = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        end.wait(HANGS_S)
        done.append("slow")

    assert channel.run(slow, background=True)
    assert channel.run(lambda: done.append("queued"), background=True)
    assert began.wait(HANGS_S)
    assert not channel.close(0.0)
    assert not channel.run(lambda: done.append("late"), background=True)
    assert not channel.run(lambda: done.append("late"), background=False)
    end.set()
    assert channel.close(HANGS_S)
    assert done == ["slow", "queued"]
    assert not channel.run(lambda: done.append("late"), background=True)
    assert done == ["slow", "queued"]


def test_what_is_queued_behind_a_blocking_job_is_drained_too() -> None:
    """The channel's thread does not end because another thread's job is running."""
    channel, done = Channel(0), []
    began, end = threading.Event(), threading.Event()

    def blocking() -> None:
        began.set()
        end.wait(HANGS_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(channel.run, blocking, background=False)
        assert began.wait(HANGS_S)
        assert channel.run(lambda: done.append("queued"), background=True)
        assert not channel.close(0.1)
        end.set()
        assert running.result(HANGS_S)
    assert channel.close(HANGS_S)
    assert done == ["queued"]


def test_a_job_may_submit_another() -> None:
    channel, done = Channel(0), []
    inner = threading.Event()

    def again() -> None:
        done.append("again")
        inner.set()

    def first() -> None:
        channel.run(again, background=False)
        done.append("first")

    channel.run(first, background=False)
    assert inner.wait(HANGS_S)
    assert channel.close(HANGS_S)
    assert done == ["first", "again"]


def test_the_process_ends_after_what_was_submitted() -> None:
    done = run_script("""
        import os, time
        from syncopate.collectives.channel import Channel
        channel = Channel(0)
        for name in (b"first ", b"last"):
            channel.run(lambda name=name: (time.sleep(0.2), os.write(1, name)), background=True)
    """)
    assert (done.returncode, done.stdout) == (0, "first last"), done.stderr


def test_the_end_of_a_job_may_submit_to_its_channel() -> None:
    """What it submits runs within it, in the same order, and before all that is queued."""
    channel, done = Channel(0), []
    began, submitted = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        submitted.wait(HANGS_S)
        done.append("first")
        with channel.ending():
            for name in ("amid", "amid again"):
                assert channel.run(lambda name=name: done.append(name), background=name == "amid")
        done.append("end of first")

    channel.run(first, background=True)
    began.wait(HANGS_S)
    channel.run(lambda: done.append("next"), background=True)
    submitted.set()
    assert channel.rest(HANGS_S)
    assert channel.close(HANGS_S)
    assert done == ["first", "amid", "amid again", "end of first", "next"]

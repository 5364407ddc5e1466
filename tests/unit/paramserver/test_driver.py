"""The driver: a thread that waits, else one in the background; one at a time, and always one."""

from __future__ import annotations

import threading
import time

import pytest

from syncopate.errors import ParameterServerError
from syncopate.paramserver import driver as module
from syncopate.paramserver.driver import Driven, Driver, Handle
from tests.children import HANGS_S
from tests.clock import set_clock

BACKGROUND = "test-driver"


class Machinery:
    """Notes which thread does what; what is submitted is over when :meth:`arrive` says so."""

    def __init__(self):
        self.calls, self.handles, self.steps = [], [], []
        self.over = self.interrupt = False
        self._awake = threading.Event()
        self._inside = threading.Lock()
        driven = Driven(
            over=lambda: self.over,
            busy=lambda: bool(self.calls or self.handles),
            submitted=self._submitted,
            step=self._step,
            wake=self._awake.set,
            end=lambda: [handle.fail(ParameterServerError("closed")) for handle in self.handles],
        )
        self.driver = Driver(driven, BACKGROUND)

    def submit(self):
        handle = Handle(self.driver, 1, None)
        self.calls.append(handle)
        self.driver.submit()
        return handle

    def arrive(self):
        """Let what is under way be over, as an answer does."""
        self.answered = True
        self._awake.set()

    answered = False

    def _submitted(self):
        while self.calls:
            self.handles.append(self.calls.pop(0))

    def _step(self, timeout_s):
        assert self._inside.acquire(blocking=False), "two threads drive at once"
        try:
            self._submitted()
            if self.handles:
                self.steps.append(threading.current_thread().name)
            self._awake.wait(timeout_s)
            self._awake.clear()
            if self.interrupt and threading.current_thread().name != BACKGROUND:
                self.interrupt = False
                raise KeyboardInterrupt
            if self.answered:
                self.answered = False
                while self.handles:
                    self.handles.pop(0).part_done()
        finally:
            self._inside.release()

    def close(self):
        self.over = True
        self._awake.set()
        self.driver.join()


@pytest.fixture
def machinery():
    found = Machinery()
    yield found
    found.close()


def _soon(condition):
    until_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def _waiting(handle, name):
    thread = threading.Thread(target=handle.wait, name=name)
    thread.start()
    return thread


def test_who_waits_drives_and_the_background_keeps_out(monkeypatch):
    """However long a busy machine stops a caller, it is a moment here."""
    waits, over = threading.Event(), threading.Event()

    def moment(seconds):
        assert seconds == module._MOMENT_S
        waits.set()
        over.wait(HANGS_S)

    set_clock(monkeypatch, module.__name__, sleep=moment)
    monkeypatch.setattr(module, "TICK_S", HANGS_S)
    machinery = Machinery()
    _soon(lambda: machinery.driver._asleep)
    for _ in range(3):
        handle = machinery.submit()
        _soon(lambda: waits.is_set() or machinery.steps)
        machinery.arrive()
        handle.wait()
        assert handle.done()
    assert set(machinery.steps) == {"MainThread"}
    over.set()
    machinery.close()


def test_where_nobody_waits_the_background_drives(machinery):
    handle = machinery.submit()
    machinery.arrive()
    _soon(handle.done)
    assert set(machinery.steps) == {BACKGROUND}
    handle.wait()


def test_who_begins_to_wait_takes_over(machinery):
    handle = machinery.submit()
    _soon(lambda: machinery.steps)
    thread = _waiting(handle, "waits")
    _soon(lambda: machinery.steps[-1] == "waits")
    machinery.arrive()
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_what_is_submitted_while_another_drives_is_done_by_that_one(machinery):
    first = machinery.submit()
    thread = _waiting(first, "waits")
    _soon(lambda: "waits" in machinery.steps)
    second = machinery.submit()
    _soon(lambda: second in machinery.handles)
    machinery.arrive()
    thread.join(HANGS_S)
    second.wait()
    assert machinery.steps[-1] == "waits"


def test_of_two_who_wait_one_drives_for_both(machinery):
    handle = machinery.submit()
    threads = [_waiting(handle, f"waits {number}") for number in range(2)]
    _soon(lambda: machinery.steps and machinery.steps[-1].startswith("waits"))
    machinery.arrive()
    for thread in threads:
        thread.join(HANGS_S)
        assert not thread.is_alive()


def test_who_is_interrupted_leaves_the_rest_to_others(machinery):
    handle = machinery.submit()
    machinery.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    assert not handle.done()
    machinery.arrive()
    _soon(handle.done)


def test_nobody_waits_beyond_the_end(machinery):
    handle = machinery.submit()
    failed = []

    def wait():
        with pytest.raises(ParameterServerError):
            handle.wait()
        failed.append(handle)

    thread = threading.Thread(target=wait)
    thread.start()
    machinery.close()
    thread.join(HANGS_S)
    assert failed == [handle]
    with pytest.raises(ParameterServerError, match="closed"):
        handle.wait()


def test_what_failed_stays_failed(machinery):
    handle = machinery.submit()
    handle.fail(ParameterServerError("lost"))
    handle.fail(ParameterServerError("again"))
    handle.part_done()
    with pytest.raises(ParameterServerError, match="lost"):
        handle.wait()
    machinery.handles.clear()

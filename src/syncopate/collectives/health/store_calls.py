"""Store calls: calls to the rendezvous store, which may never answer.

[Note: at the end of the process]
A thread that comes back from C++ while the interpreter ends is ended by it in the midst of C++,
which aborts the process. So the interpreter waits a moment for the calls that are still under way,
and lets none begin.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")

_LAST_S = 1.0
"""How long the end of the process waits for calls that are under way."""

_under_way: set[threading.Thread] = set()
_ending = threading.Event()


class StoreCall(Generic[_Answer]):
    """An action on a store, under way on a thread of its own.

    A store client blocks without limit when the store's host goes silent. A caller that must not
    hang calls it this way, and goes on without the answer.

    Args:
        action: what to do; a ``RuntimeError`` means that the store refused.
    """

    def __init__(self, action: Callable[[], _Answer]) -> None:
        self._action = action
        self._answers: list[_Answer] = []
        self._over = threading.Event()
        if _ending.is_set():
            self._over.set()
            return
        thread = threading.Thread(target=self._run, name="syncopate-store", daemon=True)
        _under_way.add(thread)
        thread.start()

    def wait(self, limit_s: float) -> bool:
        """Wait for the end; return whether it came within ``limit_s`` seconds."""
        return self._over.wait(limit_s)

    @property
    def over(self) -> bool:
        """Whether the action has ended, well or badly."""
        return self._over.is_set()

    @property
    def answered(self) -> bool:
        """Whether the action succeeded, so far."""
        return bool(self._answers)

    def answer(self) -> _Answer | None:
        """Return what the action returned; None when it failed or has not ended."""
        return self._answers[0] if self._answers else None

    def _run(self) -> None:
        try:
            self._answers.append(self._action())
        except RuntimeError:
            return
        finally:
            self._over.set()
            _under_way.discard(threading.current_thread())


def call_store(action: Callable[[], object], limit_s: float) -> bool:
    """Carry out ``action``; return whether it succeeded within ``limit_s`` seconds."""
    made = StoreCall(action)
    made.wait(limit_s)
    return made.answered


@atexit.register
def _let_end() -> None:
    """See [Note: at the end of the process]."""
    _ending.set()
    until_s = time.monotonic() + _LAST_S
    for thread in list(_under_way):
        thread.join(max(until_s - time.monotonic(), 0.0))

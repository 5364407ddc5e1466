"""Ending: SIGINT and SIGTERM end long work once, and what the work has is kept.

[Note: one wish, several signals] A terminal, ``timeout``, ``torchrun`` and :func:`start_local
<syncopate.cli.common.ranks.start_local>` each send a signal to a rank, so one Ctrl-C or one
``timeout`` may arrive two or three times. The first ends the work. Those that follow within
:data:`AGAIN_S` are the same wish, and must not end the writing of what was measured. A later one is
another wish, and ends that as well.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""

AGAIN_S = 5.0
"""Signals that come this soon after the first are the same wish; see
[Note: one wish, several signals]."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedError(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C ends is to end."""

    exit_code = 128 + signal.SIGTERM


class _Ending:
    """Handles SIGINT and SIGTERM while work runs."""

    def __init__(self) -> None:
        self._asked_s = -AGAIN_S

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s < AGAIN_S:
            return
        self._asked_s = now_s
        raise EndedError if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def ended_once() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM end the block, in the main thread.

    Within another such block it changes nothing. SIGINT stays ignored where it was, as it is in the
    background of a shell script.

    Raises:
        EndedError: SIGTERM came.
        KeyboardInterrupt: SIGINT came.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    inside = isinstance(before[signal.SIGTERM], _Ending)
    if inside or threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = _Ending()
    try:
        for number in _SIGNALS:
            if number != signal.SIGINT or before[number] != signal.SIG_IGN:
                signal.signal(number, ending)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def code_of(interrupt: BaseException) -> int:
    """Return the exit code of what Ctrl-C or SIGTERM ended."""
    return int(getattr(interrupt, "exit_code", INTERRUPTED))

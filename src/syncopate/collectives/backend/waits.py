"""Waits: waits for Gloo that end when the communicator breaks.

[Note: what Gloo forgets] When a connection of Gloo's closes, a rank that waits for a message on it
fails, but for the message that is being read or written at that moment: Gloo waits for the rest of
it until the group's time limit. So it goes with a large message that a dead or silent rank leaves
half sent, and Gloo offers nothing to end it. So the rank does not wait for Gloo itself, but for
either Gloo or the interruption, and gives up soon after that. A thread of Gloo's or of this module
stays behind until the time limit. It keeps no process alive; but to destroy the group would wait
for Gloo's, so another thread holds the group meanwhile.

[Note: what has failed] Work that Gloo makes of single messages, as a reduce-scatter, never counts
as completed once one of them has failed: every wait for it raises that failure at once. An error
that comes well before the turn is over is such a failure, not the end of the turn.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist

from syncopate.collectives import transport

TURN_S = 1.0
"""How often a wait looks for the interruption."""

PATIENCE_S = 2.0
"""How long after the interruption a wait may still end by itself, which says more."""

_THREAD = "syncopate-gloo"


class GlooWaits:
    """The waits for one group; from all threads.

    Args:
        group: the ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._interrupted_s: float | None = None

    def interrupt(self) -> None:
        """Note that the group's connections have been closed: nothing can still end well."""
        if self._interrupted_s is None:
            self._interrupted_s = time.monotonic()

    def wait(self, work: dist.Work) -> None:
        """Wait for a collective on CPU tensors.

        Raises:
            RuntimeError: it failed, or did not end after the interruption.
        """
        turn = datetime.timedelta(seconds=TURN_S)
        while True:
            began_s = time.monotonic()
            try:
                work.wait(turn)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises what it ended with, if anything
                    return
                if time.monotonic() - began_s < TURN_S / 2:
                    raise  # see [Note: what has failed]
                if self._over():
                    threading.Thread(
                        target=_hold, args=(self._group, work), name=_THREAD, daemon=True
                    ).start()
                    raise _given_up() from None

    def run(self, action: Callable[[], object]) -> None:
        """Carry ``action`` out, which waits for messages, on a thread that may stay behind.

        Raises:
            RuntimeError: it did not end after the interruption. What else it raised itself.
        """
        errors: list[BaseException] = []
        ended = threading.Event()

        def carry_out() -> None:
            try:
                action()
            except BaseException as error:  # raised again by the wait
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=carry_out, name=_THREAD, daemon=True).start()
        while not ended.wait(TURN_S):
            if self._over():
                raise _given_up()
        if errors:
            raise errors[0]

    def _over(self) -> bool:
        since_s = self._interrupted_s
        return since_s is not None and time.monotonic() - since_s > PATIENCE_S


def _hold(group: dist.ProcessGroup, work: dist.Work) -> None:
    """Keep ``group`` from being destroyed until Gloo has ended ``work``."""
    with suppress(RuntimeError):
        work.wait()


def _given_up() -> RuntimeError:
    return RuntimeError(f"{transport.INTERRUPTED}: Gloo did not end it")

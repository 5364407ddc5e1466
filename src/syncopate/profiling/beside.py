"""Beside: what overlap costs a model, from its own iterations with traffic beside them.

Three states take turns, so that a drift of the machine hits all alike: the model alone, as many
bytes as its gradients have alone, and both at once, the traffic from the start of backward on. Both
at once, ranks compute and communicate as in training, on the processors and links of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from syncopate.artifacts.cluster import Interference
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.handle import Handle
from syncopate.collectives.machine import device_of, synchronize
from syncopate.profiling.interference import Observed, interference_of
from syncopate.profiling.timings import Timing
from syncopate.units import MIB

ROUNDS = 3
"""Turns of each state."""

_BUCKET_BYTES = 4 * MIB
_MOST_BUCKETS = 32
_ALGORITHM = "ring"


class Backward(NamedTuple):
    """One backward of this rank.

    Attributes:
        seconds: how long it took.
        span: start and end by ``time.perf_counter``; None where that is not known, as on a device.
    """

    seconds: float
    span: tuple[float, float] | None


Iterate = Callable[[Callable[[], None]], Backward]
"""Runs an iteration, and calls what it is given when backward begins."""


def interference_beside(
    communicator: Communicator, nbytes: int, iterate: Iterate, turn: Callable[[int], None]
) -> Interference:
    """Return what overlap costs, alike on all ranks, every one of which must call this.

    Args:
        communicator: the ranks; nothing else uses it meanwhile.
        nbytes: of all gradients.
        iterate: runs one iteration on this rank.
        turn: called with the number of each turn before it.
    """
    traffic = _Traffic(communicator, nbytes)
    traffic.run()  # which makes the links
    held: list[list[Observed]] = []
    overlapped: list[list[Observed]] = []
    for number in range(ROUNDS):
        turn(number)
        communicator.barrier()
        alone = iterate(lambda: None)
        communicator.barrier()
        timings = traffic.run()
        held.append(communicator.all_gather_object(Observed(alone.seconds, alone.span, timings)))
        communicator.barrier()
        both = iterate(traffic.start)
        timings = traffic.finish()
        overlapped.append(communicator.all_gather_object(Observed(*both, timings)))
    found: Interference = communicator.broadcast_object(interference_of(held, overlapped))
    return found


class _Traffic:
    """All-reduces of as many bytes as the gradients have, back to back."""

    def __init__(self, communicator: Communicator, nbytes: int) -> None:
        self._communicator = communicator
        device = device_of(communicator)
        count = min(max(-(-nbytes // _BUCKET_BYTES), 1), _MOST_BUCKETS)
        self._buffers = [
            torch.zeros(max(nbytes // count // 4, 1), device=device) for _ in range(count)
        ]
        self._handles: list[Handle] = []

    def start(self) -> None:
        """Submit all of it."""
        self._handles = [
            self._communicator.all_reduce(buffer, algorithm=_ALGORITHM, async_op=True)
            for buffer in self._buffers
        ]

    def finish(self) -> tuple[Timing, ...]:
        """Wait until it is over; return when each all-reduce ran."""
        for handle in self._handles:
            handle.wait()
        synchronize(self._buffers[0].device)
        return tuple(
            (index, buffer.numel() * 4, handle.started_s, handle.finished_s)
            for index, (buffer, handle) in enumerate(zip(self._buffers, self._handles, strict=True))
        )

    def run(self) -> tuple[Timing, ...]:
        """Let it run by itself."""
        self.start()
        return self.finish()

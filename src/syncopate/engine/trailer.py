"""Trailer: what the ranks report behind the last bucket, so that it costs no message of its own.

Behind the gradients of the last bucket travel, in this order:

- one element per parameter: on how many ranks this backward reached it;
- one element per rank: 1 when its backward failed half-way, 2 when it asks for a new plan;
- one element per rank: how many of its forwards this backward did not reach;
- one element: 1 when a model without buffers has one now;
- the module's buffers: one rank, the source, contributes its values and every other rank negative
  zeros, so the sum is the source's value, exactly.

[Note: Exact buffers in a sum of floats]
``x + -0.0`` is ``x`` for every float, either zero, infinities and NaN included, so a buffer whose
dtype the element type holds without loss travels as it is. Of any other, such as batch
normalisation's int64 ``num_batches_tracked``, each byte travels as one element: every integer up to
255 is exact even in bfloat16.

Large buffers (attention masks, tables) are cheaper in a broadcast, which moves every byte once, and
is needed only when they have changed: :class:`~syncopate.engine.model.state.Buffers` sees to them.

[Note: A backward that never began]
Where the error comes between forward and backward, in the loss, the failed rank notices nothing: it
goes on, one step ahead of the others, and its next gradients would be averaged with their last. So
every rank says how many training forwards since the backward before had no part in this one. Where
all ranks say the same, several forwards are how this program trains. Otherwise all of them refuse
the step and are in step again. A model with buffers finds it sooner: the rank is in the exchange
before a forward while the others are in their buckets, which ends the communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from syncopate.artifacts.workload import flag_count
from syncopate.collectives.health.blame import name_ranks
from syncopate.collectives.messages.piggyback import ride_of
from syncopate.engine.buckets import BucketBuffers
from syncopate.engine.model.state import Buffers
from syncopate.errors import EngineError

_MOST_FORWARDS = 256
"""What even bfloat16 counts exactly."""

_FAILED, _ASKS = 1, 2
"""What a rank writes in its element."""


class Note(NamedTuple):
    """A rank's report on its backward, which travels with its gradients.

    Attributes:
        unreached: indices of the parameters that its backward did not reach.
        failed: whether its backward failed.
        forwards: how many of its forwards had no part in this backward.
        asks: whether it asks for a new plan.
    """

    unreached: Sequence[int] = ()
    failed: bool = False
    forwards: int = 0
    asks: bool = False


def require_no_failure(failed: Sequence[int]) -> None:
    """Refuse a step whose backward failed on some ranks; every rank calls it.

    Raises:
        EngineError: names them.
    """
    if failed:
        raise EngineError(
            f"backward failed on {name_ranks(failed)}, so this step has no gradient. See the error "
            "there; zero the gradients before going on"
        )


class Said(NamedTuple):
    """The ranks' reports in a trailer, besides their buffers.

    Attributes:
        failed: ranks whose backward failed.
        unreached: per rank, how many of its forwards had no part in this backward.
        appeared: whether the source has buffers where the model had none.
        asking: ranks that ask for a new plan.
    """

    failed: list[int]
    unreached: list[int]
    appeared: bool
    asking: Sequence[int] = ()

    @property
    def is_sound(self) -> bool:
        """Whether no backward failed, and all ranks are in the same step."""
        return not self.failed and len(set(self.unreached)) <= 1

    def require_same_step(self, ranks: Sequence[int]) -> None:
        """Refuse a step that not all of ``ranks`` have come to with a whole gradient.

        Raises:
            EngineError: a backward failed, or never began; on every rank alike.
        """
        require_no_failure(self.failed)
        fewest = min(self.unreached[rank] for rank in ranks)
        behind = [rank for rank in ranks if self.unreached[rank] > fewest]
        if behind:
            raise EngineError(
                f"{name_ranks(behind)} ran a training forward that saw no backward, and other "
                "ranks did not, so their gradients are not of the same step. An error between "
                "forward and backward, as in the loss, does that: see the error there, and zero "
                "the gradients before going on. A forward without a backward belongs under "
                "torch.no_grad(), or in eval mode"
            )


class Trailer:
    """Writes and reads what the ranks report with their gradients; subclasses say how it travels.

    Args:
        parameters: number of exchanged parameters.
        rank: this rank.
        world_size: number of ranks.
        buffers: the module's buffers; notes those that ride along.
        dtype: element type that the trailer travels as.

    Attributes:
        elements: how many elements it needs.
        rides: how many of them ride behind the last bucket.
        puts: says whether buffers get the values that came along as soon as they are there.
    """

    rides = 0

    def __init__(
        self,
        parameters: int,
        rank: int,
        world_size: int,
        buffers: Buffers,
        dtype: torch.dtype,
    ) -> None:
        self._parameters = parameters
        self._rank = rank
        self._world_size = world_size
        self._head = flag_count(parameters, world_size)
        self._buffers = buffers
        element = dtype.to_real() if dtype.is_complex else dtype
        together: dict[tuple[torch.dtype, bool], list[str]] = {}
        for name, kept in buffers.kept.items():
            if (ride := ride_of(kept, element)) is not None:
                together.setdefault((kept.dtype, ride.direct), []).append(name)
        buffers.carried = tuple(name for names in together.values() for name in names)
        # One memory for each dtype, so that one copy moves all of them.
        self._riders = []
        for (_, direct), names in together.items():
            flat = buffers.back_to_back(names)
            self._riders.append(flat if direct else flat.view(torch.uint8))
        self.elements = self._head + sum(rider.numel() for rider in self._riders)
        self.puts: Callable[[], bool] = _always
        self._late: tuple[Tensor, torch.cuda.Event] | None = None
        self._template = torch.zeros(0)
        self._trailer = torch.zeros(0)

    def attach(self, trailer: Tensor) -> None:
        """Take ``trailer``, at least ``elements`` long, as the memory to write to and read from."""
        self._trailer = trailer[: self.elements]
        self._template = torch.zeros_like(self._trailer[: self._head])
        self._template[: self._parameters] = 1
        self._places = torch.split(
            self._trailer[self._head :], [rider.numel() for rider in self._riders]
        )

    @property
    def averages(self) -> bool:
        """Whether this rank has made averages of its sums when its note leaves."""
        return False

    def find_place(self, buckets: Sequence[BucketBuffers]) -> None:
        """Use the memory behind the last bucket, if the report travels with that bucket."""

    def write(self, note: Note) -> None:
        """Write this rank's report, just before the last bucket is launched."""
        head = self._trailer[: self._head]
        head.copy_(self._template)
        for index in note.unreached:
            head[index] = 0
        if note.failed or note.asks:
            head[self._parameters + self._rank] = _FAILED if note.failed else _ASKS
        if note.forwards:
            counted = min(note.forwards, _MOST_FORWARDS)
            head[self._parameters + self._world_size + self._rank] = counted
        if self._rank != self._buffers.source:
            self._trailer[self._head :].fill_(-0.0)
            return
        if self._buffers.appeared:
            head[-1] = 1
        self._buffers.take(self._buffers.carried)
        for place, rider in zip(self._places, self._riders, strict=True):
            place.copy_(rider)

    def send(self) -> None:
        """Launch it behind the last bucket, unless it is on its way."""

    def arrive(self) -> None:
        """Wait for the ranks' reports; on a device the stream waits.

        Raises:
            CollectiveError: a rank is lost or late.
        """

    def deliver(self) -> None:
        """Keep the source's value of every buffer that came; the source has it already."""
        if self._rank == self._buffers.source:
            return
        for place, rider in zip(self._places, self._riders, strict=True):
            rider.copy_(place)
        if self.puts():
            self._buffers.put(self._buffers.carried)

    def reached(self) -> list[bool]:
        """Return per parameter whether any rank's backward reached it."""
        counts: list[float] = self._trailer[: self._parameters].tolist()
        return [count > 0 for count in counts]

    def hear(self) -> Said:
        """Wait for the ranks' reports, and return them; then the last bucket has arrived too.

        On a CUDA device they are those of the step before this one: reading this step's flags there
        would make the host wait for the device in every step.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        flags = self._trailer[self._parameters : self._head]
        if flags.is_cuda:
            late, self._late = self._late, _to_host(flags)
            if late is None:
                return Said([], [0] * self._world_size, False)
            flags, copied = late
            copied.synchronize()
        *counts, appeared = (int(flag) for flag in flags.tolist())
        failed = [rank for rank, flag in enumerate(counts[: self._world_size]) if flag == _FAILED]
        asking = [rank for rank, flag in enumerate(counts[: self._world_size]) if flag == _ASKS]
        return Said(failed, counts[self._world_size :], bool(appeared), asking)


def _always() -> bool:
    return True


def _to_host(flags: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Start copying ``flags``; the event says when they are there."""
    host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
    host.copy_(flags, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied

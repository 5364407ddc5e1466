"""Device: collectives on CUDA tensors, ordered against the caller's stream.

[Note: streams and buffers] A collective may begin when the work that the caller had queued on its
current stream, at the time of the call, is done; an event recorded then says so.

* On a Gloo group the channel copies the tensor into pinned memory on a stream of its own, runs the
  collective there, copies back, and blocks until that is done. The pinned memory is free again and
  the tensor complete when the handle is; no stream has to wait for anything.
* On an NCCL group the collective is queued on the channel's stream and the host goes on. Handle's
  ``wait`` makes the caller's stream wait for the event recorded behind it. The tensor's memory is
  marked as used by the channel's stream, so that freeing it does not let the allocator reuse it
  too early.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from syncopate.schedules.base import Schedule, Transfer, chunk_offsets


class _Streams:
    """One stream per device, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[torch.device, torch.cuda.Stream] = {}

    def on(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._made:
            self._made[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._made[device]


def _event(enable_timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]


class PinnedStage:
    """Pinned memory and streams of one channel, for CUDA tensors on a Gloo group."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._streams = _Streams()

    def staged(
        self, tensor: torch.Tensor, work: Callable[[torch.Tensor], None]
    ) -> Callable[[], None]:
        """Return ``work`` on a host copy of ``tensor``, to be run later on any thread.

        Call this on the thread and stream that produced ``tensor``.
        """
        ready = _event()
        ready.record(torch.cuda.current_stream(tensor.device))

        def run() -> None:
            host = self._host(tensor)
            with torch.cuda.device(tensor.device):
                stream = self._streams.on(tensor.device)
                with torch.cuda.stream(stream):
                    stream.wait_event(ready)
                    host.copy_(tensor, non_blocking=True)
                    stream.synchronize()
                    work(host)
                    tensor.copy_(host, non_blocking=True)
                    stream.synchronize()

        return run

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._memory.numel() < tensor.nbytes:
            self._memory = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True)
        return self._memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


class StreamCompletion:
    """A collective queued on a stream; see :class:`~syncopate.collectives.handle.Completion`."""

    def __init__(self, device: torch.device, begin: torch.cuda.Event, end: torch.cuda.Event):
        self._device = device
        self._begin = begin
        self._end = end

    def done(self) -> bool:
        """Say whether it is over, without blocking."""
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Order what follows on the current stream after it."""
        torch.cuda.current_stream(self._device).wait_event(self._end)

    def stamps(self) -> tuple[float, float]:
        """Block until it is over; return when it began and ended, by ``time.perf_counter``.

        Events know durations only, so both are counted back from an event recorded now.
        """
        self._end.synchronize()
        now = _event(enable_timing=True)
        now.record(torch.cuda.current_stream(self._device))
        now.synchronize()
        now_s = time.perf_counter()
        return (
            now_s - self._begin.elapsed_time(now) / 1e3,
            now_s - self._end.elapsed_time(now) / 1e3,
        )


class StreamQueue:
    """The stream of one channel of an NCCL group, per device."""

    def __init__(self) -> None:
        self._streams = _Streams()

    def queue(self, tensor: torch.Tensor, work: Callable[[], None]) -> StreamCompletion:
        """Queue ``work`` behind the caller's stream and behind the channel's earlier work."""
        device = tensor.device
        stream = self._streams.on(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        begin = _event(enable_timing=True)
        end = _event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record(stream)
            work()
            end.record(stream)
        tensor.record_stream(stream)
        return StreamCompletion(device, begin, end)


def run_rounds(
    schedule: Schedule, rank: int, tensor: torch.Tensor, group: dist.ProcessGroup
) -> None:
    """Run ``schedule`` in place on ``tensor``, one batch of messages per round.

    This is how NCCL wants it: the sends and receives of a round form one group call, so that
    neither side blocks the other, and everything is ordered by the current stream.

    Args:
        schedule: what is to happen.
        rank: this rank within ``group``.
        tensor: contiguous, with elements.
        group: any group whose backend has point-to-point for the tensor's device.
    """
    flat = tensor.view(-1)
    offsets = chunk_offsets(flat.numel(), schedule.chunks)
    rounds: dict[int, list[Transfer]] = {}
    for transfer in schedule.of_rank(rank):
        if offsets[transfer.start] < offsets[transfer.stop]:
            rounds.setdefault(transfer.round, []).append(transfer)
    for index in sorted(rounds):
        messages: list[dist.P2POp] = []
        landed: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        for transfer in rounds[index]:
            place = flat[offsets[transfer.start] : offsets[transfer.stop]]
            # Bytes, because NCCL does not know every dtype.
            if transfer.src == rank:
                wire = place.view(torch.uint8)
                messages.append(dist.P2POp(dist.isend, wire, group=group, group_peer=transfer.dst))
            else:
                landing = torch.empty_like(place)
                landed.append((place, landing, transfer.op))
                wire = landing.view(torch.uint8)
                messages.append(dist.P2POp(dist.irecv, wire, group=group, group_peer=transfer.src))
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        for place, landing, op in landed:
            if op == "reduce":
                place.add_(landing)
            else:
                place.copy_(landing)

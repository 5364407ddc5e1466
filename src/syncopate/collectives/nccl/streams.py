"""Device: collectives on CUDA tensors, ordered against the caller's stream.

[Note: streams and buffers] A collective may begin when the work that the caller had queued on its
current stream, at the time of the call, is done; an event recorded then says so. It is recorded by
the caller, because the collective may run on another thread, which has a current stream, and a
current device, of its own.

* On a Gloo group the channel copies the tensor into pinned memory on a stream of its own, runs the
  collective there, copies back, and blocks until that is done. The pinned memory is free again and
  the tensor complete when the handle is; no stream has to wait for anything.
* On an NCCL group the collective is queued on the channel's stream and the host goes on. Handle's
  ``wait`` makes the caller's stream wait for the event recorded behind it. The tensor's memory is
  marked as used by the channel's stream, so that freeing it does not let the allocator reuse it
  too early. Memory that the collective allocates is the channel's stream's, which waits for every
  stream that NCCL used in its place.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


def _event(enable_timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=enable_timing)  # type: ignore[no-untyped-call]


def mark(device: torch.device) -> torch.cuda.Event:
    """Return an event that says when what is queued on the current stream of ``device`` is done."""
    event = _event()
    event.record(torch.cuda.current_stream(device))
    return event


def on_this_device(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Return ``work`` to be run on any thread, with this thread's current CUDA device."""
    index = torch.cuda.current_device()

    def run() -> _Result:
        with torch.cuda.device(index):
            return work()

    return run


class PinnedStage:
    """Pinned memory and streams of one channel, for CUDA tensors on a Gloo group."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._stream_on = functools.cache(torch.cuda.Stream)

    def staged(
        self, tensor: torch.Tensor, work: Callable[[torch.Tensor], None]
    ) -> Callable[[], None]:
        """Return ``work`` on a host copy of ``tensor``, to be run later on any thread.

        Call this on the thread and stream that produced ``tensor``.
        """
        ready = mark(tensor.device)

        def run() -> None:
            host = self._host(tensor)
            with torch.cuda.device(tensor.device):
                stream = self._stream_on(tensor.device)
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


class Completion:
    """A collective queued on a stream, which goes on after its host call returned."""

    def __init__(
        self,
        device: torch.device,
        begin: torch.cuda.Event,
        end: torch.cuda.Event,
        clock: torch.cuda.Stream,
    ) -> None:
        self._device = device
        self._begin = begin
        self._end = end
        self._clock = clock

    def done(self) -> bool:
        """Say whether it is over, without blocking."""
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Order what follows on the current stream after it."""
        torch.cuda.current_stream(self._device).wait_event(self._end)

    def stamps(self) -> tuple[float, float]:
        """Block until it is over; return when it began and ended, by ``time.perf_counter``.

        Events know durations only, so both are counted back from an event recorded now, on a stream
        that has nothing else to do.
        """
        self._end.synchronize()
        now = _event(enable_timing=True)
        now.record(self._clock)
        now.synchronize()
        now_s = time.perf_counter()
        return (
            now_s - self._begin.elapsed_time(now) / 1e3,
            now_s - self._end.elapsed_time(now) / 1e3,
        )


class StreamQueue:
    """The stream of one channel of an NCCL group, per device."""

    def __init__(self) -> None:
        self._stream_on = functools.cache(torch.cuda.Stream)
        self._clock_on = functools.cache(torch.cuda.Stream)

    def queue(
        self, tensor: torch.Tensor, ready: torch.cuda.Event, work: Callable[[], None]
    ) -> Completion:
        """Queue ``work`` behind ``ready`` and behind the channel's earlier work."""
        device = tensor.device
        stream = self._stream_on(device)
        stream.wait_event(ready)
        begin = _event(enable_timing=True)
        end = _event(enable_timing=True)
        with torch.cuda.stream(stream):
            begin.record(stream)
            work()
            end.record(stream)
        tensor.record_stream(stream)
        return Completion(device, begin, end, self._clock_on(device))

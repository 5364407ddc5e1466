"""Hook: the communication hook of DDP that carries its buckets as a plan says.

[Note: where a failure is raised]
DDP waits in C++ for what a hook has returned, and knows no errors of Python there. So that wait
always ends well. A callback of autograd before it waits for the same collectives, where Ctrl-C gets
through, and another one behind it raises what became of them, when DDP has ended its backward in
good order.

[Note: sums become averages aside]
DDP leaves it to a hook to divide sums by the number of ranks. A thread does it as each bucket
arrives, while later ones travel and backward computes. On a device it is done on a stream of its
own, in which nothing waits for what backward computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent import futures
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from syncopate.artifacts.plan import Plan
from syncopate.collectives import Communicator
from syncopate.collectives.handle import Handle
from syncopate.engine import console
from syncopate.engine.checks.agreement import explaining
from syncopate.engine.ddp.buckets import Message, PlannedBuckets
from syncopate.engine.torch_compat import NO_BACKWARD, at_end_of_backward, graph_task_id
from syncopate.recipe import wire_dtype_of
from syncopate.units import dtype_name, format_count, format_seconds

_SETTLED = 2
"""The backward from which on DDP's buckets stay."""


class _Carried(NamedTuple):
    """How a bucket of DDP travels.

    Attributes:
        messages: what carries it.
        wire_dtype: what its elements travel as.
        averaged_before: whether they are divided before they are added: only float16 can overflow.
    """

    messages: Sequence[Message]
    wire_dtype: torch.dtype | None
    averaged_before: bool


class Carrier:
    """Carries the buckets of one DDP; the state of its communication hook.

    Args:
        communicator: joins the ranks, with as many channels as the plan has.
        planned: the plan's buckets.
        rebuilt: whether DDP cuts its buckets anew after the first iteration.
    """

    def __init__(
        self, communicator: Communicator, planned: PlannedBuckets, *, rebuilt: bool
    ) -> None:
        self._communicator = communicator
        self._planned = planned
        self._rebuilt = rebuilt
        self._scale = 1.0 / communicator.world_size
        self._aside = futures.ThreadPoolExecutor(1, thread_name_prefix="syncopate-ddp")
        self._stream: Any = None
        self._known: dict[tuple[int, int, torch.dtype], _Carried] = {}
        self._under_way: defaultdict[int, list[futures.Future[None]]] = defaultdict(list)
        self._seen: list[list[Tensor]] | None = []
        self._backwards = 0
        self._start = 0

    def carry(self, bucket: GradBucket) -> Future[Tensor]:
        """Launch what is in ``bucket``; return what will have its average.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        buffer = bucket.buffer()
        carried = self._carried(bucket, buffer)
        if carried.averaged_before:
            buffer.mul_(self._scale)
        with explaining():
            handles = [self._launched(message, buffer, carried) for message in carried.messages]
        average = partial(self._average, handles, buffer, carried)
        task = graph_task_id()
        devices: Any = [buffer.device] if buffer.is_cuda else None
        future: Future[Tensor] = Future(devices=devices)
        if task == NO_BACKWARD:  # a rank that has run out of inputs takes part, in join()
            with explaining():
                average()
            future.set_result(buffer)
            return future
        if task not in self._under_way:
            at_end_of_backward(partial(self._backward_ends, task))
        self._under_way[task].append(self._aside.submit(self._arrive, average, buffer, future))
        return future

    def _carried(self, bucket: GradBucket, buffer: Tensor) -> _Carried:
        """Return how a bucket travels; DDP's buckets come one after the other in each backward."""
        if bucket.index() == 0:
            self._start = 0
            self._under_way.clear()  # of a backward that raised
        key = (self._start, buffer.numel(), buffer.dtype)
        if key not in self._known:
            plan = self._planned.plan
            dtype = getattr(torch, wire_dtype_of(dtype_name(buffer.dtype), plan.wire_dtype))
            narrow = None if dtype == buffer.dtype or buffer.is_complex() else dtype
            messages = self._planned.messages(self._start, buffer)
            half = (narrow or buffer.dtype) == torch.float16
            self._known[key] = _Carried(messages, narrow, half)
        self._start += buffer.nbytes
        self._look(bucket)
        return self._known[key]

    def _look(self, bucket: GradBucket) -> None:
        """Compare DDP's buckets with the plan's, once they stay, and say what there is."""
        if self._seen is None:
            return
        if bucket.index() == 0:
            self._seen = []
        self._seen.append(bucket.parameters())
        if not bucket.is_last():
            return
        self._backwards += 1
        if self._backwards >= _SETTLED:
            differs = self._planned.difference(self._seen, rebuilt=self._rebuilt)
            if self._communicator.rank == 0:
                console.log(said(self._planned.plan, len(self._seen), differs))
            self._seen = None

    def _launched(self, message: Message, buffer: Tensor, carried: _Carried) -> Handle:
        part = buffer[message.start : message.stop]
        return self._communicator.run(
            message.recipe,
            torch.view_as_real(part).view(-1) if part.is_complex() else part,
            async_op=True,
            wire_dtype=carried.wire_dtype,
        )

    @torch.no_grad()
    def _average(self, handles: Sequence[Handle], buffer: Tensor, carried: _Carried) -> None:
        for handle in handles:
            handle.wait()
        if not carried.averaged_before:
            buffer.mul_(self._scale)

    def _arrive(self, average: partial[None], buffer: Tensor, future: Future[Tensor]) -> None:
        """Make an average, on the thread for it; see [Note: sums become averages aside]."""
        if buffer.is_cuda and self._stream is None:
            self._stream = torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream) if buffer.is_cuda else nullcontext():
            try:
                average()
            finally:  # [Note: where a failure is raised]
                future.set_result(buffer)

    def _backward_ends(self, task: int) -> None:
        """Wait for what this backward launched; see [Note: where a failure is raised]."""
        arriving = self._under_way.pop(task, [])
        futures.wait(arriving)
        at_end_of_backward(partial(_require_arrived, arriving))


def _require_arrived(arriving: Sequence[futures.Future[None]]) -> None:
    with explaining():
        for each in arriving:
            each.result()


def said(plan: Plan, count: int, differs: str) -> str:
    """Return the line that says which of its ``count`` buckets DDP has, and what to expect of them.

    ``differs`` says in words how they differ from the plan's, if they do.
    """
    if differs:
        return f"DDP trains by the plan as nearly as it can: {differs}"
    algorithms = "+".join(dict.fromkeys(bucket.push.algorithm for bucket in plan.buckets))
    expected = (
        f", an iteration is expected to take {format_seconds(plan.prediction.iteration_s)}"
        if plan.prediction
        else ""
    )
    return (
        f"DDP trains by the plan: its {format_count(count, 'bucket')} are the plan's "
        f"({plan.policy}, {algorithms}){expected}"
    )


@torch.compiler.disable
def carried_by_plan(state, bucket):  # type: ignore[no-untyped-def]
    """Let ``state``, a :class:`Carrier`, carry a bucket: DDP wants a plain, untyped function."""
    return state.carry(bucket)

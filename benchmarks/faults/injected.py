"""Injected: how what is wrong with a training is brought about.

Computation is slept; so a fault of computation is a longer sleep, in hooks of the model, within the
spans that the capture sees. Where ranks compute really, hooks multiply matrices, each rank on a
core of its own; there another job on such a core is a fault of its rank. Garbage collections are
real ones, of a large heap. A link is cut by the kernel's own shaping. Other jobs on the machine are
real processes that keep its cores busy. A slow parameter server sleeps before every update of a
slice.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import syncopate
from faults.named import (
    EVALUATING_S,
    EVERY,
    HOGS,
    LATE_S,
    SAVER,
    SAVING_S,
    SELDOM,
    SLEEPER,
    SLEPT_S,
    SLOW_BY,
    SLOW_RANK,
    STARVED,
    UNEQUAL,
    Fault,
)
from syncopate.artifacts.workload import Workload

_HEAP = 200_000
_SIDE = 96
"""Of the matrices that are multiplied: a tenth of a millisecond, about."""

Between = Callable[[int], None]
"""What a rank does before the forward of an iteration, by the number of that in its block."""

Spend = Callable[[float], None]
"""Computes, or sleeps, for so many seconds."""


@contextmanager
def injected(
    fault: Fault,
    *,
    faulty: bool,
    rank: int,
    model: nn.Module,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    spend: Spend = time.sleep,
) -> Iterator[Between]:
    """Let a rank have a fault while the block runs.

    Args:
        fault: which.
        faulty: whether this block has it.
        rank: of this process.
        model: distributed.
        workload: what it takes; where ranks really compute, the model itself takes next to nothing.
        optimizer: of the model.
        spend: how ranks compute.
    """
    names = fault.injected(faulty)
    hooks = _Hooks(model, workload, optimizer, spend)
    cleanups: list[Callable[[], None]] = [hooks.remove]
    factor = 1.0 if fault.real else 0.0
    if rank == SLOW_RANK and names & {"slow", "served-slow", "real-slow"}:
        factor += SLOW_BY - 1
    if factor:
        hooks.compute_more(lambda: factor)
    before = list(_before(names, rank, hooks, cleanups))
    if "batches" in (part.name for part in fault.parts):
        before.append(_batches(hooks, rank, fault.workers, even=not faulty))
    if "noise" in names and rank == 0:
        cleanups.append(_other_jobs(HOGS))
    if "neighbour" in names and rank == SLOW_RANK:
        cleanups.append(_other_jobs(1))  # which inherits the core of this rank

    def between(iteration: int) -> None:
        for one in before:
            one(iteration)

    try:
        yield between
    finally:
        for cleanup in cleanups:
            cleanup()


def _before(
    names: Collection[str], rank: int, hooks: _Hooks, cleanups: list[Callable[[], None]]
) -> Iterator[Between]:
    """Yield what a rank does before each forward."""
    at = [0]

    def count(iteration: int) -> None:
        at[0] = iteration

    yield count
    if rank == SLEEPER:
        if "backward" in names:
            hooks.sleep_in_backward(lambda: SLEPT_S)
        if "sleep" in names:
            hooks.sleep_in_backward(lambda: SLEPT_S * due(at[0], EVERY))
        if "backward-seldom" in names:
            hooks.sleep_in_backward(lambda: 2 * SLEPT_S * due(at[0], SELDOM))
    if (rank == STARVED and "input" in names) or "input-all" in names:
        yield lambda i: time.sleep(LATE_S)
    if rank == STARVED and "input-seldom" in names:
        yield lambda i: time.sleep(6 * LATE_S * due(i, SELDOM))
    if "gc" in names or ("gc-seldom" in names and rank == 1):
        heap = [[i] for i in range(_HEAP)]
        cleanups.append(heap.clear)
        if "gc" in names:
            yield lambda i: gc.collect() if i % EVERY == rank % EVERY else None
        else:
            yield lambda i: gc.collect() if due(i, SELDOM) else None
    if rank == SAVER and "checkpoint" in names:
        yield _standing("checkpoint", SAVING_S)
    if rank == SAVER and "unmarked" in names:
        yield _standing("", SAVING_S)
    if "evaluation" in names:
        yield _standing("evaluation", EVALUATING_S)


def due(iteration: int, every: int) -> bool:
    """Say whether what happens now and then happens in this iteration of a block; not in its 0."""
    return iteration % every == every - 1


def _standing(name: str, seconds: float) -> Between:
    def between(iteration: int) -> None:
        if not due(iteration, EVERY):
            return
        if name:
            with syncopate.pause(name):
                time.sleep(seconds)
        else:
            time.sleep(seconds)

    return between


def _batches(hooks: _Hooks, rank: int, ranks: int, *, even: bool) -> Between:
    """Let batches differ; where they are even, they are as long as they would be in the mean."""
    longer = [0.0]
    hooks.compute_more(lambda: longer[0], update=False)

    def between(iteration: int) -> None:
        each = [UNEQUAL * random.Random(f"{iteration} {one}").random() for one in range(ranks)]
        longer[0] = sum(each) / ranks if even else each[rank]

    return between


def _other_jobs(count: int) -> Callable[[], None]:
    """Start processes that compute without end; return what ends them."""
    endless = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    jobs = [subprocess.Popen(endless) for _ in range(count)]

    def end() -> None:
        for job in jobs:
            job.kill()
            job.wait()

    return end


def on_a_core(rank: int) -> Spend:
    """Keep this process on a core; return a function that computes there.

    It computes as much as it does in that time on a quiet core, also beside other programs.
    """
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # those that communicate too
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})
    one = torch.ones(_SIDE, _SIDE)
    out = torch.empty_like(one)

    def times(count: int) -> None:
        for _ in range(count):
            torch.mm(one, one, out=out)

    times(200)
    tries = []
    for _ in range(20):
        begun_s = time.thread_time()
        times(100)
        tries.append((time.thread_time() - begun_s) / 100)
    each_s = min(tries)
    return lambda seconds: times(round(seconds / each_s))


class _Hooks:
    """More within the computation of a model."""

    def __init__(
        self, model: nn.Module, workload: Workload, optimizer: torch.optim.Optimizer, spend: Spend
    ) -> None:
        self._model, self._work, self._optimizer = model, workload, optimizer
        self._spend = spend
        self._handles: list[Any] = []

    def compute_more(self, more: Callable[[], float], *, update: bool = True) -> None:
        """Compute longer, by this part of what everything takes."""
        work, add = self._work, self._handles.append
        add(self._model.register_forward_pre_hook(self._spending(more, work.forward_s)))
        names = {name.removeprefix("module."): p for name, p in self._model.named_parameters()}
        named = [(names[t.name], t.backward_s) for t in work.tensors]
        for places in _grouped(named):
            lasts_s = sum(s for _, s in places)
            add(places[-1][0].register_hook(self._spending(more, lasts_s)))
        if update:
            add(self._optimizer.register_step_pre_hook(self._spending(more, work.update_s)))

    def _spending(self, more: Callable[[], float], lasts_s: float) -> Callable[..., None]:
        return lambda *_: self._spend(more() * lasts_s)

    def sleep_in_backward(self, seconds: Callable[[], float]) -> None:
        """Sleep in the midst of backward."""
        parameters = list(self._model.parameters())
        hook = parameters[len(parameters) // 2].register_hook(lambda _: time.sleep(seconds()))
        self._handles.append(hook)

    def remove(self) -> None:
        """Compute as before."""
        for handle in self._handles:
            handle.remove()


_GROUP = 8
"""Tensors between two sleeps: a sleep of microseconds takes longer than it should."""


def _grouped(
    named: Sequence[tuple[nn.Parameter, float]],
) -> list[Sequence[tuple[nn.Parameter, float]]]:
    return [named[at : at + _GROUP] for at in range(0, len(named), _GROUP)]

"""Injected: what can be wrong with a training, and how that is brought about.

Computation is slept; so a fault of computation is a longer sleep, in hooks of the model, within the
spans that the capture sees. Garbage collections are real ones, of a large heap. A link is cut by
the kernel's own shaping. Other jobs on the machine are real processes that keep its cores busy. A
slow parameter server sleeps before every update of a slice.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

import syncopate
from syncopate.zoo.replay import Replay

SLOW_RANK, SLOW_BY = 1, 3.0
SLEEPER, SLEPT_S = 2, 0.2
CUT_HOST, CUT_TO = 2, 0.1
SLOW_SERVER, UPDATING_S = 1, 0.004
STARVED, LATE_S = 3, 0.06
SAVER, SAVING_S = 0, 0.25
EVALUATING_S = 0.3
EVERY = 4
"""What happens now and then happens in each of so many iterations."""

_HEAP = 200_000
_HOGS = 3


class Fault(NamedTuple):
    """One thing that is wrong, and what explain has to say first.

    Attributes:
        name: on the command line.
        title: in the table.
        kinds: causes that name it; any of them will do. Empty: nobody may be blamed.
        ranks: whose it is; empty: of all ranks, or of none. Of a server, its rank among servers.
        hosts: of the lab.
        servers: how many of the hosts, the last ones, are parameter servers.
        cut: the host whose link is cut; -1: none.
        iterations: counted ones of a block.
        plan: what trains with it: ``"best"``, ``"single"`` or ``"each"``.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    hosts: int = 4
    servers: int = 0
    cut: int = -1
    iterations: int = 12
    plan: str = "best"

    @property
    def workers(self) -> int:
        """How many hosts train."""
        return self.hosts - self.servers


FAULTS = {
    row.name: row
    for row in (
        Fault("slow", f"rank {SLOW_RANK} computes {SLOW_BY:g}x as long", ("compute",), (1,)),
        Fault(
            "backward", f"{SLEPT_S * 1e3:.0f} ms more in backward of rank 2", ("compute",), (2,)
        ),
        Fault("sleep", f"the same in one iteration of {EVERY}", ("pause",), (SLEEPER,)),
        Fault("link", f"the link of rank 2 cut to {CUT_TO:g}", ("link",), (CUT_HOST,),
              cut=CUT_HOST, iterations=6),
        Fault("input", f"rank {STARVED} loads {LATE_S * 1e3:.0f} ms late", ("input",), (STARVED,)),
        Fault("input-all", f"every rank loads {LATE_S * 1e3:.0f} ms late", ("input",)),
        Fault("gc", f"garbage collection, on each rank in turn, {EVERY} apart",
              ("garbage collection",), (0, 1, 2, 3)),
        Fault("checkpoint", f"rank {SAVER} saves in one iteration of {EVERY}", ("checkpoint",),
              (SAVER,)),
        Fault("unmarked", "the same, not marked in the script", ("pause",), (SAVER,)),
        Fault("evaluation", f"every rank evaluates in one iteration of {EVERY}", ("evaluation",),
              (0, 1, 2, 3)),
        Fault("each", "one bucket for each of 480 tensors", ("plan",), plan="each"),
        Fault("single", "a single bucket", ("plan",), plan="single"),
        Fault("server", f"server {SLOW_SERVER} takes {UPDATING_S * 1e3:.0f} ms more for an update",
              ("slow server",), (SLOW_SERVER,), servers=2),
        Fault("server-link", f"the link of server {SLOW_SERVER} cut to {CUT_TO:g}",
              ("slow server",), (SLOW_SERVER,), servers=2, cut=2 + SLOW_SERVER,
              iterations=6),
        Fault("served-slow", f"rank {SLOW_RANK} computes {SLOW_BY:g}x as long, with 2 servers",
              ("compute",), (SLOW_RANK,), servers=2),
        Fault("healthy", "nothing, 4 ranks", ()),
        Fault("healthy-2", "nothing, 2 ranks", (), hosts=2),
        Fault("healthy-served", "nothing, 2 ranks and 2 servers", (), servers=2),
        Fault("noise", f"{_HOGS} other jobs on the machine", ()),
    )
}  # fmt: skip
"""Name -> fault, in the order of the table."""

Between = Callable[[int], None]
"""What a rank does before the forward of an iteration, by the number of that in its block."""


@contextmanager
def injected(
    fault: Fault, rank: int, model: nn.Module, replay: Replay, optimizer: torch.optim.Optimizer
) -> Iterator[Between]:
    """Let a rank have a fault while the block runs.

    Args:
        fault: which.
        rank: of this process.
        model: distributed.
        replay: the same model as it was made, which knows its times.
        optimizer: of the model.
    """
    hooks = _Hooks(model, replay, optimizer)
    between: Between = lambda i: None  # noqa: E731
    cleanups: list[Callable[[], None]] = []
    if fault.name in ("slow", "served-slow") and rank == SLOW_RANK:
        hooks.slow_down(SLOW_BY - 1)
    elif fault.name == "backward" and rank == SLEEPER:
        hooks.sleep_in_backward(lambda: SLEPT_S)
    elif fault.name == "sleep" and rank == SLEEPER:
        at = [0]

        def between(i: int) -> None:
            at[0] = i

        hooks.sleep_in_backward(lambda: SLEPT_S if _due(at[0]) else 0.0)
    elif (fault.name == "input" and rank == STARVED) or fault.name == "input-all":
        between = lambda i: time.sleep(LATE_S)  # noqa: E731
    elif fault.name == "gc":
        heap = [[i] for i in range(_HEAP)]
        cleanups.append(heap.clear)
        between = lambda i: gc.collect() if i % EVERY == rank % EVERY else None  # noqa: E731
    elif fault.name in ("checkpoint", "unmarked") and rank == SAVER:
        between = _standing("checkpoint" if fault.name == "checkpoint" else "", SAVING_S)
    elif fault.name == "evaluation":
        between = _standing("evaluation", EVALUATING_S)
    elif fault.name == "noise" and rank == 0:
        cleanups.append(_other_jobs(_HOGS))
    try:
        yield between
    finally:
        hooks.remove()
        for cleanup in cleanups:
            cleanup()


def _due(iteration: int) -> bool:
    """Say whether what happens now and then happens in this iteration of a block; not in its 0."""
    return iteration % EVERY == EVERY - 1


def _standing(name: str, seconds: float) -> Between:
    def between(iteration: int) -> None:
        if not _due(iteration):
            return
        if name:
            with syncopate.pause(name):
                time.sleep(seconds)
        else:
            time.sleep(seconds)

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


class _Hooks:
    """Sleeps within the computation of a model."""

    def __init__(self, model: nn.Module, replay: Replay, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._replay, self._optimizer = model, replay, optimizer
        self._handles: list[Any] = []

    def slow_down(self, more: float) -> None:
        """Compute longer, by this part of what everything takes."""
        work = self._replay.workload
        add = self._handles.append
        add(self._model.register_forward_pre_hook(_sleeping(more * work.forward_s)))
        parameters = dict(self._model.named_parameters())
        named = [(parameters[t.name], t.backward_s) for t in work.tensors]
        for places in _grouped(named):
            parameter = places[-1][0]
            add(parameter.register_hook(_sleeping(more * sum(s for _, s in places))))
        add(self._optimizer.register_step_pre_hook(_sleeping(more * work.update_s)))

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


def _sleeping(seconds: float) -> Callable[..., None]:
    return lambda *_: time.sleep(seconds)

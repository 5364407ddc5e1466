"""Record: what a training of plain torch does, noted beside it in its process.

torch's flight recorder keeps the collectives of every backend, and with Gloo nothing but code
inside the process gets at them: the signals, pipes and files that torch knows belong to NCCL. The
steps of optimizers, which say where iterations begin, come from torch's hooks, and so do forwards
and backwards (:mod:`syncopate.tracing.foreign.recording.phases`).

``torch._C._distributed_c10d._dump_fr_trace`` is private to torch and the only way to read the
recorder; ``torch.distributed.debug`` reads it so. It gives all that the recorder holds, and a copy
of it is asked for again and again, so the recorder is kept small where it is read all the time.
"""

from __future__ import annotations

import os
import pickle
import runpy
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from syncopate.errors import EngineError, InvalidValueError
from syncopate.tracing.foreign.recording.phases import Phases
from syncopate.tracing.foreign.recording.recorded import (
    Block,
    RecordedRank,
    Step,
    block_of,
)

T = TypeVar("T")

BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE"
"""torch's environment variable: how many collectives the flight recorder keeps; 0: it is off."""

RING = 2_000
"""How many collectives are kept where nothing is said: torch writes them down in 20 ms."""


def reserve(environment: MutableMapping[str, str], entries: int | None = None) -> int:
    """Tell the flight recorder how many collectives to keep, before torch is loaded.

    Args:
        environment: of this process.
        entries: how many; None: as the environment says, and :data:`RING` where it says nothing.

    Returns:
        How many.

    Raises:
        InvalidValueError: no positive number.
    """
    asked = environment.get(BUFFER_SIZE, str(RING)) if entries is None else str(entries)
    if not asked.isdecimal() or int(asked) < 1:
        what = BUFFER_SIZE if entries is None else "--entries"
        raise InvalidValueError(what, asked, "an integer >= 1")
    environment[BUFFER_SIZE] = asked
    return int(asked)


class Recording:
    """Notes what this process does from now on.

    Args:
        most: how many steps of optimizers to keep; the last ones are kept.

    Attributes:
        noticed: called when an optimizer steps, with True, and when a forward begins, with False.

    Raises:
        EngineError: this torch has no flight recorder for every backend.
    """

    def __init__(self, most: int) -> None:
        import torch._C._distributed_c10d as c10d  # noqa: PLC0415  # only who records needs torch
        from torch.optim import optimizer  # noqa: PLC0415

        self._dump: Callable[[bool, bool, bool], bytes] | None
        self._dump = getattr(c10d, "_dump_fr_trace", None)
        if self._dump is None:
            raise EngineError(
                "this torch has no flight recorder for every backend; take torch 2.11 or newer"
            )
        self.noticed: Callable[[bool], None] = lambda _steps: None
        self._steps: deque[Step] = deque(maxlen=most)
        self._optimizers = 0
        self._numbers: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._began_ns = time.time_ns()
        self._first: int | None = 0
        self._over: dict[int, bool] = {}
        self._step_ns = 0
        self._phases = Phases(most, lambda: self.noticed(False))
        self._hooks = [
            optimizer.register_optimizer_step_pre_hook(self._before),
            optimizer.register_optimizer_step_post_hook(self._after),
        ]

    def _before(self, *_: object) -> None:
        self.noticed(True)
        self._step_ns = time.time_ns()

    def _after(self, optimizer: object, *_: object) -> None:
        # [which optimizer it is, how many steps it made]
        known = self._numbers.get(optimizer)
        if known is None:
            known = self._numbers[optimizer] = [self._optimizers, 0]
            self._optimizers += 1
        step = Step(
            optimizer=known[0],
            name=type(optimizer).__name__,
            number=known[1],
            start_ns=self._step_ns,
            end_ns=time.time_ns(),
        )
        self._steps.append(step)
        known[1] += 1
        self._phases.rearm()

    def forget(self) -> None:
        """Drop what was noted: this is a copy of the process that did it."""
        self._steps.clear()
        self._numbers.clear()
        self._optimizers = 0
        self._phases.forget()
        self._began_ns = time.time_ns()
        # What the recorder holds so far is of the other process. Asking it here could wait for ever
        # for a lock that a thread held which is not there any more.
        self._first = None
        self._over = {}

    def stop(self) -> None:
        """Stop recording."""
        self._phases.stop()
        for hook in self._hooks:
            hook.remove()

    def about(self, rank: int, world_size: int) -> RecordedRank:
        """Return the rank and job of the recording."""
        import torch  # noqa: PLC0415

        return RecordedRank(
            rank=rank,
            world_size=world_size,
            host=socket.gethostname(),
            torch=str(torch.__version__),
            began_ns=self._began_ns,
        )

    def launched(self) -> int:
        """Return how many collectives there were, about; it takes microseconds."""
        found = self._dumped(entries=False)["pg_status"]
        return sum(max(group["last_enqueued_collective"], 0) for group in found.values())

    def take(self) -> Block:
        """Return what this rank did since this was last called.

        While torch writes down its part, no Python code runs in this process: 10 us for each
        collective that the recorder keeps. A collective that is under way is returned again when it
        is over.
        """
        steps, forwards = _taken(self._steps), _taken(self._phases.forwards)
        backwards = _taken(self._phases.backwards)
        dump = self._dumped()
        entries = [one for one in dump["entries"] if one["time_created_ns"] >= self._began_ns]
        if self._first is None and entries:
            self._first = min(one["record_id"] for one in entries)
        over = {one["record_id"]: bool(one["retired"]) for one in entries}
        known, self._over = self._over, over
        fresh = [
            one
            for one in entries
            if over[one["record_id"]] > known.get(one["record_id"], False)
            or one["record_id"] not in known
        ]
        return block_of(
            dump["pg_config"],
            fresh,
            self._first or 0,
            Block(
                written_ns=(now_ns := time.time_ns()),
                ahead_ns=now_ns - time.monotonic_ns(),
                steps=tuple(steps),
                forwards=tuple(forwards),
                backwards=tuple(backwards),
            ),
        )

    def _dumped(self, *, entries: bool = True) -> dict[str, Any]:
        """Return what torch writes of the recorder, without the stacks of calls."""
        assert self._dump is not None
        found: dict[str, Any] = pickle.loads(self._dump(entries, False, False))
        return found


def _taken(held: deque[T]) -> list[T]:
    """Return what a queue holds that others append to, and empty it."""
    return [held.popleft() for _ in range(len(held))]


def run_script(script: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script as ``python script arguments`` would, in this process.

    Args:
        script: its path, or the name of a module.
        arguments: what follows it.
        module: whether it is a module, as with ``python -m``.
    """
    sys.argv = [script, *arguments]
    sys.path[0] = os.getcwd() if module else str(Path(script).resolve().parent)
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")

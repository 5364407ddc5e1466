"""Record: what a training of plain torch does, noted beside it in its process.

torch's flight recorder keeps the collectives of every backend, and with Gloo nothing but code
inside the process gets at them: the signals, pipes and files that torch knows belong to NCCL. The
steps of optimizers, which say where iterations begin, come from torch's hooks, and so do forwards
and backwards (:mod:`syncopate.tracing.foreign.phases`).

``torch._C._distributed_c10d._dump_fr_trace_json`` is private to torch and the only way to read the
recorder; ``torch.distributed.debug`` reads it so.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from syncopate.errors import EngineError, InvalidValueError
from syncopate.tracing.foreign.phases import Phases
from syncopate.tracing.foreign.recorded import RecordedRank, Step, recorded_json

BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE"
"""torch's environment variable: how many collectives the flight recorder keeps; 0: it is off."""

ENTRIES = 10_000
"""How many collectives are kept where nobody says it: about 20 MB."""


def reserve(environment: MutableMapping[str, str], entries: int | None = None) -> int:
    """Tell the flight recorder how many collectives to keep, before torch is loaded.

    Args:
        environment: of this process.
        entries: how many; None: as the environment says, else :data:`ENTRIES`.

    Returns:
        How many.

    Raises:
        InvalidValueError: no positive number.
    """
    asked = environment.get(BUFFER_SIZE, str(ENTRIES)) if entries is None else str(entries)
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

        self._dump: Callable[[], bytes] | None = getattr(c10d, "_dump_fr_trace_json", None)
        if self._dump is None:
            raise EngineError(
                "this torch has no flight recorder for every backend; take torch 2.11 or newer"
            )
        self.noticed: Callable[[bool], None] = _nothing
        self._steps: deque[Step] = deque(maxlen=most)
        self._optimizers = 0
        self._numbers: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._began_ns = time.time_ns()
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

    def stop(self) -> None:
        """Note no more."""
        self._phases.stop()
        for hook in self._hooks:
            hook.remove()

    def written(self, rank: int, world_size: int) -> bytes:
        """Return what this rank did so far, as the content of a file.

        While torch writes down its part, no Python code runs in this process: a quarter of a second
        for 10,000 collectives.
        """
        import torch  # noqa: PLC0415

        assert self._dump is not None
        dump = self._dump()
        return recorded_json(
            RecordedRank(
                rank=rank,
                world_size=world_size,
                host=socket.gethostname(),
                torch=str(torch.__version__),
                steps=tuple(self._steps.copy()),
                forwards=tuple(self._phases.forwards.copy()),
                backwards=tuple(self._phases.backwards.copy()),
                began_ns=self._began_ns,
                written_ns=time.time_ns(),
                flight_recorder={},
            ),
            dump,
        )


def _nothing(_steps: bool) -> None:
    pass


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

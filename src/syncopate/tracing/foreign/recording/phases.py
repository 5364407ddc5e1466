"""Phases: when forwards ran and backwards began, by torch's hooks on modules and tensors.

The outermost module that a training calls is its forward. A hook on all modules tells when it
begins; it is taken away until that module is done, so the modules inside cost nothing. A hook on
its outputs tells when backward comes to them. The loss, a module or not, lies between the two.

[Note: modules that backward calls] Activation checkpointing runs modules again in backward. Until
the next step only modules that were outermost before count as another forward.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any

_GLOBAL = r"Using `torch.compile\(module\)` when there are global hooks"
"""How torch's warning begins, whose reason is gone by the time that compiled code runs."""

_MOST_OUTPUTS = 16


class Phases:
    """Notes when forwards and backwards began in this process.

    Args:
        most: how many to keep; the last ones are kept.
        noticed: called when a forward begins.

    Attributes:
        forwards: ``(begin, end)`` of each, in nanoseconds since 1970.
        backwards: when each came to the first output of its forward.
    """

    def __init__(self, most: int, noticed: Callable[[], None]) -> None:
        from torch import compiler  # noqa: PLC0415  # only who records needs torch
        from torch.nn.modules import module  # noqa: PLC0415

        self.forwards: deque[tuple[int, int]] = deque(maxlen=most)
        self.backwards: deque[int] = deque(maxlen=most)
        self._noticed = noticed
        self._register = module.register_module_forward_pre_hook
        self._compiling = compiler.is_compiling
        self._outermost: set[int] = set()
        self._began_ns = 0
        self._backward = self._unseen = False
        self._leaving: Any = None
        self._entering: Any = None
        warnings.filterwarnings("ignore", _GLOBAL)
        self.rearm()

    def rearm(self) -> None:
        """Await the next forward, also after one that failed."""
        self.stop()
        self._backward = False
        if self._unseen:
            self.forget()
        else:
            self._entering = self._register(self._enters)

    def stop(self) -> None:
        """Stop recording."""
        for hook in (self._entering, self._leaving):
            if hook is not None:
                hook.remove()
        self._entering = self._leaving = None

    def forget(self) -> None:
        """Drop what was noted."""
        self.forwards.clear()
        self.backwards.clear()

    def _enters(self, module: Any, _inputs: object) -> None:
        if self._compiling():  # compiled in its place, the module has no hooks when it runs
            self._unseen = True
            return
        if self._backward and id(module) not in self._outermost:
            return  # [Note: modules that backward calls]
        self._backward = False
        self._outermost.add(id(module))
        self._entering.remove()
        self._noticed()
        self._began_ns = time.time_ns()
        try:
            self._leaving = module.register_forward_hook(self._leaves)
        except Exception:  # a module of TorchScript, say: no training is to fail for this
            self._unseen = True

    def _leaves(self, _module: object, _inputs: object, outputs: Any) -> None:
        self.forwards.append((self._began_ns, time.time_ns()))
        self._leaving.remove()
        self._entering = self._register(self._enters)
        try:
            for tensor in islice(_differentiable(outputs), _MOST_OUTPUTS):
                tensor.register_hook(self._comes_back)
        except Exception:  # a tensor that is being transformed, say
            self._unseen = True

    def _comes_back(self, _gradient: object) -> None:
        if not self._backward:
            self._backward = True
            self.backwards.append(time.time_ns())


def _differentiable(outputs: Any) -> Iterator[Any]:
    """Yield the tensors among a module's outputs that backward comes to."""
    from torch import Tensor  # noqa: PLC0415

    if isinstance(outputs, Tensor):
        if outputs.requires_grad:
            yield outputs
    elif isinstance(outputs, Mapping):
        for one in outputs.values():
            yield from _differentiable(one)
    elif isinstance(outputs, list | tuple):
        for one in outputs:
            yield from _differentiable(one)
    elif is_dataclass(outputs):
        yield from _differentiable(vars(outputs))

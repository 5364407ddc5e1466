"""Stamps: when each gradient of a model becomes ready, and when forward uses which parameters.

Hooks note one stamp each (:mod:`syncopate.tracing.clocks`), read after the iteration, so that
nothing waits inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from syncopate.profiling.forward_order import ForwardOrder
from syncopate.profiling.state import trainable
from syncopate.tracing.clocks import Clock


class StampedModel(ForwardOrder):
    """Hooks on a model for the length of a ``with`` block, which stamp what they note.

    Call ``start_iteration`` before forward and ``start_backward`` after it; read the durations
    after ``clock.finish()``.
    """

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        super().__init__(model)
        self.clock = clock
        self._parameters = trainable(model)
        self._ready: dict[str, Any] = {}
        self._calls: list[tuple[nn.Module, Any, Any, int]] = []
        self._open: list[tuple[nn.Module, Any]] = []
        self.backward_start: Any = None
        """The stamp of :meth:`start_backward`."""

    def __enter__(self) -> Self:
        super().__enter__()
        for name, parameter in self._parameters.items():
            hook = self._ready_hook(name)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        for module in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._enter_hook, prepend=False))
            self._handles.append(module.register_forward_hook(self._leave_hook, prepend=True))
        return self

    def start_iteration(self) -> None:
        """Forget the previous iteration's stamps."""
        self._ready.clear()
        self._calls.clear()
        self._open.clear()
        self.forget()

    def start_backward(self) -> Any:
        """Stamp the start of backward and return the stamp."""
        self.backward_start = self.clock.stamp()
        return self.backward_start

    def ready_s(self) -> dict[str, float]:
        """Return, per parameter, the time from the start of backward to its gradient.

        They stand in the order of the stamps; parameters without a gradient are absent.
        """
        return {
            name: self.clock.between_s(self.backward_start, stamp)
            for name, stamp in self._ready.items()
        }

    def module_forward_s(self) -> dict[str, float]:
        """Return, per parameter, the forward time of the modules that own it.

        Submodules with parameters of their own are left out of it; what remains is shared among
        the module's parameters by their size.
        """
        forward_s: dict[str, float] = {}
        inner_s: dict[int, float] = {}
        # A call is noted when it returns, so the calls inside it stand before it.
        for module, start, end, depth in self._calls:
            duration_s = self.clock.between_s(start, end)
            own_s = max(duration_s - inner_s.pop(depth + 1, 0.0), 0.0)
            inner_s[depth] = inner_s.get(depth, 0.0) + duration_s
            for name, share in self._shares(module):
                forward_s[name] = forward_s.get(name, 0.0) + own_s * share
        return forward_s

    def _shares(self, module: nn.Module) -> list[tuple[str, float]]:
        owned = [p for p in module._parameters.values() if id(p) in self._names]
        total = sum(p.numel() for p in owned if p is not None)
        return [
            (self._names[id(p)], p.numel() / total if total else 1.0 / len(owned))
            for p in owned
            if p is not None
        ]

    def _ready_hook(self, name: str) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            # A gradient that is accumulated several times is ready after the last one.
            stamp = self.clock.stamp()
            self._ready.pop(name, None)
            self._ready[name] = stamp

        return hook

    def _enter_hook(self, module: nn.Module, _: Any) -> None:
        self._open.append((module, self.clock.stamp()))

    def _leave_hook(self, module: nn.Module, _: Any, __: Any) -> None:
        end = self.clock.stamp()
        entered, start = self._open.pop()
        if entered is module:
            self._calls.append((module, start, end, len(self._open)))

"""Updaters: what updates a slice: an optimizer, or a class of one's own that is imported by name.

[Note: which classes] Who has the job's key may declare any rules, and importing a module runs it.
So a server imports only the names that its own command line or environment allows. A worker sends
no more than a name, numbers and texts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from syncopate.errors import ParameterServerError
from syncopate.paramserver.storage import optimizers
from syncopate.paramserver.storage.optimizers import State
from syncopate.protocol.rules import MEAN_SQUARE, STEPS, OptimizerRule, Updater
from syncopate.units import dtype_name

Updating = Callable[[float | None, Tensor, Tensor, State], None]
"""Updates weights by a gradient and what is remembered, at a learning rate or that of the rule."""


class Own(Protocol):
    """The interface of an updater class that users write.

    It is made once, with the options of :class:`~syncopate.protocol.rules.Updater` as keywords.
    """

    def step(self, weights: Tensor, gradient: Tensor, state: State, lr: float) -> None:
        """Updating ``weights`` and ``state`` in place.

        Args:
            weights: shape (elements,): a tensor, or a slice of one that has more than 4 MiB.
            gradient: likewise; may be overwritten.
            state: empty before the first update of the slice. What is put there is kept, under the
                names that the rule has.
            lr: the learning rate.
        """


class Updaters:
    """The updaters of one server."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        """Import nothing but ``allowed``, and nothing yet; see [Note: which classes]."""
        self._allowed = sorted(allowed)

    def of(self, rule: OptimizerRule) -> Updating:
        """Return what updates by ``rule``.

        Raises:
            ParameterServerError: a class is not allowed, not there, or cannot be made.
        """
        if not isinstance(rule, Updater):
            return partial(optimizers.step, rule)
        if rule.name not in self._allowed:
            known = ", ".join(self._allowed) or "none"
            raise ParameterServerError(
                f"a worker asks for the updater {rule.name!r}, which this server is not allowed to "
                f"import; allowed: {known}. Start servers with `--updater {rule.name}`"
            )
        return _Step(rule, _made(rule)).update


def _made(rule: Updater) -> Own:
    """Import a class and make one."""
    module, _, name = rule.name.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ParameterServerError(
            f"the updater {rule.name!r} cannot be imported ({_said(error)}); its module has to be "
            "where this server's Python looks for modules (PYTHONPATH)"
        ) from error
    try:
        own: Own = found(**rule.options)
    except Exception as error:
        reason = f"the updater {rule.name!r} cannot be made with {rule.options}: {_said(error)}"
        raise ParameterServerError(reason) from error
    if not callable(getattr(own, "step", None)):
        reason = f"the updater {rule.name!r} has no step(weights, gradient, state, lr)"
        raise ParameterServerError(reason)
    return own


class _Step:
    """The steps of a class of one's own, and what is wrong with them."""

    def __init__(self, rule: Updater, own: Own) -> None:
        self._rule, self._own = rule, own

    @torch.no_grad()
    def update(self, lr: float | None, weights: Tensor, gradient: Tensor, state: State) -> None:
        rate = self._rule.lr if lr is None else lr
        try:
            self._own.step(weights, gradient, state, rate)
        except Exception as error:
            reason = f"the updater {self._rule.name!r} raised {_said(error)}"
            raise ParameterServerError(reason) from error
        for name, value in state.items():
            if name != MEAN_SQUARE:  # which is delay compensation's
                self._require_kept(name, value, weights)

    def _require_kept(self, name: str, value: Tensor, weights: Tensor) -> None:
        """Refuse state that a server could not keep."""
        if name in self._rule.state:
            steps = name == STEPS
            dtype, shape = (torch.int64, (1,)) if steps else (weights.dtype, weights.shape)
            if isinstance(value, Tensor) and (value.dtype, value.shape) == (dtype, shape):
                return
            rule = f"a tensor of {dtype_name(dtype)}, shape {tuple(shape)}"
        else:
            rule = f"one of those that its rule names: {', '.join(self._rule.state) or 'none'}"
        what = f"{type(value).__name__} as state {name!r}"
        reason = f"the updater {self._rule.name!r} left a {what}; it must be {rule}"
        raise ParameterServerError(reason)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

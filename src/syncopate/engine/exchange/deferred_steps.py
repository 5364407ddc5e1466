"""Deferred steps: what an optimizer's step would have done, done for some parameters later.

[Note: a copy of the optimizer] A deferred step is the optimizer's own ``step``, called on a copy of
it. The copy has the same class, the same state, and the values that the groups had in the step: a
schedule may change them before the copy steps. Its parameters are others on the same memory, each
with its average as gradient, so that nobody sees ``parameter.grad`` come and go.
"""

from __future__ import annotations

import copy as copy_module
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from syncopate.engine.exchange.groups import parameters_of
from syncopate.engine.exchange.optimizers import step_of
from syncopate.engine.exchange.seen import aliases

StandIn = Callable[[Tensor], tuple[int, nn.Parameter] | None]


class DeferredStep:
    """One step of an optimizer on some parameters; see [Note: a copy of the optimizer].

    Args:
        optimizer: whose step.
        noted: its attributes when it stepped.
        stand_in: returns of a parameter its index and the parameter that stands for it.
        indices: of the parameters to update.
        gradients: per index the gradient.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        noted: Mapping[str, Any],
        stand_in: StandIn,
        indices: set[int],
        gradients: Mapping[int, Tensor],
    ) -> None:
        self._optimizer = optimizer
        self._copy = object.__new__(type(optimizer))
        vars(self._copy).update(noted)
        self._pairs: list[tuple[Tensor, nn.Parameter, Tensor]] = []
        self._copy.param_groups = []
        for group, parameters in zip(optimizer.param_groups, parameters_of(optimizer), strict=True):
            standing = []
            for parameter in parameters:
                found = stand_in(parameter)
                if found is not None and found[0] in indices:
                    standing.append(found[1])
                    self._pairs.append((parameter, found[1], gradients[found[0]]))
            if standing:
                values = {key: _as_now(value) for key, value in group.items() if key != "params"}
                self._copy.param_groups.append(values | {"params": standing})

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the parameters, on whatever thread."""
        state = raw_state(self._optimizer)
        known: dict[Tensor, Any] = {
            stand_in: state[p] for p, stand_in, _ in self._pairs if p in state
        }
        self._copy.state = defaultdict(dict, known)
        for _, stand_in, gradient in self._pairs:
            stand_in.grad = gradient
        try:
            step_of(type(self._copy))(self._copy)
        finally:
            for parameter, stand_in, _ in self._pairs:
                stand_in.grad = None
                if stand_in in self._copy.state:
                    state[parameter] = self._copy.state[stand_in]


def _as_now(value: Any) -> Any:
    """Return a value of a group that nobody changes; a schedule fills a tensor anew."""
    return value.clone() if isinstance(value, Tensor) else value


class WatchedState(defaultdict[Any, Any]):
    """The state of an optimizer: every look at it waits for deferred steps.

    Attributes:
        plain: the entries themselves; to look there waits for nobody.
    """

    def __init__(self, plain: defaultdict[Any, Any], finish: Callable[[], None]) -> None:
        super().__init__(dict)
        self.plain = plain
        self._finish = finish

    @classmethod
    def install(cls, optimizer: Optimizer, finish: Callable[[], None]) -> None:
        """Let looks at the state of ``optimizer`` call ``finish`` before.

        What somebody else holds of it becomes the optimizer's own.
        """
        plain = raw_state(optimizer)
        for parameter in plain:
            # What it was loaded from is often kept, and nobody is to wait for that.
            if aliases.is_held(plain, parameter):
                plain[parameter] = {k: _as_now(value) for k, value in plain[parameter].items()}
        optimizer.state = cls(plain, finish)

    @staticmethod
    def remove(optimizer: Optimizer) -> None:
        """Give ``optimizer`` plain state again."""
        optimizer.state = raw_state(optimizer)

    def _looked(self) -> defaultdict[Any, Any]:
        self._finish()
        return self.plain

    def __getitem__(self, key: Any) -> Any:
        return self._looked()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._looked()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._looked()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._looked()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._looked())

    def __len__(self) -> int:
        return len(self._looked())

    def __eq__(self, other: object) -> bool:
        return self._looked() == other

    def __ne__(self, other: object) -> bool:
        return self._looked() != other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._looked())

    def __bool__(self) -> bool:
        return bool(self._looked())

    def __reversed__(self) -> Iterator[Any]:
        return iter(list(self._looked())[::-1])

    def __or__(self, other: Any) -> Any:
        return self._looked() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._looked()

    def __ior__(self, other: Any) -> Any:
        self._looked().update(other)
        return self

    def keys(self) -> Any:
        """As of a dictionary."""
        return self._looked().keys()

    def values(self) -> Any:
        """As of a dictionary."""
        return self._looked().values()

    def items(self) -> Any:
        """As of a dictionary."""
        return self._looked().items()

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dictionary."""
        return self._looked().get(key, default)

    def pop(self, *args: Any) -> Any:
        """As of a dictionary."""
        return self._looked().pop(*args)

    def popitem(self) -> Any:
        """As of a dictionary."""
        return self._looked().popitem()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As of a dictionary."""
        return self._looked().setdefault(key, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dictionary."""
        self._looked().update(*args, **kwargs)

    def clear(self) -> None:
        """As of a dictionary."""
        self._looked().clear()

    def copy(self) -> Any:
        """As of a dictionary."""
        return self._looked().copy()

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Any:
        return copy_module.deepcopy(self._looked(), memo)

    def __reduce__(self) -> Any:
        return self._looked().__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._looked().__reduce_ex__(protocol)


def raw_state(optimizer: Optimizer) -> Any:
    """Return the state of ``optimizer`` without waiting for deferred steps."""
    held = vars(optimizer)["state"]
    return held.plain if isinstance(held, WatchedState) else held

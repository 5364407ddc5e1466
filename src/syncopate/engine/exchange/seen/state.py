"""State: what ``optimizer.state`` is where ranks hold the state of parts of the parameters.

It is the dictionary of torch, with the state of this rank's pieces under the pieces, which is what
a step needs. A script asks by parameter. What would read the state of a parameter raises, and says
what to call: this rank has a part of it, or none. What takes it away is done to its pieces, so that
all ranks together forget the whole. Loops find the state of this rank's pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from syncopate.errors import EngineError

_MISSING: Any = object()


class Owner(Protocol):
    """Keeps the state of some parameters in pieces."""

    mark: Tensor
    """What stands in the state of an optimizer as long as it does."""

    def name_of(self, parameter: object) -> str:
        """Return the name of a parameter whose state is in pieces; empty for any other object."""

    def pieces_of(self, parameter: Tensor) -> Iterable[Tensor]:
        """Return what stands for that parameter."""


class PartialState(defaultdict[Any, Any]):
    """The state of one optimizer, that of some parameters in pieces; made by :func:`part`."""

    def __init__(self, kind: str, found: dict[Any, Any]) -> None:
        super().__init__(dict, found)
        self._kind = kind
        self.owners: list[Owner] = []

    def _owner(self, key: object) -> Owner | None:
        """Return who keeps the state of the parameter ``key`` in pieces, if anybody."""
        for owner in self.owners:
            if owner.name_of(key) and dict.__contains__(self, owner.mark):
                return owner
        return None

    def _refuse(self, key: object) -> None:
        if (owner := self._owner(key)) is not None:
            raise EngineError(
                f"the state of {owner.name_of(key)!r} in {self._kind} is spread over the ranks, "
                "and this one has a part of it or none. On every rank call "
                "model.syncopate.state_dict(optimizer), or read and write it inside `with "
                "model.syncopate.whole_state(optimizer):`; or train with exchange='allreduce'"
            )

    # -- asked by parameter ---------------------------------------------------------------------

    def __missing__(self, key: Any) -> Any:
        self._refuse(key)
        return super().__missing__(key)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        self._refuse(key)
        return False

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is there under ``key``."""
        if (found := dict.get(self, key, _MISSING)) is not _MISSING:
            return found
        self._refuse(key)
        return default

    def __setitem__(self, key: Any, value: Any) -> None:
        if (owner := self._owner(key)) is None:
            super().__setitem__(key, value)
        elif value:
            self._refuse(key)
        else:  # whoever gives a parameter an empty state takes away what it had
            self._forget(owner, key)

    def __delitem__(self, key: Any) -> None:
        if (owner := self._owner(key)) is None:
            super().__delitem__(key)
        else:
            self._forget(owner, key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Take away what is there under ``key``, of a parameter what its pieces have."""
        if (owner := self._owner(key)) is not None:
            self._forget(owner, key)
            return {} if default is _MISSING else default
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def _forget(self, owner: Owner, parameter: Tensor) -> None:
        for piece in owner.pieces_of(parameter):
            dict.pop(self, piece, None)

    # -- gone through ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        marks = {id(owner.mark) for owner in self.owners}
        return (key for key in dict.keys(self) if id(key) not in marks)

    def keys(self) -> Any:
        """Return the keys, with pieces for parameters."""
        return list(self)

    def values(self) -> Any:
        """Return what is kept of each of them."""
        return [dict.__getitem__(self, key) for key in self]

    def items(self) -> Any:
        """Return both."""
        return [(key, dict.__getitem__(self, key)) for key in self]

    def clear(self) -> None:
        """Forget all state; that of parameters stays in pieces."""
        for key in list(self):
            dict.pop(self, key)

    def __reduce__(self) -> Any:
        return defaultdict, (dict,), None, None, iter(self.items())


def part(optimizer: Optimizer, owner: Owner) -> PartialState:
    """Let the state of ``optimizer`` know that ``owner`` keeps some of it in pieces; return it."""
    state = optimizer.state
    if not isinstance(state, PartialState):
        state = PartialState(type(optimizer).__name__, state)
        optimizer.state = state
    if not any(known is owner for known in state.owners):
        state.owners.append(owner)
    return state


def join(optimizer: Optimizer, owner: Owner) -> None:
    """Note that ``owner`` keeps no pieces any more; the state is torch's own without any."""
    state = optimizer.state
    if isinstance(state, PartialState):
        state.owners = [known for known in state.owners if known is not owner]
        if not state.owners:
            optimizer.state = defaultdict(dict, state.items())

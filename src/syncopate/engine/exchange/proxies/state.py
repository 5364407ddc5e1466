"""State: what ``optimizer.state`` is while some of it is on its way, or on other ranks.

Every look at it goes through one class. Before a look it calls its *watchers*, which bring
something here: a step that was deferred. And it translates what a script asks by parameter, where
this rank has the state of pieces of the parameter (*owners*). What would read the state of such a
parameter raises, and says what to call: this rank has a part of it, or none. What takes it away is
done to its pieces, so that all ranks together forget the whole. Loops find the state of this rank's
pieces.

[Note: memory that others hold]
A view, a ``state_dict`` that was taken once, an array of numpy: a read of one of them is a read of
memory, which cannot be seen. But each of them refers to the storage that it is on, and torch counts
these references. What autograd keeps for a backward is gone when the backward is over.
"""

from __future__ import annotations

import copy as copy_module
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from syncopate.engine.torch_compat import storage_holders
from syncopate.errors import EngineError

_MISSING: Any = object()

Watcher = Callable[[], None]


class Owner(Protocol):
    """Keeps the state of some parameters in pieces."""

    mark: Tensor
    """What stands in the state of an optimizer as long as it does."""

    def name_of(self, parameter: object) -> str:
        """Return the name of a parameter whose state is in pieces; empty for any other object."""

    def pieces_of(self, parameter: Tensor) -> Iterable[Tensor]:
        """Return what stands for that parameter."""


class SeenState(defaultdict[Any, Any]):
    """The state of one optimizer as a script sees it.

    Attributes:
        plain: the entries themselves; to look there waits for nothing.
        watchers: called before each look.
        owners: keep the state of some parameters in pieces.
    """

    def __init__(self, kind: str, plain: defaultdict[Any, Any]) -> None:
        super().__init__(dict)
        self._kind = kind
        self.plain = plain
        self.watchers: list[Watcher] = []
        self.owners: list[Owner] = []

    def _looked(self) -> defaultdict[Any, Any]:
        for watcher in self.watchers:
            watcher()
        return self.plain

    def _shown(self) -> Any:
        """Return the entries that loops find."""
        plain = self._looked()
        if not self.owners:
            return plain
        marks = {id(owner.mark) for owner in self.owners}
        return {key: value for key, value in plain.items() if id(key) not in marks}

    def _owner(self, key: object) -> Owner | None:
        """Return the owner that keeps the state of the parameter ``key`` in pieces, or None."""
        for owner in self.owners:
            if owner.name_of(key) and owner.mark in self.plain:
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

    def _forget(self, owner: Owner, parameter: Tensor) -> None:
        for piece in owner.pieces_of(parameter):
            self.plain.pop(piece, None)

    # -- asked by parameter ---------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        plain = self._looked()
        if key not in plain:
            self._refuse(key)
        return plain[key]

    def __contains__(self, key: object) -> bool:
        if key in self._looked():
            return True
        self._refuse(key)
        return False

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what is there under ``key``."""
        return self.plain[key] if key in self else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return what is there under ``key``, ``default`` from now on if nothing is."""
        return self[key] if key in self else self.plain.setdefault(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        plain = self._looked()
        if (owner := self._owner(key)) is None:
            plain[key] = value
        elif value:
            self._refuse(key)
        else:  # to give a parameter an empty state takes away what it had
            self._forget(owner, key)

    def __delitem__(self, key: Any) -> None:
        plain = self._looked()
        if (owner := self._owner(key)) is None:
            del plain[key]
        else:
            self._forget(owner, key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Take away what is there under ``key``, of a parameter what its pieces have."""
        plain = self._looked()
        if (owner := self._owner(key)) is not None:
            self._forget(owner, key)
            return {} if default is _MISSING else default
        return plain.pop(key) if default is _MISSING else plain.pop(key, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dictionary."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    # -- gone through ---------------------------------------------------------------------------

    def popitem(self) -> Any:
        """As of a dictionary."""
        if not (shown := [*self._shown()]):
            raise KeyError("popitem(): dictionary is empty")
        return shown[-1], self.plain.pop(shown[-1])

    def clear(self) -> None:
        """Forget all state; that of parameters stays in pieces."""
        for key in [*self._shown()]:
            del self.plain[key]

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._shown()])

    def __reversed__(self) -> Any:
        return reversed([*self._shown()])

    def __len__(self) -> int:
        return len(self._looked())

    def __bool__(self) -> bool:
        return bool(self._looked())

    def keys(self) -> Any:
        """Return the keys, with pieces for parameters."""
        return self._shown().keys()

    def values(self) -> Any:
        """Return what is kept of each of them."""
        return self._shown().values()

    def items(self) -> Any:
        """Return both."""
        return self._shown().items()

    # -- as a whole -----------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return bool(self._shown() == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._shown())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def copy(self) -> Any:
        """Return a plain one with the same entries."""
        return defaultdict(dict, self._shown())

    __copy__ = copy

    def _complete(self) -> Any:
        """Return a plain one with the same entries, where none is spread over the ranks.

        A copy would have this rank's pieces, which no parameter of a copied optimizer is.
        """
        plain = self._looked()
        if any(owner.mark in plain for owner in self.owners):
            raise EngineError(
                f"this rank holds the state of its own parts of the parameters alone, so a copy of "
                f"{self._kind} would train on without it. Copy or pickle it inside `with "
                "model.syncopate.whole_state(optimizer):`, which every rank enters"
            )
        return defaultdict(dict, plain)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy_module.deepcopy(self._complete(), memo)

    def __reduce__(self) -> Any:
        return self._complete().__reduce__()


def raw_state(optimizer: Optimizer) -> Any:
    """Return the state of ``optimizer`` as it is here, without a look."""
    held = vars(optimizer)["state"]
    return held.plain if isinstance(held, SeenState) else held


def _seen(optimizer: Optimizer) -> SeenState:
    """Make the state of ``optimizer`` one that reports reads; return it."""
    state = vars(optimizer)["state"]
    if not isinstance(state, SeenState):
        state = optimizer.state = SeenState(type(optimizer).__name__, state)
    return state


def _restore(optimizer: Optimizer, state: SeenState) -> None:
    """Give ``optimizer`` plain state again where no reads have to be reported any more."""
    if not (state.watchers or state.owners):
        optimizer.state = state.plain


def watch(optimizer: Optimizer, watcher: Watcher) -> None:
    """Call ``watcher`` before each read of the state of ``optimizer``."""
    state = _seen(optimizer)
    if watcher not in state.watchers:
        state.watchers.append(watcher)


def own(optimizer: Optimizer) -> None:
    """Let the optimizer have copies of what the script holds of its state.

    What it was loaded from is often kept, and no step should wait for that.
    """
    plain = raw_state(optimizer)
    for key in plain:
        if isinstance(plain[key], dict) and is_held(plain, key):
            entry = plain[key].items()
            plain[key] = {
                k: value.clone() if isinstance(value, Tensor) else value for k, value in entry
            }


def _references(entry: Mapping[str, Any] | None) -> tuple[int, int, int]:
    """Return how many hold an entry of a state, and at most a value of it, and its memory."""
    if entry is None:
        return 0, 0, 0
    values = storages = 0
    for value in entry.values():
        if isinstance(value, Tensor):
            values = max(values, sys.getrefcount(value))
            storages = max(storages, storage_holders(value.untyped_storage()))
    return sys.getrefcount(entry), values, storages


_STATE = {0: {"value": torch.zeros(1)}}

_ALONE = _references(_STATE.get(0))
"""What :func:`_references` says of an entry that the state alone holds."""


def is_held(state: Mapping[Any, Any], key: Any) -> bool:
    """Say whether anything beside ``state`` holds the entry of ``key``, or memory of it."""
    here, values, storages = _references(state.get(key))
    return here > _ALONE[0] or values > _ALONE[1] or storages > _ALONE[2]


def unwatch(optimizer: Optimizer, watcher: Watcher) -> None:
    """Let looks at the state of ``optimizer`` call ``watcher`` no more."""
    state = vars(optimizer)["state"]
    if isinstance(state, SeenState):
        state.watchers = [known for known in state.watchers if known != watcher]
        _restore(optimizer, state)


def part(optimizer: Optimizer, owner: Owner) -> None:
    """Let the state of ``optimizer`` know that ``owner`` keeps some of it in pieces."""
    state = _seen(optimizer)
    if not any(known is owner for known in state.owners):
        state.owners.append(owner)


def join(optimizer: Optimizer, owner: Owner) -> None:
    """Note that ``owner`` keeps no pieces any more."""
    state = vars(optimizer)["state"]
    if isinstance(state, SeenState):
        state.owners = [known for known in state.owners if known is not owner]
        _restore(optimizer, state)

"""Optimizer state: what an optimizer knows of each parameter, in pieces or whole.

Where ranks own parts of parameters, an optimizer's state is that of this rank's pieces: a momentum
is as long as the piece. *Gathering* makes tensors of the parameters' shapes of it on every rank:
state travels as weights do, by the recipes of the pulls. *Cutting* takes this rank's parts of whole
state, and asks no other rank. Whole state is what a plain optimizer has, so that it depends neither
on a plan, nor on an exchange, nor on the number of ranks.

[Note: which entries are spread]
A tensor of its piece's shape has a value for each element, and is spread as the weights are. All
else, such as the number of steps, belongs to the parameter as a whole: every rank that owns a part
of the parameter has it, all alike, and whole state has it from any of them.

[Note: the mark]
An optimizer whose state is in pieces has an entry without content, under a key of the exchange. It
tells pieces from whole state on ranks that own nothing too, vanishes when the script replaces the
state, and keeps that state from looking empty: a script that finds it empty may take the optimizer
for new.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from syncopate.engine.buckets import FlatBuffer, Trainable, view_like
from syncopate.engine.exchange.layout import Layout, nothing
from syncopate.engine.exchange.proxies import state as proxies
from syncopate.engine.exchange.update.pieces import Piece, Pieces
from syncopate.errors import EngineError

State = dict[str, Any]
"""What an optimizer knows of one parameter."""

_STEP = "step"
"""Counts steps, and is never spread, not even where the parameter is a scalar too."""


class _Kept(NamedTuple):
    """What the ranks say of one entry of a state.

    Attributes:
        dtype: of its elements; None where it is not spread.
        value: what it is, where it is not spread; tensors on the CPU.
        on_device: whether it is a tensor on the parameter's device, which is not the CPU.
    """

    dtype: torch.dtype | None
    value: Any = None
    on_device: bool = False


_Described = dict[int, dict[str, _Kept]]
"""Per parameter the entries of its state."""

_OfPieces = dict[int, list[dict[str, _Kept]]]
"""Per parameter the entries of the state of each of its pieces."""


class OwnedState:
    """The state of optimizers on one exchange; of its layout.

    Attributes:
        finish: waits for an update that is under way, before state is read.
        mark: see [Note: the mark].
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._communicator = layout, layout.communicator
        self._pieces = layout.shared(Pieces).of
        # [Note: the mark]
        self.mark: Tensor = nn.Parameter(torch.empty(0), requires_grad=False)
        self.finish: Callable[[], None] = nothing
        self._cut: list[weakref.ref[Optimizer]] = []
        self._plain: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @property
    def keys(self) -> set[int]:
        """Identities of the keys in an optimizer's state that stand for pieces."""
        pieces = [piece.parameter for several in self._pieces for piece in several]
        return set(map(id, [*pieces, self.mark]))

    def is_cut(self, optimizer: Optimizer) -> bool:
        """Whether the state of ``optimizer`` is in pieces."""
        return self.mark in optimizer.state

    def is_plain(self, optimizer: Optimizer) -> bool:
        """Whether the state of ``optimizer`` is to stay whole for now."""
        return optimizer in self._plain

    def require_here(self, optimizer: Optimizer) -> None:
        """Refuse to look for state of ``optimizer`` that no rank has.

        Raises:
            EngineError: servers keep it.
        """

    @torch.no_grad()
    def cut(self, optimizer: Optimizer) -> None:
        """Keep of whole state what belongs to this rank's pieces; asks no other rank."""
        state = optimizer.state
        if self.mark in state:
            return
        self.finish()
        for trainable, pieces in self._everything():
            whole = state.pop(trainable.parameter, None)
            for piece in pieces if whole is not None else ():
                state[piece.parameter] = {
                    key: _part_of(trainable.parameter, piece, key, value)
                    for key, value in whole.items()
                }
        state[self.mark] = {}
        proxies.part(optimizer, self)
        if not any(known() is optimizer for known in self._cut):
            self._cut.append(weakref.ref(optimizer))

    def make_whole(self, optimizer: Optimizer, *, plain: bool = False) -> None:
        """Give ``optimizer`` on every rank the state of whole parameters; all ranks call it.

        Args:
            optimizer: which.
            plain: whether it stays so until :meth:`release`, even in its steps.

        Raises:
            CollectiveError: a rank is lost or late.
            EngineError: the ranks have different state.
        """
        if self.is_cut(optimizer):
            whole = self.gather(optimizer)
            self._forget(optimizer)
            optimizer.state.update(whole)
        if plain:
            self._plain.add(optimizer)

    def release(self, optimizer: Optimizer) -> None:
        """End what :meth:`make_whole` began, and cut the state again."""
        self._plain.discard(optimizer)
        self.cut(optimizer)

    def make_all_whole(self) -> None:
        """Do so for every optimizer whose state is in pieces; all ranks call it.

        Raises:
            CollectiveError: a rank is lost or late.
            EngineError: the ranks have different state.
        """
        if not self._cut:
            return
        known = [reference() for reference in self._cut]
        # An optimizer that is not held is gone at another time on every rank.
        alive = [one is not None and self.is_cut(one) for one in known]
        everyone = self._communicator.all_gather_object(alive)
        for optimizer, *here in zip(known, *everyone, strict=True):
            if optimizer is not None and all(here):
                self.make_whole(optimizer)

    @torch.no_grad()
    def gather(
        self, optimizer: Optimizer, *, keep: bool = True, device: str | None = None
    ) -> dict[Tensor, State]:
        """Return the state of whole parameters; all ranks call it.

        Args:
            optimizer: whose state, which is in pieces.
            keep: whether this rank wants it; the result is empty otherwise.
            device: where its tensors are to be; that of the parameters by default.

        Raises:
            CollectiveError: a rank is lost or late.
            EngineError: the ranks have different state.
        """
        self.finish()
        described = self._agreed(self._describe(optimizer))
        found: dict[Tensor, State] = {}
        if keep:
            for trainable, _ in self._everything():
                entries = described.get(trainable.index)
                if entries is not None:
                    place = device or trainable.parameter.device
                    found[trainable.parameter] = {
                        key: kept.value.to(place) if kept.on_device else kept.value
                        for key, kept in entries.items()
                    }
        for part in self._layout.parts:
            for key, flat in self._travelled(optimizer, part, described):
                for trainable, offset in part.offsets():
                    if keep and _travels(described, trainable, key, flat.dtype):
                        view = view_like(trainable.parameter, flat, offset)
                        copy = view.to(device or flat.device, copy=True)
                        found[trainable.parameter][key] = copy
        return found

    # -- what a script asks for -----------------------------------------------------------------

    def name_of(self, parameter: object) -> str:
        """Return the name of a parameter of the exchange; empty for any other object."""
        index = self._layout.index.get(id(parameter))
        return "" if index is None else self._layout.trainables[index].name

    def pieces_of(self, parameter: Tensor) -> list[nn.Parameter]:
        """Return this rank's pieces of it."""
        return [piece.parameter for piece in self._pieces[self._layout.index[id(parameter)]]]

    # -- what the ranks say ---------------------------------------------------------------------

    def _everything(self) -> Iterator[tuple[Trainable, Sequence[Piece]]]:
        for part in self._layout.parts:
            for trainable in part.trainables:
                yield trainable, self._pieces[trainable.index]

    def _describe(self, optimizer: Optimizer) -> _OfPieces:
        """Return what this rank knows of its pieces."""
        found: _OfPieces = {}
        for trainable, pieces in self._everything():
            for piece in pieces:
                if (state := optimizer.state.get(piece.parameter)) is not None:
                    entries = {k: _kept(piece.parameter, k, value) for k, value in state.items()}
                    found.setdefault(trainable.index, []).append(entries)
        return found

    def _agreed(self, described: _OfPieces) -> _Described:
        """Return what all ranks know together; of all pieces of a parameter they know the same.

        Raises:
            EngineError: they do not; on every rank.
        """
        found: _Described = {}
        first: dict[int, int] = {}
        for rank, there in enumerate(self._communicator.all_gather_object(described)):
            for index, entries in ((i, each) for i, several in there.items() for each in several):
                known = found.setdefault(index, entries)
                before = first.setdefault(index, rank)
                differing = [
                    key
                    for key in known.keys() | entries.keys()
                    if key not in known
                    or key not in entries
                    or _comparable(known[key]) != _comparable(entries[key])
                ]
                if differing:
                    name = self._layout.trainables[index].name
                    raise EngineError(
                        f"the optimizer's {min(differing)!r} of {name!r} is not the same on ranks "
                        f"{before} and {rank}, which own parts of that parameter. Load the same "
                        "state on every rank, and declare an optimizer whose state depends on "
                        "whole tensors by declare_optimizer(..., 'tensor')"
                    )
        return found

    # -- what travels ---------------------------------------------------------------------------

    def _travelled(
        self, optimizer: Optimizer, part: FlatBuffer, described: _Described
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the spread entries of one flat buffer, laid out as its weights are."""
        entries = {
            (key, kept.dtype): None
            for trainable in part.trainables
            for key, kept in described.get(trainable.index, {}).items()
            if kept.dtype is not None
        }
        for key, dtype in entries:
            flat = torch.zeros(part.gradients.numel(), dtype=dtype, device=part.gradients.device)
            for trainable, offset in part.offsets():
                travels = _travels(described, trainable, key, dtype)
                for piece in self._pieces[trainable.index] if travels else ():
                    own = view_like(piece.parameter, flat, offset + piece.start)
                    own.copy_(optimizer.state[piece.parameter][key])
            self._layout.gather(part, flat)
            yield key, flat

    def _forget(self, optimizer: Optimizer) -> None:
        """Take the state of pieces away."""
        optimizer.state.pop(self.mark, None)
        proxies.join(optimizer, self)
        for _, pieces in self._everything():
            for piece in pieces:
                optimizer.state.pop(piece.parameter, None)


def _kept(piece: Tensor, key: str, value: Any) -> _Kept:
    """Return what is to be said of one entry ([Note: which entries are spread])."""
    if not isinstance(value, Tensor):
        return _Kept(None, value)
    if value.shape == piece.shape and key != _STEP:
        return _Kept(value.dtype)
    return _Kept(None, value.detach().cpu(), value.device.type != "cpu")


def _comparable(kept: _Kept) -> tuple[Any, ...]:
    """Return what is equal where two ranks say the same, bit by bit."""
    value = kept.value
    if isinstance(value, Tensor):
        bits = value.contiguous().reshape(-1).view(torch.uint8).tolist()
        return kept.dtype, kept.on_device, value.dtype, value.shape, bits
    return kept.dtype, kept.on_device, repr(value)


def _part_of(parameter: Tensor, piece: Piece, key: str, value: Any) -> Any:
    """Return what a piece keeps of one entry of the whole parameter's state."""
    if not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape or key == _STEP:
        return value.clone()
    in_memory = torch.empty(parameter.numel(), dtype=value.dtype, device=parameter.device)
    view_like(parameter, in_memory, 0).copy_(value)
    return view_like(piece.parameter, in_memory, piece.start).clone()


def _travels(described: _Described, trainable: Trainable, key: str, dtype: torch.dtype) -> bool:
    """Whether an entry of a parameter's state is spread, with elements of ``dtype``."""
    kept = described.get(trainable.index, {}).get(key)
    return kept is not None and kept.dtype == dtype

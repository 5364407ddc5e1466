"""Sharded update: each rank updates what it owns of the weights, by the user's own optimizer.

For an optimizer's step the parameters in its groups are exchanged for *pieces*: this rank's ranges
of them, as parameters with gradients, several of a parameter that travels in parts. So the
optimizer's state is that of the pieces. Between steps the groups hold the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from torch import Tensor
from torch.optim import Optimizer

from syncopate.artifacts.workload import TENSOR
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.optimizers import kind_of
from syncopate.engine.exchange.parts import Stepped, Update
from syncopate.engine.exchange.proxies.gradients import Partial, PartialGradient
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.engine.exchange.update.pieces import Pieces
from syncopate.errors import EngineError


class Beside:
    """What goes along with the steps of a rank that updates pieces."""

    def begins(self, optimizer: Optimizer) -> None:
        """Note that ``optimizer`` is about to step.

        Raises:
            EngineError: it cannot.
        """

    def leaves_out(self, parameter: Tensor) -> bool:
        """Say that something else updates the pieces of a parameter, in the step that begins."""
        return False

    def updates(self, optimizer: Optimizer, stepping: frozenset[int]) -> None:
        """Begin what is to be done while pieces are updated.

        Args:
            optimizer: it holds pieces now.
            stepping: identities of the flat buffers that it trains.
        """


class PieceUpdate(Update):
    """Updates pieces.

    Args:
        layout: of the exchange.
        state: keeps the state of optimizers.
        beside: what goes along, in order.
    """

    state: OwnedState

    def __init__(
        self,
        layout: Layout,
        state: Callable[[Layout], OwnedState] = OwnedState,
        beside: Sequence[Callable[[Layout], Beside]] = (),
    ) -> None:
        self._layout = layout
        self._weights, self._gradients = layout.shared(FlatWeights), layout.shared(Partial)
        self._pieces = layout.shared(Pieces).of
        self.state = layout.shared(state)
        self._beside = [layout.shared(make) for make in beside]
        self._stepping: frozenset[int] = frozenset()
        self._stepper: Optimizer | None = None
        self._given: list[int] = []

    def begin(self, optimizer: Optimizer) -> None:
        """Put this rank's pieces into the groups of ``optimizer``."""
        for each in self._beside:
            each.begins(optimizer)
        if self.state.is_plain(optimizer):
            _require_whole_gradients(optimizer)
            return
        self._take_given(optimizer)
        parts = self._trained_parts(optimizer)
        self._weights.take_in(parts)
        self.state.cut(optimizer)
        groups.exchange(optimizer, self, self._standing_for)
        self._stepping, self._stepper = frozenset(parts), optimizer
        for each in self._beside:
            each.updates(optimizer, self._stepping)

    def _take_given(self, optimizer: Optimizer) -> None:
        """Copy gradients that the script took from other parameters to where pieces have theirs.

        All are read, which gathers them on every rank, before the first is overwritten.
        """
        taken = []
        for parameter in chain(*groups.parameters_of(optimizer)):
            index, gradient = self._layout.index.get(id(parameter)), parameter.grad
            if index is None or not isinstance(gradient, PartialGradient):
                continue
            if not (view := self._gradients.at(index)).is_place_of(gradient):
                taken.append((parameter, view, gradient.clone()))
        for parameter, view, values in taken:
            view.copy_(values)
            parameter.grad = view

    def _trained_parts(self, optimizer: Optimizer) -> set[int]:
        """Return the identities of the flat buffers with parameters of ``optimizer``.

        Raises:
            EngineError: it needs a whole tensor of which every rank may own a part.
        """
        layout, whole = self._layout, kind_of(optimizer) == TENSOR
        found = set()
        for held in groups.parameters_of(optimizer):
            for parameter in held:
                if (index := layout.index.get(id(parameter))) is None:
                    continue
                found.add(id(layout.places[index][0]))
                if whole and layout.trained[index].kind != TENSOR:
                    raise EngineError(
                        f"{layout.trainables[index].name!r} was given to "
                        f"{type(optimizer).__name__}, which looks at whole tensors, after this "
                        "plan had spread its elements over the ranks. Call "
                        "model.syncopate.install(model.syncopate.plan) after a group is added"
                    )
        return found

    def _standing_for(self, parameter: Tensor) -> list[Tensor]:
        """Return what an optimizer updates in the place of ``parameter``."""
        index = self._layout.index.get(id(parameter))
        if index is None:
            return [parameter]
        if any(each.leaves_out(parameter) for each in self._beside):
            return []
        pieces, view, gradient = self._pieces[index], self._gradients.at(index), parameter.grad
        if not pieces:
            return []
        if gradient is not None and not view.is_place_of(gradient):
            # The script gave it another gradient, the same on every rank.
            view.whole.copy_(gradient)
        if gradient is not None:
            for piece in pieces:
                piece.parameter.grad = piece.gradient
            self._given.append(index)
        return [piece.parameter for piece in pieces]

    def end(self, optimizer: Optimizer) -> Stepped | None:
        """Let the groups hold parameters again."""
        if self.state.is_plain(optimizer):
            return None  # every rank has updated all of them
        groups.put_back(optimizer)
        return self._close(optimizer)

    def interrupted(self, optimizer: Optimizer | None = None) -> Stepped | None:
        """End a step that raised on this rank.

        Until now its optimizer held pieces: where it was told to zero gradients, it zeroed theirs.
        """
        if self._stepper is None or (optimizer is not None and self.state.is_plain(optimizer)):
            return None
        if self._stepper is not optimizer:  # else it exchanges its groups itself
            groups.put_back(self._stepper)
        for index in self._given:
            for piece in self._pieces[index]:
                if piece.parameter.grad is None:
                    piece.trainable.parameter.grad = None
        return self._close(self._stepper)

    def _close(self, optimizer: Optimizer) -> Stepped:
        self._stepper, stepping = None, self._stepping
        for piece in chain(*(self._pieces[index] for index in self._given)):
            piece.parameter.grad = None
        self._given.clear()
        return Stepped(optimizer, stepping)

    def leave(self) -> None:
        """Give optimizers whole state, and parameters no partial gradients."""
        try:
            self.state.make_all_whole()
        finally:
            for parameter in (trainable.parameter for trainable in self._layout.trainables):
                if isinstance(parameter.grad, PartialGradient):
                    parameter.grad = None


def _require_whole_gradients(optimizer: Optimizer) -> None:
    """Refuse a step on whole state that would take this rank's parts for whole gradients."""
    for group in optimizer.param_groups:
        if any(isinstance(parameter.grad, PartialGradient) for parameter in group["params"]):
            raise EngineError(
                "inside `with model.syncopate.whole_state(optimizer):` the optimizer saves and "
                "loads whole state, and this step is one of training; step outside"
            )

"""The state of an optimizer that servers keep."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.serving.servers import whole_of
from syncopate.engine.exchange.serving.submissions import Submissions
from syncopate.engine.exchange.update.optimizer_state import OwnedState
from syncopate.errors import EngineError


class ServedState(OwnedState):
    """The state of an optimizer that servers keep; they were told what it held before."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._servers = layout.servers
        self._lent: dict[Tensor, dict[str, Any]] = {}
        submissions = layout.shared(Submissions)  # with the weights goes what it knew
        super().cut(layout.servers.optimizer)
        self.finish = submissions.require_closed

    def cut(self, optimizer: Optimizer) -> None:
        """Take state away, and refuse what servers would have to take over."""
        if self.is_cut(optimizer):
            return
        given = [optimizer.state.get(each.parameter) for each, _ in self._everything()]
        lent = [self._lent.get(each.parameter) for each, _ in self._everything()]
        self._lent = {}
        super().cut(optimizer)
        if any(one and one is not other for one, other in zip(given, lent, strict=True)):
            raise EngineError(
                f"the state of {type(optimizer).__name__} is on the servers, which have begun. "
                "Load model and optimizer before distribute()"
            )

    def gather(
        self, optimizer: Optimizer, *, keep: bool = True, device: str | None = None
    ) -> dict[Tensor, dict[str, Any]]:
        """Return what servers know, with all in it that this rank sent; asks no rank.

        Args and errors are those of :meth:`OwnedState.gather`.

        Raises:
            ParameterServerError: servers are lost.
        """
        self.finish()
        known = self._servers.store.state() if keep else {}
        found: dict[Tensor, dict[str, Any]] = {}
        for trainable, _ in self._everything():
            parameter, entries = trainable.parameter, known.get(trainable.name, {})
            if whole := whole_of(parameter, entries, device or parameter.device):
                found[parameter] = whole
        return found

    def make_whole(self, optimizer: Optimizer, *, plain: bool = False) -> None:
        """Give ``optimizer`` what servers know; see :meth:`OwnedState.make_whole`."""
        super().make_whole(optimizer, plain=plain)
        self._lent = dict(optimizer.state)

    def require_here(self, optimizer: Optimizer) -> None:
        """Refuse to look here for state that servers keep."""
        raise EngineError(
            f"the state of {type(optimizer).__name__} is on the servers, and its state_dict() has "
            "none to return. On every rank call model.syncopate.state_dict(optimizer), or save "
            "inside `with model.syncopate.whole_state(optimizer):`"
        )

    def make_all_whole(self) -> None:
        """Leave the state where it is; the optimizer begins anew without servers.

        Tables are given back with what servers know of them.
        """
        self._servers.tables.detach()
        for known in self._cut:
            if (optimizer := known()) is not None:
                self._forget(optimizer)

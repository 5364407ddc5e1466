"""Tables: embeddings with sparse gradients, whose rows parameter servers keep.

A forward brings the rows that it needs, as the servers have them, and the optimizer's step sends
the rows of the gradient, after which the gradient is None. So the optimizer itself updates nothing
of a table. The weight of the embedding stays a whole tensor on every rank, of which only rows that
a forward asked for are up to date; ``state_dict`` brings all of them.

[Note: a table that backward did not reach] Synchronous servers count on the pushes of all ranks. So
a rank without a gradient sends a push of no rows, which says that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from syncopate.collectives.store import Store
from syncopate.engine.model.hooks import ModelHook
from syncopate.errors import EngineError
from syncopate.protocol.rules import STEPS, OptimizerRule

SPARSE = nn.Embedding | nn.EmbeddingBag
STATE = {"sum": "sum", "mean": "exp_avg", "square": "exp_avg_sq"}
"""What servers call an entry of an optimizer's state -> what torch calls it."""


class Embedded(NamedTuple):
    """A table: an embedding's weight.

    Attributes:
        name: of the parameter.
        weight: the parameter.
        modules: the embeddings that look up rows in it.
        optimizer: what trains it.
        group: the group of the optimizer that it is in.
    """

    name: str
    weight: nn.Parameter
    modules: tuple[SPARSE, ...]
    optimizer: Optimizer
    group: dict[str, Any]


class Tables:
    """The tables of one model.

    Attributes:
        embedded: each.
    """

    def __init__(self, store: Store, embedded: Sequence[Embedded]) -> None:
        """Touch nothing yet."""
        self.embedded = tuple(embedded)
        self._store = store
        self._declared = False
        self._hooks: list[Any] = []

    def attach(self, rule_of: Callable[[Embedded], OptimizerRule]) -> None:
        """Give the servers the tables, and let model and optimizers use them; all ranks call it.

        Args:
            rule_of: returns how servers do what a table's optimizer does.

        Raises:
            ParameterServerError: the job is over.
        """
        if self._hooks:
            return
        for table in self.embedded:
            if not self._declared:
                self._store.init_rows(
                    table.name, table.weight.detach(), rule_of(table), _known(table)
                )
            for module in table.modules:
                self._hooks += (
                    module.register_forward_pre_hook(
                        ModelHook(self._bringing(table)), with_kwargs=True
                    ),
                    module.register_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                        ModelHook(lambda *_, table=table: self._renew(table))
                    ),
                )
        self._declared = True
        for optimizer in {id(table.optimizer): table.optimizer for table in self.embedded}.values():
            self._hooks += (
                optimizer.register_step_pre_hook(self._push),
                optimizer.register_state_dict_pre_hook(self._renew_state),
                optimizer.register_load_state_dict_pre_hook(self._refuse_state),
            )

    def detach(self) -> None:
        """Give model and optimizers all rows, and what servers know of them; then let them be."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for table in self.embedded:
            self._renew(table)
            table.optimizer.state[table.weight] = self._state(table)

    def _bringing(self, table: Embedded) -> Callable[..., None]:
        """Return what brings the rows that a forward asks for."""

        def bring(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            asked = args[0] if args else kwargs["input"]
            if isinstance(asked, Tensor):
                self._bring(table, torch.unique(asked.detach().cpu()))

        return bring

    def _renew(self, table: Embedded) -> None:
        self._bring(table, torch.arange(len(table.weight)))

    def _bring(self, table: Embedded, ids: Tensor) -> None:
        pulled = self._store.pull_rows(table.name, ids)
        pulled.wait()
        weight = table.weight.data
        weight.index_copy_(0, ids.to(weight.device, torch.int64), pulled.out.to(weight.device))

    def _push(self, optimizer: Optimizer, *_: Any) -> None:
        """Send the gradients of the tables that ``optimizer`` trains, which is about to step."""
        for table in self.embedded:
            if table.optimizer is not optimizer:
                continue
            gradient, lr = table.weight.grad, float(table.group["lr"])
            if gradient is None:
                self._push_nothing(table, lr)
                continue
            if not gradient.is_sparse:
                raise EngineError(
                    f"the gradient of {table.name!r} is not sparse: the weight of an embedding "
                    "with sparse=True is used elsewhere too, for which servers have no whole "
                    "table. Build it with sparse=False"
                )
            gradient = gradient.coalesce()
            ids, values = gradient.indices()[0], gradient.values()
            self._store.push_rows(table.name, ids, values, lr=lr)
            table.weight.grad = None

    def _push_nothing(self, table: Embedded, lr: float) -> None:
        """Say that there is no gradient; [Note: a table that backward did not reach]."""
        if self._store.rules.synchronous:
            ids, values = torch.empty(0, dtype=torch.int64), table.weight.detach()[:0]
            self._store.push_rows(table.name, ids, values, lr=lr, reached=False)

    def _state(self, table: Embedded) -> dict[str, Any]:
        """Return what servers know of a table, as torch's optimizer has it."""
        known, weight = self._store.table_state(table.name), table.weight
        if not int(known[STEPS]) and not any(name in known for name in STATE):
            return {}
        steps: Any = known[STEPS].reshape(()).to(torch.float32)
        if isinstance(table.optimizer, torch.optim.SparseAdam):
            steps = int(steps)
        found: dict[str, Any] = {"step": steps}
        for name, other in STATE.items():
            if name in known:
                found[other] = torch.zeros_like(weight, requires_grad=False)
                rows = known[name].to(weight.device)
                found[other].index_copy_(0, known["ids"].to(weight.device), rows)
        return found

    def _renew_state(self, optimizer: Optimizer) -> None:
        """Bring what servers know to ``optimizer``, which is about to be saved."""
        for table in self.embedded:
            if table.optimizer is optimizer:
                optimizer.state[table.weight] = self._state(table)

    def _refuse_state(self, optimizer: Optimizer, _: dict[str, Any]) -> None:
        raise EngineError(
            f"the state of {type(optimizer).__name__} is on the servers, which have begun. Load "
            "model and optimizer before distribute()"
        )


def _known(table: Embedded) -> Mapping[str, Tensor] | None:
    """Return what an optimizer knows of a table, as servers take it; None: nothing."""
    state = table.optimizer.state.get(table.weight, {})
    steps = int(state.get("step", 0))
    if not steps:
        return None
    found = {STEPS: torch.tensor([steps])}
    return found | {name: state[other] for name, other in STATE.items() if other in state}

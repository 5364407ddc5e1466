"""Servers: what a parameter server is told of a model and of its optimizer.

Servers update each weight by the rule of its group of the only optimizer. Learning rates may
change from step to step, as schedulers let them; they go along with the gradients. Nothing else
may. Tables of rows are updated by what trains them, each by a rule of its own.

Where the store's rules name an updater of one's own, servers update by that. The optimizer then
says learning rates, and those of the updater's options that its groups have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from syncopate.collectives.store import Store
from syncopate.delay import Delay, LocalSGD
from syncopate.engine.buckets import view_like
from syncopate.engine.exchange.optimizers import updates_as
from syncopate.engine.exchange.serving.tables import STATE, Embedded, Tables
from syncopate.errors import EngineError, InvalidValueError, UnknownNameError
from syncopate.protocol.rules import ABORT, SGD, STEPS, WAIT, Adagrad, Adam, OptimizerRule, Updater
from syncopate.protocol.table import require_rows

_LR = "lr"


def _sgd(group: Mapping[str, Any]) -> SGD:
    return SGD(
        lr=float(group[_LR]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        weight_decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
    )


def _adam(group: Mapping[str, Any], *, decoupled: bool = False) -> Adam:
    first, second = group["betas"]
    return Adam(
        lr=float(group[_LR]),
        betas=(float(first), float(second)),
        eps=float(group["eps"]),
        weight_decay=float(group.get("weight_decay", 0.0)),  # SparseAdam has none
        decoupled=decoupled or bool(group.get("decoupled_weight_decay")),
    )


def _adagrad(group: Mapping[str, Any]) -> Adagrad:
    return Adagrad(
        lr=float(group[_LR]),
        lr_decay=float(group["lr_decay"]),
        weight_decay=float(group["weight_decay"]),
        initial_accumulator_value=float(group["initial_accumulator_value"]),
        eps=float(group["eps"]),
    )


_Rules = dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], OptimizerRule]]

_RULES: _Rules = {
    torch.optim.Adagrad: _adagrad,
    torch.optim.SGD: _sgd,
    torch.optim.AdamW: partial(_adam, decoupled=True),
    torch.optim.Adam: _adam,
}
"""Optimizer of torch -> how servers do what it does; a subclass before its base."""

_OF_TABLES: _Rules = {
    torch.optim.SparseAdam: _adam,
    torch.optim.Adagrad: _adagrad,
    torch.optim.SGD: _sgd,
}
"""The same of those that take sparse gradients, for tables."""

_REFUSED = ("maximize", "amsgrad")
"""What servers cannot do."""


def table_rule_of(table: Embedded) -> OptimizerRule:
    """Return how servers do what trains a table.

    Raises:
        UnknownNameError: servers do not know it; lists those they know.
        EngineError: they cannot do it as it is set up.
    """
    optimizer = table.optimizer
    return _rules_of(optimizer, [table.group], _OF_TABLES, f"the table {table.name!r}")[0]


def rules_of(
    store: Store, optimizers: Sequence[torch.optim.Optimizer], tables: Sequence[Embedded]
) -> list[tuple[Mapping[str, Any], OptimizerRule]]:
    """Return how servers do what the optimizer of a model does.

    Args:
        store: reaches them; where its rules name an updater, they do that instead.
        optimizers: of the model; one.
        tables: whose rows are updated each by a rule of its own.

    Returns:
        Each group of the optimizer that has other parameters than tables, and its rule.

    Raises:
        UnknownNameError: servers do not know it; lists those they know.
        EngineError: they cannot do it as it is set up.
    """
    if len(optimizers) != 1:
        raise EngineError(
            f"servers do what one optimizer does, and {len(optimizers)} were given; give one, "
            "which may have several groups, or train with exchange='sharded'"
        )
    optimizer, theirs = optimizers[0], {id(table.weight) for table in tables}
    groups = [
        group
        for group in optimizer.param_groups
        if not group["params"] or any(id(each) not in theirs for each in group["params"])
    ]
    if isinstance(updater := store.rules.optimizer, Updater):
        return [(group, _as_group_says(updater, group)) for group in groups]
    return list(zip(groups, _rules_of(optimizer, groups, _RULES), strict=True))


def _as_group_says(updater: Updater, group: Mapping[str, Any]) -> Updater:
    options = {
        name: group[name] if isinstance(group.get(name), bool | int | float | str) else value
        for name, value in updater.options.items()
    }
    return msgspec.structs.replace(updater, lr=float(group[_LR]), options=options)


def _rules_of(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Mapping[str, Any]],
    known: _Rules,
    scope: str = "",
) -> list[OptimizerRule]:
    """Return how servers do what ``optimizer`` does to some of its groups."""
    kind = next((k for k in known if updates_as(type(optimizer), k)), None)
    if kind is None:
        names = [each.__name__ for each in reversed(known)]
        raise UnknownNameError("optimizer of servers", type(optimizer).__name__, names, scope)
    for group in groups:
        for what in _REFUSED:
            if group.get(what):
                raise EngineError(f"servers cannot do {what}=True; leave it out")
    return [known[kind](group) for group in groups]


_NAMES = {"momentum_buffer": "momentum", "step": STEPS} | {
    of_torch: of_servers for of_servers, of_torch in STATE.items()
}
"""What torch calls an entry of an optimizer's state -> what servers call it."""


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], own: Collection[str] = ()
) -> dict[str, dict[str, Tensor]]:
    """Return what an optimizer knows of ``parameters``, by name, as servers take it.

    Args:
        optimizer: of torch.
        parameters: by name.
        own: names of what an updater of one's own remembers, which torch calls the same.
    """
    names = _NAMES | {name: name for name in own if name not in _NAMES.values()}
    found: dict[str, dict[str, Tensor]] = {}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        known = state.items() if state.get("step", 1) else ()  # Adagrad has some at once
        entries = {
            names[key]: _flat(parameter, value) if key != "step" else _counted(value)
            for key, value in known
            if key in names and value is not None
        }
        if entries:
            found[name] = entries
    return found


def whole_of(
    parameter: Tensor, entries: Mapping[str, Tensor], device: str | torch.device
) -> dict[str, Tensor]:
    """Return what servers know of ``parameter`` as torch's optimizers have it, on ``device``."""
    found, torchs = {}, {name: key for key, name in _NAMES.items()}
    for name, value in entries.items():
        key = torchs.get(name, name)
        if name == STEPS:
            found[key] = value.reshape(()).to(torch.float32)  # on the CPU, as torch has it
        else:
            found[key] = view_like(parameter, value.to(device), 0)
    return found


def _flat(parameter: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` in the order in which the parameter's elements are in memory."""
    flat = torch.empty(parameter.numel(), dtype=value.dtype)
    view_like(parameter, flat, 0).copy_(value)
    return flat


def _counted(steps: Tensor | float) -> Tensor:
    return torch.tensor([int(steps)], dtype=torch.int64)


class Told(NamedTuple):
    """What servers were told of a weight.

    Attributes:
        name: of it.
        rule: how they update it; with any learning rate.
    """

    name: str
    rule: OptimizerRule


class Servers(NamedTuple):
    """What servers are told once, by any plan.

    Attributes:
        store: reaches them.
        optimizer: what they do in the place of it.
        told: of each weight that they have, by the id of its parameter; none before the first plan.
        tables: whose rows they have.
    """

    store: Store
    optimizer: torch.optim.Optimizer
    told: dict[int, Told]
    tables: Tables

    def declare(self, weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
        """Give them ``weights``, flat, unless they have them; all ranks call it.

        With them goes what the optimizer knows of the ``parameters``, by the same names.

        Raises:
            ParameterServerError: the job is over.
        """
        if not self.told:
            groups = self._groups
            trained = {id(each): rule for group, rule in groups for each in group["params"]}
            rules = {
                name: trained.get(id(parameter), groups[0][1])
                for name, parameter in parameters.items()
            }
            alike = all(rule == groups[0][1] for rule in rules.values())
            own = groups[0][1].state if isinstance(groups[0][1], Updater) else ()
            known = state_of(self.optimizer, parameters, own)
            self.store.init(weights, groups[0][1] if alike else rules, known)
            for name, parameter in parameters.items():
                self.told[id(parameter)] = Told(name, rules[name])
        self.tables.attach(table_rule_of)

    @property
    def _groups(self) -> list[tuple[Mapping[str, Any], OptimizerRule]]:
        return rules_of(self.store, (self.optimizer,), self.tables.embedded)

    @property
    def synchronous(self) -> bool:
        """Whether an update waits for the gradients of all ranks."""
        return self.store.rules.synchronous

    def require_delay(self, delay: Delay | LocalSGD | None) -> None:
        """Refuse a delay where updates wait for no other rank, or are clipped.

        Raises:
            InvalidValueError: there is one, and they are so.
        """
        if isinstance(delay, Delay) and not self.synchronous:
            rule = (
                f"left out with servers of mode {self.store.rules.mode!r}: SSD-SGD's global "
                "updates are synchronous, so give a KVStore with Rules(mode='ssgd')"
            )
            raise InvalidValueError("delay", f"one of k = {delay.k}", rule)
        if delay is not None and self.store.rules.on_worker_loss == WAIT:
            rule = (
                "left out with on_worker_loss='wait': what a rank trains by itself between pulls "
                "is lost with it"
            )
            raise InvalidValueError("delay", type(delay).__name__, rule)
        if delay is not None and self.store.rules.clip_norm is not None:
            rule = (
                "left out with Rules(clip_norm=...): local updates between pulls would not be "
                "clipped by the norm over all ranks"
            )
            raise InvalidValueError("delay", type(delay).__name__, rule)

    def require_rules(self) -> dict[str, float]:
        """Refuse an optimizer that servers no longer do; return learning rates by name.

        Raises:
            EngineError: a value other than a learning rate has changed.
        """
        rates: dict[str, float] = {}
        for group, rule in self._groups:
            seen: OptimizerRule | None = None
            for parameter in group["params"]:
                told = self.told.get(id(parameter))
                if told is None:
                    continue  # servers do not have it: it is frozen, or of another model
                if told.rule is not seen:
                    _require_as_told(told, rule)
                    seen = told.rule
                rates[told.name] = rule.lr
        return rates

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Let servers update at these learning rates from the next push on."""
        names: dict[float, list[str]] = {}
        for name, lr in rates.items():
            names.setdefault(lr, []).append(name)
        for lr, some in names.items():
            self.store.set_learning_rate(lr, some if len(names) > 1 else None)


def _require_as_told(told: Told, rule: OptimizerRule) -> None:
    """Refuse values of an optimizer that servers were not told."""
    changed = [
        f"{name}: {getattr(told.rule, name)} before, {getattr(rule, name)} now"
        for name in rule.__struct_fields__
        if name != _LR and getattr(told.rule, name) != getattr(rule, name)
    ]
    if changed:
        raise EngineError(
            "servers were told the optimizer's values when training began, and take changes of "
            f"learning rates alone (for {told.name!r} {'; '.join(changed)}). A scheduler that "
            "cycles momentum does that; tell it not to"
        )


def served_by(
    store: Store,
    optimizers: Sequence[torch.optim.Optimizer],
    ranks: int,
    tables: Sequence[Embedded],
) -> Servers:
    """Return the servers that ``store`` reaches, as those of a model's optimizer.

    Args:
        store: reaches them.
        optimizers: of what is no table.
        ranks: how many there are.
        tables: embeddings whose rows they keep.

    Raises:
        InvalidValueError: they have another number of workers than there are ranks, or do not end
            the job when they lose one.
        UnknownNameError, EngineError: they cannot do what the optimizer does.
    """
    # A worker that may come later, in the place of another one, is in no group of ranks.
    alone = store.rules.on_worker_loss == WAIT and ranks == 1
    if store.num_workers != ranks and not alone:
        rule = f"one of {ranks} workers, as many as there are ranks"
        rule += ": start them by `syncopate ps local`, or by torchrun with the variables of the job"
        raise InvalidValueError("exchange", f"a KVStore of {store.num_workers} workers", rule)
    if store.rules.on_worker_loss != ABORT and not alone:
        rule = (
            "one with on_worker_loss='abort': the ranks of a model train all or not at all. "
            "'wait' is for workers of which each is a process without torch.distributed"
        )
        given = f"a KVStore with on_worker_loss={store.rules.on_worker_loss!r}"
        raise InvalidValueError("exchange", given, rule)
    rules_of(store, optimizers, tables)
    for table in tables:
        require_rows(msgspec.structs.replace(store.rules, optimizer=table_rule_of(table)))
    return Servers(store, optimizers[0], {}, Tables(store, tables))

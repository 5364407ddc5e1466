"""Sparse: the embeddings of a model whose gradients are sparse, and what can train them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import nn

from syncopate.artifacts.plan import LIKE_DDP
from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange.groups import trained_ids
from syncopate.engine.exchange.serving.tables import SPARSE, Embedded
from syncopate.errors import EngineError

Sparse = dict[int, list[tuple[str, SPARSE]]]
"""Embeddings with sparse gradients, by the identity of their weight, with their names."""


def sparse_weights(
    model: nn.Module, shared: Sequence[tuple[str, nn.Parameter]], *, rows: bool
) -> Sparse:
    """Return the embeddings with sparse gradients, by the weight's identity.

    Where gradients have to be dense, ``rows`` is false, and one is refused.
    """
    found: Sparse = {}
    for name, module in sparse_embeddings(model, shared):
        if not rows:
            raise EngineError(
                f"{name or 'the model'!r} is an embedding with sparse=True; gradients must be "
                "dense, but with distribute. Build it with sparse=False"
            )
        found.setdefault(id(module.weight), []).append((name, module))
    return found


def sparse_embeddings(
    model: nn.Module, shared: Sequence[tuple[str, nn.Parameter]]
) -> Iterator[tuple[str, SPARSE]]:
    """Yield the trained embeddings with sparse gradients, with their names."""
    trained = {id(parameter) for _, parameter in shared if parameter.requires_grad}
    for name, module in model.named_modules():
        if isinstance(module, SPARSE) and module.sparse and id(module.weight) in trained:
            yield name, module


def sound_tables(
    sparse: Sparse, optimizers: Sequence[torch.optim.Optimizer], *, delayed: bool
) -> tuple[Embedded, ...]:
    """Return the embeddings whose rows servers keep, or refuse one."""
    found = []
    for named in sparse.values():
        name, module = named[0]
        shown = f"{name or 'the model'!r} is an embedding with sparse=True"
        if any(each.max_norm is not None for _, each in named):
            raise EngineError(f"{shown} and max_norm, which servers do not apply; leave it out")
        if delayed:
            raise EngineError(f"{shown}, whose rows cannot come late; train without a delay")
        holding = [
            (optimizer, group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            if any(each is module.weight for each in group["params"])
        ]
        if len(holding) != 1:
            raise EngineError(
                f"{shown}, and {len(holding)} groups of the optimizers given train it; servers "
                "update it as one does"
            )
        modules_ = tuple(each for _, each in named)
        path = f"{name}.weight".removeprefix(".")
        weight = cast("nn.Parameter", module.weight)
        found.append(Embedded(path, weight, modules_, *holding[0]))
    return tuple(found)


def sound_rows(sparse: Sparse) -> tuple[Trainable, ...]:
    """Return the weights whose gradients have rows that ranks average."""
    return tuple(
        Trainable(
            place,
            f"{named[0][0]}.weight".removeprefix("."),
            cast("nn.Parameter", named[0][1].weight),
        )
        for place, named in enumerate(sparse.values())
    )


def of_others(
    optimizers: Sequence[torch.optim.Optimizer], theirs: Iterable[int]
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers that train something beside the parameters of these identities."""
    return tuple(each for each in optimizers if trained_ids(each).difference(theirs))


def require_whole_rows(exchange: str | None, *, delayed: bool) -> None:
    """Refuse an exchange or a delay that cannot go with embeddings whose gradients are sparse.

    Raises:
        EngineError: it cannot.
    """
    if delayed or exchange not in (None, *LIKE_DDP):
        what = "a delay" if delayed else f"the {exchange} exchange"
        raise EngineError(
            f"the model has an embedding with sparse=True, and gradients must be dense with {what}"
            ". Train with exchange='allreduce', 'decoupled' or a KVStore and without a delay, or "
            "build it with sparse=False"
        )

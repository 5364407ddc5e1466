"""What the engine refuses: one clear error on every rank, and no rank hangs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.errors import (
    CollectiveError,
    EngineError,
    InvalidValueError,
    PlanError,
    SyncopateError,
    UnknownNameError,
)
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    average,
    data,
    identical_everywhere,
    plan_of,
)
from tests.multiprocess.engine.error_cases import distributed, error_of, sgd, small_net, train_step
from tests.multiprocess.harness import run_ranks

WORLD_SIZE = 2


def _refused_algorithms(
    model: nn.Module,
) -> list[tuple[type[SyncopateError], str, Callable[[], Any]]]:
    """An algorithm that there is not, and an option that it does not take."""
    mistyped = plan_of(model, WORLD_SIZE, algorithm="rign")
    ring = plan_of(model, WORLD_SIZE, algorithm="ring")
    push = Recipe("all_reduce", "ring", options={"blocks": 2})
    told = [msgspec.structs.replace(bucket, push=push) for bucket in ring.buckets]
    overtold = msgspec.structs.replace(ring, buckets=tuple(told))
    return [
        (
            UnknownNameError,
            "unknown algorithm 'rign' for all_reduce; known",
            lambda: distributed(model, plan=mistyped),
        ),
        (
            UnknownNameError,
            r"unknown option 'blocks' for all_reduce \(ring\); known: order",
            lambda: distributed(model, plan=overtold),
        ),
    ]


def _refused_exceptions(
    model: nn.Module, rank: int
) -> list[tuple[type[SyncopateError], str, Callable[[], Any]]]:
    """What is to stay every rank's own."""
    return [
        (
            EngineError,
            "ignore names '0.wieght', which is no parameter or buffer.*such as '0.bias'",
            lambda: distributed(model, ignore=["0.wieght"]),
        ),
        (
            InvalidValueError,
            "ignore is '0.weight'; it must be a list of names",
            lambda: distributed(model, ignore="0.weight"),
        ),
        (
            EngineError,
            "rank 1 differs.*what to ignore is .*'0.bias'",
            lambda: distributed(model, ignore=["0.bias"] * rank),
        ),
        (
            EngineError,
            "rank 1 differs.*broadcast_buffers is False there and True",
            lambda: distributed(model, broadcast_buffers=rank == 0),
        ),
    ]


def _refused_with_a_plan(
    model: nn.Module, plan: Plan
) -> list[tuple[type[SyncopateError], str, Callable[[], Any]]]:
    """What a plan says already, and a plan that says too little though its fingerprint fits."""
    cluster = Cluster.flat(WORLD_SIZE, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    short = msgspec.structs.replace(plan, buckets=plan.buckets[1:])
    light = msgspec.structs.replace(plan.buckets[0], nbytes=1)
    wrong = msgspec.structs.replace(plan, buckets=(light, *plan.buckets[1:]))
    return [
        (
            InvalidValueError,
            "cluster= is 'Cluster'; it must be left out beside a plan",
            lambda: distributed(model, plan=plan, cluster=cluster),
        ),
        (
            InvalidValueError,
            "channels= is 1; it must be left out beside a plan",
            lambda: distributed(model, plan=plan, channels=1),
        ),
        (
            PlanError,
            "this plan is damaged: the plan lacks '2.bias'",
            lambda: distributed(model, plan=short),
        ),
        (PlanError, "bucket 0 says 1 bytes, its 1", lambda: distributed(model, plan=wrong)),
    ]


def _refused_arguments(rank: int) -> list[tuple[type[SyncopateError], str, Callable[[], Any]]]:
    model = small_net()
    other = small_net()
    plan = plan_of(model, WORLD_SIZE)
    narrow = plan_of(small_net(3), WORLD_SIZE)
    more = msgspec.structs.replace(plan, world_size=WORLD_SIZE + 1)
    only_here = plan_of(model, WORLD_SIZE, [6] if rank else [3, 3])
    cluster = Cluster.flat(3, latency_s=1e-5, bandwidth_bytes_per_s=1e9, name="three")
    return [
        (
            UnknownNameError,
            "unknown policy 'optimum'.*mg-wfbp",
            lambda: distributed(model, plan="optimum"),
        ),
        (InvalidValueError, "channels is 0", lambda: distributed(model, channels=0)),
        (InvalidValueError, "model is 'list'", lambda: distributed([], sgd(model))),
        (InvalidValueError, "optimizer is 'str'", lambda: distributed(model, "adam")),
        (
            EngineError,
            "'three' has 3 ranks; 2 are running",
            lambda: distributed(model, cluster=cluster),
        ),
        (PlanError, "another model", lambda: distributed(model, plan=narrow)),
        (PlanError, "for 3 ranks; 2 are running", lambda: distributed(model, plan=more)),
        (
            InvalidValueError,
            "plan is 'plan.json'.*Plan.load",
            lambda: distributed(model, plan="plan.json"),
        ),
        *_refused_algorithms(model),
        (
            EngineError,
            "rank 1 differs from rank 0: the plan is .*1 bucket.*2 buckets",
            lambda: distributed(model, plan=only_here),
        ),
        (
            EngineError,
            "rank 1 differs.*whether a plan is given",
            lambda: distributed(model, plan=plan if rank else None),
        ),
        (
            EngineError,
            "rank 1 differs.*policy is wfbp there and single",
            lambda: distributed(model, plan="wfbp" if rank else "single"),
        ),
        (
            EngineError,
            "rank 1 differs.*channels is 2 there and 1",
            lambda: distributed(model, channels=1 + rank),
        ),
        *_refused_exceptions(model, rank),
        (
            EngineError,
            r"none of the optimizer's 6 .* 0 of the optimizer's group 0 \(shape \(4, 8\)\)",
            lambda: distributed(model, sgd(other)),
        ),
        *_refused_with_a_plan(model, plan),
    ]


Refusal = tuple[str, Callable[[], Any]]


def _built(change: Callable[[nn.Module], Any]) -> Any:
    model = small_net()
    changed = change(model)
    return distributed(changed if isinstance(changed, nn.Module) else model)


def _twice() -> None:
    model, optimizer = distributed(small_net())
    try:
        distributed(model, optimizer)
    finally:
        model.syncopate.detach()


def _refused_models() -> list[Refusal]:
    deep = nn.Sequential(nn.Linear(2, 2))
    stray = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    lookup = nn.Sequential(nn.Embedding(3, 2, sparse=True))
    return [
        ("no trainable parameter among its 6", lambda: _built(lambda m: m.requires_grad_(False))),
        ("no trainable parameter among its 0", lambda: distributed(nn.ReLU(), stray)),
        ("the model is wrapped in Distr", lambda: _built(DistributedDataParallel)),
        ("its module '0' is wrapped", lambda: distributed(nn.Sequential(_wrapped(deep)))),
        ("the model is distributed already", _twice),
        (
            "'0.weight' has no shape yet",
            lambda: distributed(nn.Sequential(nn.LazyLinear(3)), stray),
        ),
        (
            "'1.running_mean' has no shape yet",
            lambda: distributed(nn.Sequential(deep, nn.LazyBatchNorm1d(affine=False))),
        ),
        ("meta device", lambda: distributed(nn.Linear(2, 2, device="meta"), stray)),
        ("no trainable parameter beside embeddings", lambda: distributed(lookup)),
        (
            "must be dense with the sharded exchange",
            lambda: distributed(nn.Sequential(*lookup, nn.Linear(2, 2)), exchange="sharded"),
        ),
    ]


def _wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def _refused_differences(rank: int) -> list[Refusal]:
    other = rank == 1
    fewer = nn.Sequential(*list(small_net())[: 3 - rank])
    more = nn.Sequential(*small_net(), *[nn.Linear(2, 2)] * rank)
    return [
        (
            r"rank 1 differs.*'0.weight' is shape \(5, 8\).*there.*\(4, 8\)",
            lambda: distributed(small_net(4 + rank)),
        ),
        ("rank 1 differs.*it has no parameter '2.weight'", lambda: distributed(fewer)),
        (
            "rank 1 differs.*it has parameter '3.weight', which rank 0 has not",
            lambda: distributed(more),
        ),
        (
            "rank 1 differs.*frozen",
            lambda: _built(lambda m: m[0].requires_grad_(not other) and None),
        ),
        ("rank 1 differs.*float64", lambda: _built(lambda m: m.double() if other else m)),
        ("no trainable parameter", lambda: _built(lambda m: m.requires_grad_(not other))),
    ]


def _refuses(rank: int, world_size: int) -> int:
    models = [*_refused_models(), *_refused_differences(rank)]
    rows = [*_refused_arguments(rank), *((EngineError, *row) for row in models)]
    for kind, pattern, attempt in rows:
        error = error_of(attempt)
        assert error is not None, f"nothing was refused where {pattern!r} should have been"
        assert re.search(pattern, str(error)), f"{pattern!r} not in {str(error)!r}"
        # A rank that has the fault itself raises its kind; the others say which rank it is.
        assert type(error) in (kind, EngineError), (pattern, type(error))
        dist.barrier()
    return len(rows)


def test_every_refusal_is_an_error_on_every_rank() -> None:
    assert len(set(run_ranks(_refuses, WORLD_SIZE))) == 1


def _unfreezing(rank: int, world_size: int) -> None:
    model = small_net()
    model[0].requires_grad_(False)
    model, optimizer = distributed(model, plan=plan_of(model, world_size))
    train_step(model, optimizer, rank, 0)
    model[2].requires_grad_(False)  # frozen later: exchanged no more, and no rank hangs
    train_step(model, optimizer, rank, 1)
    assert model[2].weight.grad is None
    identical_everywhere(model.parameters())
    model[0].requires_grad_(True)
    with pytest.raises(EngineError, match=r"'0.weight' was frozen when distribute was called"):
        train_step(model, optimizer, rank, 2)
    model.syncopate.detach()


def _sparse(rank: int, world_size: int) -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 3))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(tokens, self.table, sparse=True)

    model = Lookup()
    model, _ = distributed(model, plan=plan_of(model, world_size))
    with pytest.raises(EngineError, match=r"gradient of 'table' has layout torch.sparse_coo"):
        model(torch.tensor([1, 2])).sum().backward()
    model.syncopate.detach()


def _installs(rank: int, world_size: int) -> None:
    model = small_net()
    plan = plan_of(model, world_size, [3, 3])
    model, _ = distributed(model, plan=plan)
    engine = model.syncopate
    with pytest.raises(EngineError, match="no record"):
        engine.timeline()
    with pytest.raises(EngineError, match=r"rank 1 differs.*the plan"):
        engine.install(plan_of(model, world_size, [2, 4] if rank else [4, 2]))
    with pytest.raises(PlanError, match="another model"):
        engine.install(plan_of(small_net(9), world_size))
    assert engine.plan == plan

    def meddle(_: torch.Tensor) -> None:
        engine.adopt(plan)

    model[0].weight.register_post_accumulate_grad_hook(meddle)
    with pytest.raises(EngineError, match="between iterations"):
        model(data(rank, 0, 4, 8)).sum().backward()
    engine.detach()


def _changes(rank: int, world_size: int) -> None:
    torch.manual_seed(rank)
    _unfreezing(rank, world_size)
    _sparse(rank, world_size)
    _installs(rank, world_size)


def test_late_changes() -> None:
    run_ranks(_changes, WORLD_SIZE)


def _leaves(rank: int, world_size: int) -> str:
    model = small_net()
    model, optimizer = distributed(model, plan=plan_of(model, world_size))
    train_step(model, optimizer, rank, 0)
    average([torch.ones(1)])
    if rank == 1:
        os._exit(3)
    started_s = time.monotonic()
    try:
        for step in range(1, 50):
            train_step(model, optimizer, rank, step)
    except CollectiveError as error:
        assert time.monotonic() - started_s < TIMEOUT_S
        return f"{error.ranks} {error}"
    return "nothing was noticed"


def test_a_rank_that_leaves_is_named() -> None:
    results = run_ranks(_leaves, 3, may_die={1})
    for rank in (0, 2):
        assert results[rank].startswith("(1,) "), results[rank]

"""Under every policy and every all-reduce algorithm, training is DDP's."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.plan import Plan
from syncopate.engine.distribute import distribute
from syncopate.planning.registry import POLICIES
from syncopate.schedules import registry
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    buffers_of_a_forward,
    convnet,
    identical_everywhere,
    plan_of,
    policy_plan,
    train_convnet,
)
from tests.multiprocess.harness import run_ranks

STEPS = 10
FLAT = ("ring", "recursive_doubling", "halving_doubling", "binary_tree")


def _sweep_names() -> list[tuple[str, str]]:
    """Every policy with every flat algorithm, and every other algorithm with one policy."""
    others = [name for name in registry.algorithms("all_reduce") if name not in FLAT]
    policies = [row.name for row in POLICIES.values() if not row.chooses]
    return [*product(policies, (*FLAT, registry.NATIVE)), *product(["mg-wfbp"], others)]


def _with_options(model: nn.Module, world_size: int) -> Plan:
    """Every bucket with options of its own, in another order of the ranks than their numbers'."""
    plan = plan_of(model, world_size, [2, 2, 1, 2], algorithm="lp", channels=2)
    options = ({"blocks": 3}, {"blocks": 1}, {}, {"factors": (2, world_size // 2), "pipelines": 2})
    buckets = tuple(
        replace(
            bucket,
            push=replace(
                bucket.push, options=told, algorithm="blueconnect" if "factors" in told else "lp"
            ),
        )
        for bucket, told in zip(plan.buckets, options, strict=True)
    )
    return replace(plan, buckets=buckets, order=tuple(reversed(range(world_size))))


def _sweep(rank: int, world_size: int) -> int:
    torch.manual_seed(rank)
    model = convnet()
    reference = copy.deepcopy(model)
    wrapped = DistributedDataParallel(reference)
    start = copy.deepcopy(reference.state_dict())
    train_convnet(wrapped, rank, reference.parameters(), STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = distribute(model, optimizer, plan=plan_of(model, world_size), timeout_s=TIMEOUT_S)
    identical_everywhere([*model.parameters(), *model.buffers()])
    runs = [policy_plan(model, world_size, *names) for names in _sweep_names()]
    runs.append(plan_of(model, world_size, [2, 1, 3, 1], algorithm="ring", channels=2))
    runs.append(_with_options(model, world_size))
    for plan in runs:
        model.load_state_dict(start)
        model.zero_grad()
        model.syncopate.install(plan)
        assert model.syncopate.plan == plan
        train_convnet(model, rank, model.parameters(), STEPS)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                parameter, dict(reference.named_parameters())[name], rtol=1e-4, atol=1e-5
            )
        identical_everywhere([*model.parameters(), *buffers_of_a_forward(model)])
    return len(runs)


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_policy_and_algorithm_trains_like_ddp(world_size: int) -> None:
    assert run_ranks(_sweep, world_size) == [len(_sweep_names()) + 2] * world_size

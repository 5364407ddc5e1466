"""torch's own programs of FSDP, FSDP2 and DTensor, on ranks of this backend.

The wheel has no tests of these, but what torch's tests are made of: models, the way to shard them,
and the comparison with a twin that is not sharded.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy, fully_shard

from tests.multiprocess.c10d import torchs_own
from tests.multiprocess.harness import Cases

STRATEGIES = (
    ShardingStrategy.FULL_SHARD,
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy.NO_SHARD,
)
STEPS = 3


def fsdp(parts: Any, kind: str, strategy: ShardingStrategy) -> None:
    """A model of torch's under FullyShardedDataParallel trains as under DDP."""
    case = parts.Case()
    case.process_group = dist.group.WORLD
    case._test_fsdp_parity(
        getattr(parts.fsdp, kind),
        parts.fsdp.FSDPInitMode.RECURSIVE,
        parts.fsdp.DEVICEInitMode.DEVICE_BEFORE,
        sharding_strategy=strategy,
        device_id=torch.device("cpu"),
    )


def fsdp2(parts: Any, rank: int, *, reshard: bool) -> None:
    """torch's transformer under fully_shard trains as its twin with averaged gradients."""
    args = parts.dtensor.ModelArgs(n_layers=2, dropout_p=0.0)
    twin = parts.dtensor.Transformer(args)
    _from_rank0(twin)
    model = copy.deepcopy(twin)
    for module in model.layers:
        fully_shard(module, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    inputs = [
        torch.randint(0, args.vocab_size, (2, 8), generator=_seeded(step, rank))
        for step in range(STEPS)
    ]
    _train_alike(parts, model, twin, inputs)


def tensor_parallel(parts: Any, rank: int, world_size: int, *, checkpointing: bool) -> None:
    """torch's stack of layers in two dimensions: DTensors within, fully_shard across."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    twin = parts.fsdp.MLPStack(8)
    _from_rank0(twin)
    model = copy.deepcopy(twin).parallelize(mesh["tp"], mesh["dp"], checkpointing)
    kinds = (model, twin)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in kinds]
    for step in range(STEPS):
        batch = torch.randn(2, 8, generator=_seeded(step, mesh["dp"].get_local_rank()))
        losses = []
        for each, optimizer in zip(kinds, optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(each(batch).sum())
            losses[-1].backward()
            if each is twin:
                _average(twin)
            optimizer.step()
        torch.testing.assert_close(*losses)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other.detach())


def expert_parallel(parts: Any, rank: int) -> None:
    """torch's experts, a part of them on each rank, which exchange tokens and outputs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    twin = parts.dtensor.Experts(8, 16, 4)
    _from_rank0(twin)
    model = parts.dtensor.ExpertParallel()._apply(copy.deepcopy(twin), mesh)
    tokens = torch.randn(6, 8, generator=_seeded(0, rank))
    found, expected = model(tokens), twin(tokens)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        dist.all_reduce(other.grad)
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)


def _seeded(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(
        sum(100**place * each for place, each in enumerate(numbers))
    )


def _from_rank0(model: nn.Module) -> None:
    for each in model.parameters():
        dist.broadcast(each.detach(), src=0)


def _average(model: nn.Module) -> None:
    for each in model.parameters():
        dist.all_reduce(each.grad, dist.ReduceOp.AVG)


def _train_alike(parts: Any, model: nn.Module, twin: nn.Module, inputs: list[torch.Tensor]) -> None:
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin)]
    for batch in inputs:
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(batch).square().mean().backward()
            if each is twin:
                _average(twin)
            optimizer.step()
        parts.fsdp.check_sharded_parity(parts.Case(), twin, model)


class Parts:
    """What torch's tests are made of.

    Args:
        rank: this one.
        world_size: number of ranks.
        folder: an empty one.
    """

    def __init__(self, rank: int, world_size: int, folder: str) -> None:
        torchs_own.suite(rank, world_size, folder)  # stands in for what torch's tests import
        from torch.testing._internal import common_fsdp, common_utils  # noqa: PLC0415
        from torch.testing._internal.distributed._tensor import common_dtensor  # noqa: PLC0415

        self.fsdp, self.dtensor = common_fsdp, common_dtensor

        class Case(common_fsdp.FSDPTestMixin, common_utils.TestCase):
            def runTest(self) -> None: ...  # noqa: N802 - unittest's name

        self.Case = Case


KINDS = ("TransformerWithSharedParams", "NestedWrappedModule", "AlwaysWrapNestedWrappedModule")


def run(rank: int, world_size: int, folder: str) -> int:
    """Run all programs; return how many there were."""
    parts = Parts(rank, world_size, folder)
    programs: dict[str, Any] = {
        f"{kind}, {strategy.name}": lambda kind=kind, strategy=strategy: fsdp(parts, kind, strategy)
        for kind, strategy in itertools.product(KINDS, STRATEGIES)
    }
    for reshard in (True, False):
        programs[f"fsdp2, {reshard}"] = lambda on=reshard: fsdp2(parts, rank, reshard=on)
    for on in (True, False):
        programs[f"tensor parallel, {on}"] = lambda on=on: tensor_parallel(
            parts, rank, world_size, checkpointing=on
        )
    programs["experts"] = lambda: expert_parallel(parts, rank)
    with mock.patch.object(parts.fsdp, "DEVICE_TYPE", "cpu"), Cases() as case:
        for name, program in programs.items():
            with case(name):
                program()
    return len(programs)

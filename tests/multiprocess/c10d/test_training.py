"""Unmodified DDP, ZeRO-1 and FSDP2 over the backend, beside the same over Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import syncopate
from syncopate.errors import InvalidValueError
from tests.multiprocess.harness import run_ranks

BACKEND = "cpu:syncopate"
STEPS = 4


class Model(nn.Module):
    """A small network with a weight that is larger than a short message."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(24, 700)
        self.norm = nn.LayerNorm(700)
        self.second = nn.Linear(700, 97)
        self.last = nn.Linear(97, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.tanh(self.second(x)))


def inputs(rank: int, step: int) -> Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * step + rank))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[Tensor]:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
    return [
        (each.full_tensor() if hasattr(each, "full_tensor") else each).detach().clone()
        for each in model.state_dict().values()
    ]


def ddp(rank: int, size: int, hook: str = "") -> list[Tensor]:
    # Over Gloo, collectives that PowerSGD's callbacks start race with those of other buckets.
    model = DistributedDataParallel(Model(), bucket_cap_mb=25 if hook == "power" else 0.02)
    if hook == "half":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook.startswith("power"):
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rank)


def zero(rank: int, size: int) -> list[Tensor]:
    model = DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    found = trained(model, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    return found


def fsdp2(rank: int, size: int, links: bool = False, narrow: bool = False) -> list[Tensor]:
    model = Model()
    mesh = init_device_mesh("cpu", (size,))
    policy = MixedPrecisionPolicy(torch.bfloat16) if narrow else MixedPrecisionPolicy()
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    ours = syncopate.fsdp2(model) if links else None
    # Adam's first steps are the signs of gradients, which rounding turns where they are tiny.
    if size == 2:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = trained(model, optimizer, rank)
    if ours is not None:
        ours.close()
    return found


def hsdp(rank: int, size: int, links: bool = False) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = Model()
    fully_shard(model, mesh=mesh)
    ours = syncopate.fsdp2(model) if links else None
    found = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
    if ours is not None:
        ours.close()
    return found


def require_same(results: list[Any], wanted: list[Any], *, exact: bool) -> None:
    """Require the weights of all ranks to be those of the other run."""
    for found, other in zip(results, wanted, strict=True):
        for one, another in zip(found, other, strict=True):
            if exact:
                assert torch.equal(one, another), (one - another).abs().max()
            else:
                torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (ddp, ()),
        (ddp, ("half",)),
        (ddp, ("power",)),
        (zero, ()),
        (fsdp2, ()),
        (fsdp2, (False, True)),
    ],
)
def test_programs_train_as_over_gloo(program: Any, args: tuple[Any, ...]) -> None:
    """Bit by bit, but for a compression whose matrices round by where they lie in memory."""
    found = run_ranks(program, 2, *args, backend=BACKEND)
    require_same(found, run_ranks(program, 2, *args), exact=args != ("power",))


@pytest.mark.parametrize("size", [2, 3])
def test_powersgd_of_several_buckets_keeps_the_ranks_alike(size: int) -> None:
    results = run_ranks(ddp, size, "power of several buckets", backend=BACKEND)
    require_same(results[1:], results[:1] * (size - 1), exact=True)


@pytest.mark.parametrize("program", [ddp, zero, fsdp2])
def test_three_ranks_train_as_over_gloo_but_for_rounding(program: Any) -> None:
    require_same(run_ranks(program, 3, backend=BACKEND), run_ranks(program, 3), exact=False)


@pytest.mark.parametrize("backend", ["gloo", BACKEND])
@pytest.mark.parametrize("size", [2, 3])
def test_fsdp2_over_our_links_trains_as_over_gloo(size: int, backend: str) -> None:
    found = run_ranks(fsdp2, size, True, backend=backend)
    require_same(found, run_ranks(fsdp2, size), exact=size == 2)


def test_a_mesh_of_two_dimensions() -> None:
    wanted = run_ranks(hsdp, 4)
    for links in (False, True):
        require_same(run_ranks(hsdp, 4, links, backend=BACKEND), wanted, exact=False)


def test_a_model_without_fully_shard_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="apply it first"):
        syncopate.fsdp2(Model())

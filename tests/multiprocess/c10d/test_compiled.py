"""Compiled programs over the backend: the bits of the same programs over Gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.children import run_script
from tests.multiprocess.harness import Cases, run_ranks

BACKEND = "cpu:syncopate"


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="aot_eager")


def ddp(rank: int, size: int) -> list[Tensor]:
    """Buffers are broadcast in the forward that is compiled."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model = DistributedDataParallel(inner, bucket_cap_mb=1)
    code = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
        code(data).square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.state_dict().values()]


def broadcast(rank: int, size: int) -> list[Tensor]:
    @compiled
    def run(x: Tensor) -> Tensor:
        y = x * 2
        dist.broadcast(y, 1)
        return y + 1

    return [run(torch.full((4,), float(rank)))]


def in_background(rank: int, size: int) -> list[Tensor]:
    @compiled
    def run(x: Tensor) -> Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        z = x + 3
        work.wait()
        return y + z

    return [run(torch.full((4,), float(rank)))]


def messages(rank: int, size: int) -> list[Tensor]:
    @compiled
    def run(x: Tensor) -> Tensor:
        y = x * 2
        if rank == 0:
            dist.send(y, 1)
        else:
            dist.recv(y, 0)
        return y + 1

    return [run(torch.full((4,), rank + 1.0))]


def collectives(rank: int, size: int) -> list[Tensor]:
    @compiled
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        dist.all_reduce(y)
        whole = torch.empty(4 * size)
        dist.all_gather_single(whole, y + rank)
        dist.barrier()
        return y + 1, whole + 1

    return list(run(torch.full((4,), float(rank))))


PROGRAMS = (ddp, broadcast, in_background, messages, collectives)


def every_program(rank: int, size: int) -> dict[str, list[Tensor]]:
    found = {}
    with Cases() as case:
        for program in PROGRAMS:
            with case(program.__name__):
                found[program.__name__] = program(rank, size)
    dist.destroy_process_group()
    return found


def test_compiled_programs_do_what_they_do_over_gloo() -> None:
    expected = run_ranks(every_program, 2)
    for mine, other in zip(run_ranks(every_program, 2, backend=BACKEND), expected, strict=True):
        for name, tensors in mine.items():
            assert all(map(torch.equal, tensors, other[name])), name


def test_a_program_that_compiles_nothing_loads_no_compiler() -> None:
    done = run_script(
        "import sys, torch, syncopate\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group("
        "    'cpu:syncopate', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3), async_op=True).wait()\n"
        "dist.destroy_process_group()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert done.stdout == "False\n", done.stderr

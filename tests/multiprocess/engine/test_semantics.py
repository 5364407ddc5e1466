"""Where the engine and DDP meet, they mean the same: every case trains both side by side."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.multiprocess.engine.cases import (
    Pair,
    average,
    buffers_of_a_forward,
    data,
    identical_everywhere,
    mlp,
    plan_of,
    run_cases,
)
from tests.multiprocess.harness import run_ranks


class _Branches(nn.Module):
    """Which branches take part is the caller's choice; ``idle`` never does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)
        self.idle = nn.Linear(8, 4)

    def forward(self, x: Tensor, branches: str) -> Tensor:
        hidden = self.body(x).relu()
        return sum(getattr(self, name)(hidden) for name in branches.split())


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.decode = nn.Linear(6, 11, bias=False)
        self.decode.weight = self.embed.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decode(self.frozen(self.embed(tokens)))


class _Mixed(nn.Module):
    """float32, float64, bfloat16 and complex64, a scalar, an empty and a channels-last one."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = nn.Linear(8, 5)
        self.wide = nn.Linear(5, 5, dtype=torch.float64)
        self.narrow = nn.Linear(5, 5, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.phase = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.register_buffer("table", torch.randn(600, 600, dtype=torch.float64))
        self.register_buffer("mask", torch.rand(7) > 0.5)
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.begun = self.table.clone()
        self.steps += torch.tensor([1, 2**40, -7])
        self.table[0, 0] += x.sum().item()
        self.mask ^= True
        hidden = self.usual(x)
        hidden = self.wide(hidden.double()).float()
        hidden = self.narrow(hidden.bfloat16()).float() * self.scale + self.empty.sum()
        hidden = (hidden * self.phase).abs()
        return hidden.sum() + self.conv(x.view(-1, 2, 2, 2)).square().sum()


def _accumulation(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[2, 3, 1])
    for step in range(4):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            with model.no_sync():
                for micro in range(2):
                    model(data(rank, 10 * step + micro, 4, 8)).square().mean().backward()
                late = model(data(rank, 10 * step + 3, 4, 8)).square().mean()
            late.backward()  # as its forward was: local
            model(data(rank, 10 * step + 5, 4, 8)).square().mean().backward()
            # And once more, exchanged on top of what is averaged already.
            model(data(rank, 10 * step + 6, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        pair.check()
    pair.close()


def _unused(rank: int) -> None:
    pair = Pair(rank, _Branches, sizes=[1, 3, 2, 2], find_unused_parameters=True)
    choices = ["left right", "left", "right", "left right", "left"]
    for step in range(8):
        mine = choices[(step + (rank if step < 5 else 0)) % len(choices)]

        def train(model: Any, optimizer: Any, step: int = step, mine: str = mine) -> None:
            if step != 3:  # once on top of the gradients that are there
                optimizer.zero_grad(set_to_none=step != 6)
            model(data(rank, step, 4, 8), mine).square().mean().backward()
            optimizer.step()

        pair.run(train)
        pair.check()
    assert pair.model.idle.weight.grad is None
    pair.close()


def _unused_in_the_last_micro_batch(rank: int) -> None:
    pair = Pair(rank, _Branches, sizes=[8], find_unused_parameters=True)

    def train(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            model(data(rank, 0, 4, 8), "left" if rank else "right").square().mean().backward()
        model(data(rank, 1, 4, 8), "right").square().mean().backward()
        optimizer.step()

    for _ in range(2):
        pair.run(train)
        pair.check()
    pair.close()


def _shared_and_frozen(rank: int) -> None:
    pair = Pair(rank, _Tied, find_unused_parameters=True)
    assert [name for name, _, _ in pair.model.syncopate.tensors] == ["embed.weight"]

    def train(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        tokens = torch.arange(5) + rank
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()

    for _ in range(3):
        pair.run(train)
        pair.check()
    pair.close()


def _mixed_dtypes(rank: int) -> None:
    for sizes in ([11], [4, 4, 3], [1] * 11):
        pair = Pair(rank, _Mixed, lambda p: torch.optim.SGD(p, lr=1e-3), sizes=sizes)
        for step in range(3):

            def train(model: Any, optimizer: Any, step: int = step) -> None:
                optimizer.zero_grad()
                model(data(rank, step, 4, 8)).backward()
                optimizer.step()

            pair.run(train)
            pair.check(tolerance=1e-2, buffers=False)
            # Small buffers came with the gradients, large ones travel when the next forward begins.
            buffers_of_a_forward(pair.model)
            identical_everywhere([pair.model.begun, pair.model.mask, pair.model.steps])
            assert pair.model.steps.tolist() == [step + 1, (step + 1) * 2**40, -7 * (step + 1)]
        weight = pair.model.conv.weight
        assert weight.grad.stride() == weight.stride()
        pair.close()


def _buffers(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[6])
    for step in range(4):

        def train(model: Any, optimizer: Any, step: int = step) -> None:
            model.train()
            optimizer.zero_grad()
            model(data(rank, step, 4, 8)).square().mean().backward()
            optimizer.step()

        pair.run(train)
        # Ranks may evaluate as often as each likes: no rank waits for another there.
        pair.model.eval()
        for _ in range(3 * rank):
            pair.model(data(0, 99, 4, 8))
        with torch.no_grad():
            pair.model(data(0, 99, 4, 8))
        identical_everywhere(pair.model.buffers())
        here, ddp = pair.model[1], pair.reference.module[1]
        if rank == 0:
            assert torch.equal(here.running_mean, ddp.running_mean)
            assert torch.equal(here.running_var, ddp.running_var)
        assert here.num_batches_tracked.item() == step + 1
    pair.check()
    # A buffer that is another tensor now is found all the same.
    pair.model[1].running_mean = torch.full((8,), float(rank))
    pair.model.train()
    pair.model(data(rank, 5, 4, 8)).sum().backward()
    identical_everywhere(buffers_of_a_forward(pair.model))
    pair.close()


def _double_forward(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[2, 4])
    model = pair.model.train()
    reference = copy.deepcopy(model)
    first, second = data(rank, 0, 4, 8), data(rank, 1, 4, 8)
    (model(first).square().mean() + model(second).mean()).backward()
    reference(first)
    # The second forward began with rank 0's statistics, as every training forward does.
    (reference(first).square().mean() + reference(second).mean()).backward()
    expected = average(p.grad for p in reference.parameters())
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    identical_everywhere([*buffers_of_a_forward(model), *(p.grad for p in model.parameters())])
    pair.close()


def _several_backwards(rank: int) -> None:
    pair = Pair(rank, mlp, sizes=[1, 4, 1])
    model = pair.model
    plain = copy.deepcopy(model)
    outputs, expected = (m(data(rank, 0, 4, 8)) for m in (model, plain))
    for output in (outputs, expected):
        output.square().mean().backward(retain_graph=True)
        output.abs().mean().backward(retain_graph=True)
        output.sum().backward()
    for parameter, gradient in zip(
        model.parameters(), average(p.grad for p in plain.parameters()), strict=True
    ):
        torch.testing.assert_close(parameter.grad, gradient)
    pair.close()


def _part_of_the_outputs(rank: int) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.left, self.right = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            hidden = self.body(x)
            return {"left": [self.left(hidden)], "right": (self.right(hidden), x)}

    pair = Pair(rank, Several, sizes=[1, 3, 2], find_unused_parameters=True)

    def train(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        output = model(data(rank, 0, 4, 8))
        output["left"][0].square().mean().backward()
        optimizer.step()

    pair.run(train)
    pair.check()
    assert pair.model.right.weight.grad is None
    # A submodule called on its own is exchanged as well, though the model saw no forward.
    pair.model.zero_grad()
    pair.model.body(data(rank, 1, 4, 8)).sum().backward()
    identical_everywhere([pair.model.body.weight.grad])
    with pair.model.no_sync():
        pair.model.body(data(rank, 1, 4, 8)).sum().backward()
    assert pair.model.left.weight.grad is None
    pair.close()


def _between_backward_and_step(rank: int) -> None:
    for build in (
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    ):
        pair = Pair(rank, mlp, build, sizes=[1, 2, 3])
        for step in range(3):

            def train(model: Any, optimizer: Any, step: int = step) -> None:
                def closure() -> Tensor:
                    loss = model(data(rank, step, 4, 8)).square().mean()
                    optimizer.zero_grad(set_to_none=step != 1)  # after forward
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    return loss

                optimizer.step(closure)

            pair.run(train)
            pair.check(tolerance=1e-4)
        pair.close()


def _unused_under_a_second_plan(rank: int) -> None:
    pair = Pair(rank, _Branches, sizes=[8], find_unused_parameters=True)
    for step, sizes in enumerate(([8], [2, 6], [1] * 8, [4, 4])):
        if step:
            plan = plan_of(pair.model, dist.get_world_size(), sizes)
            pair.model.syncopate.install(plan)
        mine = "left" if (step + rank) % 2 else "right"

        def train(model: Any, optimizer: Any, step: int = step, mine: str = mine) -> None:
            optimizer.zero_grad()
            model(data(rank, step, 4, 8), mine).square().mean().backward()
            optimizer.step()

        for _ in range(2):
            pair.run(train)
            pair.check()
    pair.close()


def _float16(rank: int) -> None:
    """Averaged before the sum, and only once: 1e4 from each of two ranks would overflow later."""
    pair = Pair(rank, lambda: nn.Linear(4, 3).half(), sizes=[1, 1])
    for step, scale in enumerate((1.0, 1e4)):

        def train(model: Any, optimizer: Any, step: int = step, scale: float = scale) -> None:
            optimizer.zero_grad()
            (scale * model(data(rank, step, 4, 4).half()).sum()).backward()

        pair.run(train)
        pair.check(tolerance=1e-3)
        identical_everywhere([p.grad for p in pair.model.parameters()])
        assert all(p.grad.isfinite().all() and p.grad.any() for p in pair.model.parameters())
    pair.close()


CASES = (
    _accumulation,
    _unused,
    _unused_in_the_last_micro_batch,
    _unused_under_a_second_plan,
    _float16,
    _shared_and_frozen,
    _mixed_dtypes,
    _buffers,
    _double_forward,
    _several_backwards,
    _part_of_the_outputs,
    _between_backward_and_step,
)


def _every_case(rank: int, world_size: int) -> None:
    run_cases(CASES, rank)


def test_every_case_means_what_it_means_with_ddp() -> None:
    run_ranks(_every_case, 2)

"""Local SGD: a literal reference, torch's own, counts of collectives, and what scripts do."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from syncopate.delay import Delay, LocalSGD
from syncopate.engine import console
from syncopate.engine.distribute import distribute
from syncopate.errors import CollectiveError, EngineError, InvalidValueError
from tests.multiprocess.delay.cases import (
    close,
    each_has_its_own,
    iterate,
    loss_of,
    normed,
    odd64,
    one_while_looked_at,
    self_planned,
    two_groups,
)
from tests.multiprocess.delay.local_sgd_cases import Workers, locally
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import (
    Fragile,
    Odd,
    batch,
    launches,
    raises_alone,
    sgd,
    watched,
)
from tests.multiprocess.harness import run_ranks

STEPS = 14
METHODS = [(1, 0), (1, 3), (3, 0), (4, 3), (5, 20)]
TORCH_S = [(2, 0), (3, 0), (4, 3), (5, 20)]
"""Periods and warm-ups; with a period of 1 torch's averager warns."""

H3 = LocalSGD(period=3, warm_up=2)


def grouped(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [two_groups(model)]


def as_the_reference(rank: int, world_size: int) -> int:
    """Compare the engine with the reference, iteration by iteration; return how many there were."""
    compared = 0
    for place, (period, warm_up) in enumerate(METHODS):
        method = LocalSGD(period=period, warm_up=warm_up)
        reference = Workers(odd64(), grouped, method, world_size)
        cut: dict[str, Any] = {"parts": 2} if place % 2 else {"sizes": [2, 4]}
        model, optimizer = locally(
            model := odd64(), two_groups(model), world_size, method, channels=2, **cut
        )
        schedules = [
            torch.optim.lr_scheduler.StepLR(one, 5, 0.5)
            for one in (optimizer, *(each for many in reference.optimizers for each in many))
        ]
        for num in range(STEPS):
            iterate(model, optimizer, rank, [num])
            reference.iterate()
            for schedule in schedules:
                schedule.step()
            close(model.parameters(), reference.weights(rank))
            with model.syncopate.global_weights():
                close(model.parameters(), reference.means())
            compared += 1
        model.syncopate.detach()
        close(model.parameters(), reference.means())
        identical_everywhere(model.parameters())
    return compared


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_engine_does_what_workers_by_themselves_do(world_size: int) -> None:
    assert run_ranks(as_the_reference, world_size) == [len(METHODS) * STEPS] * world_size


def as_torch(rank: int, world_size: int) -> int:
    """Train beside torch's own post-local SGD; return the number of steps that were compared."""
    compared = 0
    for period, warm_up in TORCH_S:
        torch.manual_seed(3)
        theirs = Odd()
        torch.manual_seed(3)
        ours: Any = Odd()
        wrapped = DistributedDataParallel(theirs)
        state = PostLocalSGDState(
            process_group=None,
            subgroup=dist.group.WORLD,
            start_localSGD_iter=warm_up,
            post_local_gradient_allreduce=False,
        )
        wrapped.register_comm_hook(state, post_localSGD_hook)
        # torch's first average comes after its first local step; ours after the period-th.
        averager = PeriodicModelAverager(period=period, warmup_steps=warm_up + period - 1)
        their_optimizer = sgd(theirs.parameters())
        ours, optimizer = locally(
            ours, sgd(ours.parameters()), world_size, LocalSGD(period=period, warm_up=warm_up)
        )
        for num in range(STEPS):
            for model, trainer in ((wrapped, their_optimizer), (ours, optimizer)):
                model(batch(rank, num, 4, 5)).square().mean().backward()
                trainer.step()
            averager.average_parameters(theirs.parameters())
            their_optimizer.zero_grad()
            optimizer.zero_grad()
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                if world_size == 2:
                    assert torch.equal(mine, other), (period, warm_up, num)
                else:
                    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
            compared += 1
        ours.syncopate.detach()
    return compared


@pytest.mark.parametrize("world_size", [2, 4])
def test_it_is_torch_s_post_local_sgd(world_size: int) -> None:
    """On two ranks, where the order of a sum makes no difference, to the last bit."""
    assert run_ranks(as_torch, world_size) == [len(TORCH_S) * STEPS] * world_size


def counted(rank: int, world_size: int) -> None:
    method = LocalSGD(period=4, warm_up=3)
    model, optimizer = locally(
        model := odd64(), two_groups(model), world_size, method, channels=2, parts=2
    )
    buckets = model.syncopate.plan.buckets
    averaged = []
    for num in range(16):
        with watched(model) as events:
            loss_of(model, rank, num).backward()
            pushed = launches(events)
            optimizer.step()
            optimizer.zero_grad()
        launched = [event[1:] for event in events if event[0] == "launch"]
        if num < 3:
            assert pushed == ["all_reduce"] * len(buckets)
            assert len(launched) == len(buckets)
            continue
        assert pushed == []
        if not launched:
            continue
        averaged.append(num)
        assert [recipe for _, _, recipe in launched] == [bucket.push for bucket in buckets]
        nbytes = [held for _, held, _ in launched]
        # What the ranks say besides rides along behind the last.
        assert nbytes[:-1] == [bucket.nbytes for bucket in buckets[:-1]]
        assert buckets[-1].nbytes < nbytes[-1] < buckets[-1].nbytes + 512
        waits = [place for place, event in enumerate(events) if event[0] == "wait"]
        assert min(waits) >= len(buckets), "all are on their way before anybody waits"
    assert averaged == [6, 10, 14]


def test_between_averages_nothing_is_sent() -> None:
    run_ranks(counted, 3)


def twice(model: nn.Module, rank: int, num: int) -> Tensor:
    return loss_of(model, rank, num) + loss_of(model, rank, num + 100)


def accumulates(rank: int, world_size: int) -> None:
    """Under ``no_sync``, and with gradients that stay in place from the warm-up on."""
    reference = Workers(odd64(), grouped, H3, world_size, twice)
    model, optimizer = locally(model := odd64(), two_groups(model), world_size, H3)
    for num in range(STEPS):
        with model.no_sync():
            loss_of(model, rank, num).backward()
        loss_of(model, rank, num + 100).backward()
        own = [parameter.grad for parameter in model.parameters()]
        kept = [gradient.clone() for gradient in own]
        optimizer.step()
        if num > H3.warm_up:
            here = [parameter.grad for parameter in model.parameters()]
            assert all(map(torch.equal, here, kept)), "an average overwrote gradients"
        optimizer.zero_grad(set_to_none=num % 4 == 1)
        reference.iterate()
        close(model.parameters(), reference.weights(rank))


def several(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [torch.optim.AdamW(matrices, lr=0.01), torch.optim.Adam(rest, lr=0.02)]


def takes_several(rank: int, world_size: int) -> None:
    """Two optimizers, neither of them SGD; averages come when both have stepped."""
    reference = Workers(odd64(), several, H3, world_size)
    model, optimizers = locally(model := odd64(), several(model), world_size, H3, sizes=[3, 3])
    for num in range(STEPS):
        loss_of(model, rank, num).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        reference.iterate()
        close(model.parameters(), reference.weights(rank))


def leaves_alone(rank: int, world_size: int) -> None:
    """What no optimizer holds stays as it is, to the last bit; so does what is frozen."""
    torch.manual_seed(4)
    model: Any = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[2].weight.requires_grad_(False)
    before = [p.detach().clone() for p in (*model[1].parameters(), model[2].weight)]
    optimizer = sgd([*model[0].parameters(), model[2].bias])
    model, optimizer = locally(model, optimizer, world_size, LocalSGD(period=2))
    for num in range(6):
        model(batch(rank, num, 4, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(map(torch.equal, before, (*model[1].parameters(), model[2].weight)))
        if num % 2:
            identical_everywhere(model.parameters())


def one_step_raises(rank: int, world_size: int) -> None:
    """A step or a backward raises on one rank: it takes part in averages all the same."""
    for failing in (0, 2, 4, 5):
        torch.manual_seed(7)
        model: Any = Odd()
        optimizer = Fragile(model.parameters(), lr=0.1)
        model, optimizer = locally(model, optimizer, world_size, LocalSGD(period=3, warm_up=2))
        raises_alone(model, optimizer, failing, steps=9)
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())
        model.syncopate.detach()


def own_buffers(rank: int, world_size: int) -> None:
    model = normed()
    model.register_buffer("table", torch.zeros(5000))  # too large to ride along
    model, optimizer = locally(model, sgd(model.parameters()), world_size, H3)
    for num in range(11):
        model(batch(rank, num, 6, 5)).square().mean().backward()
        model.table.fill_(num + rank)
        optimizer.step()
        optimizer.zero_grad()
        if num < 2:
            continue
        if num % 3 == 1:
            identical_everywhere([*model.parameters(), *model.buffers()])
            assert model.table[0] == num
        else:
            assert model.table[0] == num + rank
            each_has_its_own([model[1].running_mean])
        one_while_looked_at(model)


def recorded(rank: int, world_size: int) -> None:
    """The timeline shows averages with the iteration that begins with them."""
    model, optimizer = locally(model := odd64(), two_groups(model), world_size, H3)
    model.syncopate.record()
    iterate(model, optimizer, rank, range(12))
    spans = model.syncopate.timeline().spans
    count = len(model.syncopate.plan.buckets)
    for num in range(12):
        here = [span.lane for span in spans if (span.iteration, span.rank) == (num, rank)]
        assert here.count("push") == (count if num < 2 else 0)
        assert here.count("pull") == (count if num in (5, 8, 11) else 0)


def one_period_each_step(rank: int, world_size: int) -> None:
    """Plain SGD whose weights are averaged after every step is synchronous SGD."""
    weights = []
    for method in (None, LocalSGD(period=1)):
        model = odd64()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=0.01)
        made, optimizer = locally(model, optimizer, world_size, method)
        iterate(made, optimizer, rank, range(8))
        weights.append([p.detach().clone() for p in made.parameters()])
        made.syncopate.detach()
    close(*weights)


@pytest.mark.parametrize(
    "script",
    [
        accumulates,
        takes_several,
        leaves_alone,
        one_step_raises,
        own_buffers,
        recorded,
        one_period_each_step,
    ],
)
def test_a_script_trains_as_it_is_written(script: Any) -> None:
    run_ranks(script, 3 if script in (leaves_alone, own_buffers) else 2)


def narrow(rank: int, world_size: int) -> None:
    """Gradients of the warm-up are narrowed; weights never are."""
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    plan = plan_of(model, world_size, wire_dtype="bfloat16").delayed(LocalSGD(period=2, warm_up=2))
    model, optimizer = distribute(model, sgd(model.parameters()), plan=plan, timeout_s=TIMEOUT_S)
    for num in range(6):
        model(batch(rank, num, 6, 5)).square().mean().backward()
        own = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
        assert not all(map(torch.equal, own, model.parameters()))
        optimizer.zero_grad()
    identical_everywhere([*model.parameters(), *model.buffers()])
    coarse = [parameter.bfloat16().float() for parameter in model.parameters()]
    assert not any(map(torch.equal, coarse, model.parameters()))


def test_weights_travel_in_their_own_type() -> None:
    run_ranks(narrow, 2)


def dies(rank: int, world_size: int) -> dict[str, Any]:
    model, optimizer = locally(
        model := odd64(), two_groups(model), world_size, LocalSGD(period=5, warm_up=2)
    )
    for num in range(20):
        if rank == 1 and num == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        began_s = time.monotonic()
        try:
            iterate(model, optimizer, rank, [num])
        except CollectiveError as error:
            return {"text": str(error), "took_s": time.monotonic() - began_s, "num": num}
    return {}


def test_a_rank_that_dies_between_averages_is_named() -> None:
    results = run_ranks(dies, 3, may_die=[1])
    for rank in (0, 2):
        assert re.search(r"rank 1 (\(\S+\) )?was lost", results[rank]["text"])
        assert 4 <= results[rank]["num"] <= 6  # the next average, at the latest
        assert results[rank]["took_s"] < 20.0  # long before the time limit


def refusals(rank: int, world_size: int) -> None:
    model = odd64()
    momentum = sgd(model.parameters())
    method = LocalSGD(period=4)
    plan = plan_of(model, world_size)
    with pytest.raises(EngineError, match="none was given"):
        distribute(model, delay=method)
    with pytest.raises(InvalidValueError, match="left out with the sharded exchange"):
        distribute(model, momentum, delay=method, exchange="sharded")
    with pytest.raises(InvalidValueError, match="beside a plan that has another one"):
        distribute(model, momentum, delay=method, plan=plan.delayed(LocalSGD(period=3)))
    with pytest.raises(InvalidValueError, match="left out with the allreduce exchange"):
        distribute(model, momentum, delay=Delay(k=2), plan=plan)
    with pytest.raises(EngineError, match="delay"):
        distribute(model, momentum, delay=LocalSGD(period=2 + rank), timeout_s=TIMEOUT_S)
    made, _ = locally(model, momentum, world_size, method)
    with pytest.raises(EngineError, match=r"join\(\) cannot go with local SGD"):
        made.join()


def test_what_cannot_be_is_refused_on_every_rank() -> None:
    run_ranks(refusals, 2)


def planned(rank: int, world_size: int) -> None:
    """Without a plan: what the training settles on is all-reduce, and has the averages."""
    model, optimizer, said = self_planned(H3)
    if rank == 0:
        assert "weights are averaged every 3 steps" in said
    plan = model.syncopate.plan
    assert (plan.exchange, plan.local_sgd, plan.delay) == ("allreduce", H3, None)
    reference = Workers(odd64(), grouped, H3, world_size)
    for num in range(STEPS):
        iterate(model, optimizer, rank, [num])
        reference.iterate()
        close(model.parameters(), reference.weights(rank))


@pytest.mark.parametrize("world_size", [1, 2])
def test_without_a_plan_it_makes_one(world_size: int) -> None:
    run_ranks(planned, world_size)


def planned_too_late(rank: int, world_size: int) -> None:
    """A warm-up that is over before measuring is: DDP's buckets, whatever was being tried."""
    said: list[str] = []
    console.log = said.append  # type: ignore[assignment]
    made = odd64()
    model, optimizer = distribute(
        made, two_groups(made), delay=LocalSGD(period=3, warm_up=9), cache=False
    )
    iterate(model, optimizer, rank, range(12))
    if rank == 0:
        assert "stays on DDP's buckets, because planning failed: the warm_up of" in said[-1]
        assert "9 steps" in said[-1]
    assert not model.syncopate.planning
    assert model.syncopate.plan.policy == "threshold"


def test_a_warm_up_that_ends_before_measuring_leaves_ddp_s_buckets() -> None:
    run_ranks(planned_too_late, 2)

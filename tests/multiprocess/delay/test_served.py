"""SSD-SGD on parameter servers: the weights of the sharded exchange, and who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import syncopate
from syncopate.delay import Delay
from syncopate.engine.distribute import distribute
from syncopate.engine.exchange.push import gathering as base
from syncopate.engine.selfplan.ddp_buckets import carried_by
from syncopate.errors import EngineError, InvalidValueError, ParameterServerError
from syncopate.paramserver.job import Job
from syncopate.protocol.rules import Rules
from tests.children import HANGS_S
from tests.multiprocess.delay.cases import buffers_between_pulls, delayed, normed, odd64
from tests.multiprocess.engine.cases import TIMEOUT_S, identical_everywhere, plan_of
from tests.multiprocess.exchange.cases import Odd, batch, begin_anew, failing_backward, sgd
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.paramserver.servers import QUICK, LocalServers

STEPS = 14


def store_of(job: Job, rank: int, rules: Rules | None = None) -> syncopate.KVStore:
    found = msgspec.structs.replace(job, rank=rank)
    return syncopate.KVStore(rules or Rules(), job=found, limits=QUICK)


def on_servers(model: nn.Module, store: Any, delay: Delay | None, optimizer: Any = None) -> Any:
    """Return a model and its optimizer, whose weights servers hold, on a bucket for each tensor."""
    made = optimizer or sgd(model.parameters())
    plan = carried_by(
        "served", plan_of(model, store.num_workers, exchange="sharded"), store.num_servers
    )
    given = plan.delayed(delay)
    return distribute(model, made, plan=given, exchange=store, timeout_s=TIMEOUT_S)


def own(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(model: Any, optimizer: Any, rank: int, nums: Iterable[int]) -> None:
    """Train the iterations ``nums``, in whatever the weights are."""
    dtype = next(model.parameters()).dtype
    for num in nums:
        model(batch(rank, num, 4, 5, dtype=dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=num % 2 == 0)


def seen(rank: int, model: Any, optimizer: Any) -> list[list[Tensor]]:
    """Train, and return the rank's own weights after every step, and the global ones at the end."""
    found = []
    for num in range(STEPS):
        train(model, optimizer, rank, [num])
        found.append(own(model))
    with model.syncopate.global_weights():
        identical_everywhere(model.parameters())
        found.append(own(model))
    assert all(map(torch.equal, found[-2], own(model)))
    model.syncopate.detach()
    assert all(map(torch.equal, found[-1], own(model)))
    return found


def float32() -> nn.Module:
    torch.manual_seed(11)
    return Odd()


def both_ways(rank: int, world_size: int, jobs: dict[Delay, Job]) -> int:
    """Train on servers and on shards; return how many steps were compared."""
    compared = 0
    for place, (delay, job) in enumerate(jobs.items()):
        base.ASIDE_BYTES = 0 if place % 2 else 1 << 40  # all of it aside, or nothing
        build = odd64 if world_size > 2 else float32
        with store_of(job, rank) as store:
            served = seen(rank, *on_servers(build(), store, delay))
        sharded = seen(rank, *delayed(model := build(), sgd(model.parameters()), world_size, delay))
        for ours, theirs in zip(served, sharded, strict=True):
            if world_size == 2:  # each sum has two terms
                assert all(map(torch.equal, ours, theirs)), delay
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
            compared += 1
    return compared


RULES = ("glu", "sgd", "dc-asgd-a", "none")


@pytest.mark.parametrize(("world_size", "servers"), [(2, 2), (4, 1)])
def test_servers_and_shards_give_the_same_weights(world_size: int, servers: int) -> None:
    delays = [
        Delay(k=k, warm_up=2 * k - 1, local_update=RULES[(k + shift) % 4], lambda_0=0.3)
        for k in (1, 2, 3, 4)
        for shift in range(2 if world_size == 2 else 1)
    ]
    jobs = [LocalServers(servers=servers, workers=world_size) for _ in delays]
    try:
        given = dict(zip(delays, (each.job for each in jobs), strict=True))
        counts = run_ranks(both_ways, world_size, given)
        assert counts == [len(delays) * (STEPS + 1)] * world_size
        assert [each.ended() for each in jobs] == [None] * len(jobs)
    finally:
        for each in jobs:
            each.__exit__()


def grouped(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer of two groups, each with values of its own."""
    first, *others = parameters
    groups = [{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 1e-3}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.5)


def groups_both_ways(rank: int, world_size: int, job: Job) -> None:
    delay = Delay(k=2, warm_up=3, local_update="glu")
    with store_of(job, rank) as store:
        model = float32()
        served = seen(rank, *on_servers(model, store, delay, grouped(model.parameters())))
    model = float32()
    sharded = seen(rank, *delayed(model, grouped(model.parameters()), world_size, delay))
    assert all(map(torch.equal, *each) for each in zip(served, sharded, strict=True))


def test_groups_have_values_of_their_own_with_a_delay_too() -> None:
    with LocalServers(servers=2, workers=2) as job:
        run_ranks(groups_both_ways, 2, job.job)


def nothing_else(rank: int, world_size: int, jobs: list[Job]) -> None:
    weights = []
    for job, delay in zip(jobs, (None, Delay(k=1, warm_up=3, local_update="none")), strict=True):
        torch.manual_seed(5)
        model: Any = nn.Sequential(Odd(), nn.BatchNorm1d(3))
        with store_of(job, rank) as store:
            model, optimizer = on_servers(model, store, delay)
            train(model, optimizer, rank, range(10))
            with model.syncopate.global_weights():
                weights.append([*own(model), *(each.clone() for each in model.buffers())])
    assert all(map(torch.equal, *weights))


def test_one_step_without_a_local_update_is_the_served_exchange() -> None:
    with LocalServers(servers=2, workers=3) as one, LocalServers(servers=2, workers=3) as other:
        run_ranks(nothing_else, 3, [one.job, other.job])


class Counting:
    """A store that notes what goes through it, and holds pulls back until it may answer."""

    def __init__(self, store: Any) -> None:
        self.store, self.seen = store, list[str]()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.held: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def push_many(self, *told: Any) -> Any:
        self.seen.append("push")
        return self.store.push_many(*told)

    def pull_many(self, *told: Any) -> Any:
        self.seen.append("pull")
        handle = self.store.pull_many(*told)
        wait = handle.wait

        def held() -> None:
            self.held.append(self.may_answer.wait(HANGS_S))
            wait()

        handle.wait = held
        return handle


def pulled_every_k(rank: int, world_size: int, jobs: dict[Delay, Job]) -> list[int]:
    """Return how many pulls there were in each step of a training."""
    counts = []
    tensors = len(list(odd64().parameters()))
    for place, (delay, job) in enumerate(jobs.items()):
        base.ASIDE_BYTES = 0 if place % 2 else 1 << 40
        with store_of(job, rank) as store:
            spy = Counting(store)
            model, optimizer = on_servers(odd64(), spy, delay)
            for num in range(4 * delay.k):
                spy.seen.clear()
                # Nothing but the next local update may wait for what was pulled.
                held = num == 2 * delay.k - 1 and delay.runs_ahead
                if held:
                    spy.may_answer.clear()
                train(model, optimizer, rank, [num])
                assert spy.seen.count("push") == tensors
                assert spy.seen[:tensors] == ["push"] * tensors
                counts.append(spy.seen.count("pull") // tensors)
                if held:
                    spy.held.clear()
                    model(batch(rank, num + 1, 4, 5, dtype=torch.float64)).sum().backward()
                    assert not spy.held
                    spy.may_answer.set()
                    optimizer.step()
                    model.syncopate.ready()
                    assert spy.held
                    assert all(spy.held)
                    optimizer.zero_grad()
                    break
    return counts


def test_weights_are_pulled_every_kth_step_and_nobody_waits() -> None:
    delays = [
        Delay(k=3, warm_up=2),
        Delay(k=2, warm_up=1, local_update="sgd"),
        Delay(k=2, warm_up=1, local_update="none"),
    ]
    jobs = [LocalServers(servers=1, workers=2) for _ in delays]
    try:
        given = dict(zip(delays, (each.job for each in jobs), strict=True))
        glu, plain, none = [1, 1, 1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 0, 1, 0, 1, 0, 1]
        assert run_ranks(pulled_every_k, 2, given) == [glu + plain + none] * 2
    finally:
        for each in jobs:
            each.__exit__()


def runs_ahead(rank: int, world_size: int, job: Job) -> None:
    """Between pulls rank 0 ends a step before rank 1 begins its backward."""
    with store_of(job, rank) as store:
        model, optimizer = on_servers(odd64(), store, Delay(k=4, warm_up=3))
        train(model, optimizer, rank, range(5))
        if rank:
            dist.barrier()
        train(model, optimizer, rank, [5])
        if not rank:
            dist.barrier()
        train(model, optimizer, rank, range(6, 12))
        with model.syncopate.global_weights():
            identical_everywhere(model.parameters())


def test_between_pulls_a_rank_may_be_an_iteration_ahead() -> None:
    with LocalServers(servers=1, workers=2) as job:
        run_ranks(runs_ahead, 2, job.job)


def fails(rank: int, world_size: int, job: Job) -> list[str]:
    """Rank 1's backward fails between pulls; return what each rank is told from then on."""
    said: list[str] = []
    # The job is over, with an error of its own, for rank 1 pushed less often.
    with suppress(ParameterServerError), store_of(job, rank) as store:
        model, optimizer = on_servers(odd64(), store, Delay(k=4, warm_up=3))
        train(model, optimizer, rank, range(5))
        with failing_backward(model.middle) if rank else nullcontext():
            train(model, optimizer, rank, [5])
        if rank:
            optimizer.zero_grad()
        for num in (6, 7):
            try:
                train(model, optimizer, rank, [num])
            except EngineError as error:
                said.append(str(error))
                optimizer.zero_grad()
        dist.barrier()  # who leaves early ends the job, and then that is what the others are told
    return said


def test_a_backward_that_failed_between_pulls_ends_the_training() -> None:
    with LocalServers(servers=1, workers=2) as job:
        first, second = run_ranks(fails, 2, job.job)
    assert "backward failed on rank 1" in first[0]
    begin_anew((first[1], *second))


def resumed(rank: int, world_size: int, rule: str, first: Job, others: dict[int, Job]) -> None:
    """Stop a training before some iterations, and go on from there on other servers."""
    torch.manual_seed(9)
    delay, steps = Delay(k=3, warm_up=2, local_update=rule), 8

    def made_for(model: nn.Module) -> torch.optim.Optimizer:
        if rule == "sgd":
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return sgd(model.parameters())

    def built() -> Any:
        torch.manual_seed(9)
        return nn.Sequential(Odd(), nn.BatchNorm1d(3)).double()

    kept = []
    with store_of(first, rank) as store:
        model, optimizer = on_servers(made := built(), store, delay, made_for(made))
        for num in range(steps):
            whole = model.syncopate.state_dict(optimizer, everywhere=True)
            kept.append((whole, model.syncopate.local_state()))
            train(model, optimizer, rank, [num])
        expected = [*own(model), *(each.clone() for each in model.buffers())]
    for num, job in others.items():
        whole, local = kept[num]
        model = built()
        optimizer = made_for(model)
        model.load_state_dict(whole["model"])
        optimizer.load_state_dict(whole["optimizer"])
        with store_of(job, rank) as store:
            model, optimizer = on_servers(model, store, delay, optimizer)
            model.syncopate.load_local_state(local)
            train(model, optimizer, rank, range(num, steps))
            found = [*own(model), *(each.clone() for each in model.buffers())]
        assert all(map(torch.equal, found, expected)), num


@pytest.mark.parametrize(
    ("rule", "nums"), [("glu", (0, 3, 5, 7)), ("sgd", (1, 4, 6)), ("dc-asgd-a", (2, 5, 6, 7))]
)
def test_a_training_goes_on_with_the_same_bits(rule: str, nums: tuple[int, ...]) -> None:
    """Between them the rules stop before every iteration, of the warm-up and behind it."""
    jobs = [LocalServers(servers=1, workers=2) for _ in (None, *nums)]
    try:
        first, *others = [each.job for each in jobs]
        run_ranks(resumed, 2, rule, first, dict(zip(nums, others, strict=True)))
    finally:
        for each in jobs:
            each.__exit__()


def own_buffers(rank: int, world_size: int, job: Job) -> None:
    with store_of(job, rank) as store:
        delay = Delay(k=3, warm_up=2, local_update="sgd")
        buffers_between_pulls(*on_servers(normed(), store, delay), rank)


def test_buffers_are_each_rank_s_own_between_pulls() -> None:
    with LocalServers(servers=1, workers=3) as job:
        run_ranks(own_buffers, 3, job.job)


def refused(rank: int, world_size: int, job: Job) -> None:
    model = odd64()
    with store_of(job, rank) as store:
        rules, store.rules = store.rules, Rules(mode="asgd")
        with pytest.raises(InvalidValueError, match="left out with servers of mode 'asgd'"):
            distribute(model, sgd(model.parameters()), exchange=store, delay=2)
        store.rules = rules
        adam = torch.optim.Adam(model.parameters())
        with pytest.raises(EngineError, match=r"GLU .*Adam.*'sgd'"):
            distribute(model, adam, exchange=store, delay=2)
        model, optimizer = on_servers(model, store, Delay(k=2, warm_up=1))
        train(model, optimizer, rank, range(5))
        with (
            pytest.raises(EngineError, match=r"written to in global_weights\(\)"),
            torch.no_grad(),
            model.syncopate.global_weights(),
        ):
            model.gain.add_(1)
        model(batch(rank, 5, 4, 5, dtype=torch.float64)).sum().backward()
        with (
            pytest.raises(EngineError, match="no step followed it"),
            model.syncopate.global_weights(),
        ):
            pass
        optimizer.step()
        optimizer.zero_grad()
        # Another plan, without the delay: the weights are the global ones.
        model.syncopate.install(model.syncopate.plan.delayed(None))
        identical_everywhere(model.parameters())
        train(model, optimizer, rank, range(6, 8))
        identical_everywhere(model.parameters())


def test_what_servers_cannot_do_is_refused() -> None:
    with LocalServers(servers=1, workers=2) as job:
        run_ranks(refused, 2, job.job)

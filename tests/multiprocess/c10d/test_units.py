"""Plans of units on real ranks: what is wrapped, when it is gathered, and the numbers of FSDP2."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import syncopate
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.c10d.fsdp2 import AllGather, Links, ReduceScatter
from syncopate.c10d.units import wrap
from syncopate.errors import EngineError, InvalidValueError, PlanError
from syncopate.planning.registry import Policy
from syncopate.zoo.task import Task
from tests.multiprocess.harness import run_ranks

LAYERS, WIDTH, STEPS = 5, 24, 3


class Block(nn.Module):
    """Two layers beside each other's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Words, blocks and a head that has the words' weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(31, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 31, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(rank: int, step: int) -> Tensor:
    return torch.randint(31, (4, 7), generator=torch.Generator().manual_seed(100 * step + rank))


def loss(logits: Tensor, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def trained(model: nn.Module, rank: int) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        words = batch(rank, step)
        loss(model(words), words).backward()
        optimizer.step()
    found = []
    for each in model.state_dict().values():
        found.append((each.full_tensor() if hasattr(each, "full_tensor") else each).clone())
    return found


@functools.cache
def profiled() -> Workload:
    return syncopate.profile(
        Task(Model(), batch(0, 0), batch(0, 0), loss, "model"), warmup=1, iterations=2
    )


def planned(size: int, count: int = 1, ranks: int = 0, **told: Any) -> Plan:
    """Return the plan of units of so many blocks each."""
    levels = [Level(name="host", size=size, latency_s=1e-4, bandwidth_bytes_per_s=1e8)]
    if ranks:
        levels[0] = Level(name="device", size=ranks, latency_s=1e-4, bandwidth_bytes_per_s=1e9)
        outer = Level(name="host", size=size // ranks, latency_s=1e-3, bandwidth_bytes_per_s=1e8)
        levels.append(outer)
    units = Policy("some", lambda p: (*range(count, p.length, count), p.length), "", "a test")
    cluster = Cluster(name="ranks", levels=tuple(levels))
    return syncopate.make_fsdp_plan(profiled(), cluster, units, shard_ranks=ranks, **told)


def by_hand(rank: int, size: int) -> list[Tensor]:
    """Train with FSDP2 as its users write it, over Gloo."""
    return trained(sharded_by_hand(size), rank)


def sharded_by_hand(size: int) -> Model:
    model, mesh = Model(), init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def by_hand_and_plans(rank: int, size: int, plans: list[Plan]) -> list[list[Tensor]]:
    """Train with FSDP2 as its users write it, and by each plan."""
    found = [by_hand(rank, size)]
    for plan in plans:
        model = Model()
        links = syncopate.fsdp2(model, plan=plan)
        found.append(trained(model, rank))
        links.close()
    return found


def require_same(found: list[Tensor], wanted: list[Tensor], *, exact: bool = True) -> None:
    for one, another in zip(found, wanted, strict=True):
        if exact:
            assert torch.equal(one, another), (one - another).abs().max()
        else:
            torch.testing.assert_close(one, another, rtol=1e-4, atol=1e-6)


def test_two_ranks_train_as_fsdp2_bit_by_bit() -> None:
    plans = [
        planned(2),
        planned(2, count=2, prefetch=2),
        planned(2, count=3, reshard=False),
        planned(2, prefetch=3, reshard=True),
        planned(2, count=LAYERS + 1),
    ]
    for wanted, *found in run_ranks(by_hand_and_plans, 2, plans):
        assert len(found) == len(plans)
        for one in found:
            require_same(one, wanted)


def with_rings(plan: Plan) -> Plan:
    buckets = tuple(
        replace(
            one,
            push=replace(one.push, algorithm="ring", options={}),
            pull=replace(one.pull, algorithm="ring", options={}),
        )
        for one in plan.buckets
    )
    return replace(plan, buckets=buckets)


def test_four_ranks_train_alike_whatever_the_units() -> None:
    """Which rank adds an element up first does not depend on what it is merged with."""
    plans = [with_rings(planned(4, count=count, prefetch=2)) for count in (1, 2, 3)]
    plans.append(planned(4, ranks=2))
    for wanted, first, *others, grouped in run_ranks(by_hand_and_plans, 4, plans):
        for other in others:
            require_same(other, first)
        require_same(first, wanted, exact=False)
        require_same(grouped, wanted, exact=False)


class Told:
    """A collective of torch's that notes when it is called."""

    def __init__(self, inner: Any, events: list[Any], event: tuple[str, int]) -> None:
        self.inner, self.events, self.event = inner, events, event

    def allocate(self, *args: Any, **told: Any) -> Tensor:
        return self.inner.allocate(*args, **told)

    def __call__(self, *args: Any, **told: Any) -> Any:
        self.events.append(self.event)
        return self.inner(*args, **told)


def events_of(rank: int, size: int, plan: Plan) -> list[tuple[str, int]]:
    """Return what the first iteration gathers, begins and pushes, by bucket."""
    model, links = Model(), Links(None)
    events: list[tuple[str, int]] = []
    for index, unit in enumerate(wrap(model, plan, {})):
        gather, scatter = AllGather(links, unit.bucket.pull), ReduceScatter(links, unit.bucket.push)
        unit.module.set_custom_all_gather(Told(gather, events, ("gather", index)))
        unit.module.set_custom_reduce_scatter(Told(scatter, events, ("push", index)))
        unit.module.register_forward_pre_hook(
            lambda *_, index=index: events.append(("forward", index))
        )
    words = batch(rank, 0)
    loss(model(words), words).backward()
    links.close()
    return events


def test_weights_are_asked_for_as_the_plan_says() -> None:
    """Units of two blocks; bucket 3 is the root, and bucket 0 the last of forward."""
    plan = planned(2, count=2, prefetch=2, reshard=True)
    assert len(plan.buckets) == 4
    wanted = [("gather", 3), ("gather", 2), ("gather", 1), ("forward", 3), ("gather", 0)]
    wanted += [("forward", 2), ("forward", 1), ("forward", 0)]
    wanted += [("gather", 0), ("gather", 1), ("gather", 2)]
    wanted += [("push", 0), ("push", 1), ("push", 2), ("push", 3)]
    for events in run_ranks(events_of, 2, plan):
        assert events == wanted


def test_what_is_kept_is_gathered_once() -> None:
    for events in run_ranks(events_of, 2, planned(2, count=2, prefetch=1, reshard=False)):
        assert [index for kind, index in events if kind == "gather"] == [3, 2, 1, 0]


def wrong_models(rank: int, size: int, path: str) -> list[str]:
    plan, said = Plan.load(path), []
    sharded = Model()
    fully_shard(sharded)
    with pytest.raises(InvalidValueError, match="or its file"):
        syncopate.fsdp2(Model(), plan=3)  # type: ignore[arg-type]
    for model, given in (
        (nn.Linear(3, 3), {}),
        (sharded, {}),
        (Model(), {"ignored_params": set()}),
    ):
        with pytest.raises((PlanError, InvalidValueError)) as refusal:
            syncopate.fsdp2(model, plan=path, **given)
        said.append(str(refusal.value))
    with pytest.raises(InvalidValueError) as refusal:
        syncopate.fsdp2(sharded, mesh=None)
    said.append(str(refusal.value))
    norm, one, other, *rest = plan.buckets
    moved = next(name for name in one.tensors if name.endswith("up.weight"))
    nbytes = 4 * Model().get_parameter(moved).numel()
    left = tuple(name for name in one.tensors if name != moved)
    one = replace(one, tensors=left, nbytes=one.nbytes - nbytes)
    other = replace(other, tensors=(moved, *other.tensors), nbytes=other.nbytes + nbytes)
    with pytest.raises(PlanError) as refusal:
        wrap(Model(), replace(plan, buckets=(norm, one, other, *rest)), {})
    return [*said, str(refusal.value)]


def test_what_a_plan_cannot_be_applied_to_is_refused(tmp_path: Path) -> None:
    planned(2).save(tmp_path / "plan.json")
    for other, under, told, without, torn in run_ranks(
        wrong_models, 2, str(tmp_path / "plan.json")
    ):
        assert "this plan is for another model" in other
        assert "not under fully_shard yet" in under
        assert "ignored_params" in told
        assert "left out without a plan" in without
        assert "up.bias' cannot be in a unit of its own" in torn


def trained_otherwise(rank: int, size: int, plan: Plan) -> list[str]:
    said = []
    for train in (
        lambda model: syncopate.distribute(model, plan=plan),
        lambda model: syncopate.distribute(
            model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plan
        ),
        lambda model: syncopate.ddp(model, plan=plan),
    ):
        with pytest.raises(EngineError) as refusal:
            train(Model())
        said.append(str(refusal.value))
    return said


def test_others_say_who_trains_by_it() -> None:
    for said in run_ranks(trained_otherwise, 2, planned(2)):
        assert len(said) == 3
        assert all("give this plan to syncopate.fsdp2(model, plan=plan)" in one for one in said)


def recorded(rank: int, size: int, path: str) -> None:
    """Record FSDP2 as its users write it."""
    model = sharded_by_hand(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for step in range(4):
            words = batch(rank, step)
            optimizer.zero_grad()
            loss(model(words), words).backward()
            optimizer.step()
    profiler.export_chrome_trace(f"{path}/rank{rank}.json")


def test_a_recording_leads_to_a_plan_for_the_same_program(tmp_path: Path) -> None:
    run_ranks(recorded, 2, str(tmp_path))
    work = syncopate.recorded_workload([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    cluster = Cluster.flat(2, latency_s=1e-4, bandwidth_bytes_per_s=1e8)
    pairs = Policy("pairs", lambda p: (*range(2, p.length, 2), p.length), "", "a test")
    plan = syncopate.make_fsdp_plan(work, cluster, pairs)
    assert sum(bucket.nbytes for bucket in plan.buckets) == work.nbytes
    assert work.nbytes == sum(one.nbytes for one in Model().parameters())
    assert len(plan.buckets) == 1 + (LAYERS + 1) // 2
    for wanted, found in run_ranks(by_hand_and_plans, 2, [plan]):
        require_same(found, wanted)


def test_a_model_under_fully_shard_is_not_profiled() -> None:
    for said in run_ranks(profiled_wrongly, 2):
        assert "before fully_shard is applied" in said


def profiled_wrongly(rank: int, size: int) -> str:
    with pytest.raises(InvalidValueError) as refusal:
        syncopate.profile(Task(sharded_by_hand(size), batch(0, 0), batch(0, 0), loss))
    return str(refusal.value)

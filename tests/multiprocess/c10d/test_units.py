"""Plans of units on real ranks: what is wrapped, when it is gathered, and the numbers of FSDP2."""

from __future__ import annotations

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
from syncopate.c10d.fsdp2 import AllGather, Links, ReduceScatter
from syncopate.c10d.units import wrap
from syncopate.errors import InvalidValueError, PlanError
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


def planned(path: Path, size: int, count: int = 1, ranks: int = 0, **told: Any) -> Plan:
    """Write the plan of units of so many blocks each."""
    work = syncopate.profile(
        Task(Model(), batch(0, 0), batch(0, 0), loss, "model"), warmup=1, iterations=2
    )
    levels = [Level(name="host", size=size, latency_s=1e-4, bandwidth_bytes_per_s=1e8)]
    if ranks:
        levels[0] = Level(name="device", size=ranks, latency_s=1e-4, bandwidth_bytes_per_s=1e9)
        outer = Level(name="host", size=size // ranks, latency_s=1e-3, bandwidth_bytes_per_s=1e8)
        levels.append(outer)
    units = Policy("some", lambda p: (*range(count, p.length, count), p.length), "", "a test")
    cluster = Cluster(name="ranks", levels=tuple(levels))
    plan = syncopate.make_fsdp_plan(work, cluster, units, shard_ranks=ranks, **told)
    plan.save(path)
    return plan


def by_hand(rank: int, size: int) -> list[Tensor]:
    """Train with FSDP2 as its users write it, over Gloo."""
    model, mesh = Model(), init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, rank)


def by_plan(rank: int, size: int, path: str) -> list[Tensor]:
    model = Model()
    links = syncopate.fsdp2(model, plan=path)
    found = trained(model, rank)
    links.close()
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
    "told",
    [
        {},
        {"count": 2, "prefetch": 2},
        {"count": 3, "reshard": False},
        {"count": 1, "prefetch": 3, "reshard": True},
        {"count": LAYERS + 1},
    ],
)
def test_two_ranks_train_as_fsdp2_bit_by_bit(tmp_path: Path, told: dict[str, Any]) -> None:
    planned(tmp_path / "plan.json", 2, **told)
    found = run_ranks(by_plan, 2, str(tmp_path / "plan.json"))
    require_same(found, run_ranks(by_hand, 2), exact=True)


def test_four_ranks_train_alike_whatever_the_units(tmp_path: Path) -> None:
    """Which rank adds an element up first does not depend on what it is merged with."""
    runs = []
    for number, told in enumerate(({}, {"count": 2, "prefetch": 2}, {"count": 3})):
        path = tmp_path / f"{number}.json"
        plan = planned(path, 4, **told)
        ring = [
            replace(
                one,
                push=replace(one.push, algorithm="ring", options={}),
                pull=replace(one.pull, algorithm="ring", options={}),
            )
            for one in plan.buckets
        ]
        replace(plan, buckets=tuple(ring)).save(path)
        runs.append(run_ranks(by_plan, 4, str(path)))
    for other in runs[1:]:
        require_same(other, runs[0], exact=True)
    require_same(runs[0], run_ranks(by_hand, 4), exact=False)


def test_groups_of_ranks_train_as_all_ranks(tmp_path: Path) -> None:
    planned(tmp_path / "plan.json", 4, ranks=2)
    found = run_ranks(by_plan, 4, str(tmp_path / "plan.json"))
    require_same(found, run_ranks(by_hand, 4), exact=False)


class Told:
    """A collective of torch's that notes when it is called."""

    def __init__(self, inner: Any, events: list[Any], event: tuple[str, int]) -> None:
        self.inner, self.events, self.event = inner, events, event

    def allocate(self, *args: Any, **told: Any) -> Tensor:
        return self.inner.allocate(*args, **told)

    def __call__(self, *args: Any, **told: Any) -> Any:
        self.events.append(self.event)
        return self.inner(*args, **told)


def events_of(rank: int, size: int, path: str) -> list[tuple[str, int]]:
    """Return what the first iteration gathers, begins and pushes, by bucket."""
    model, plan, links = Model(), Plan.load(path), Links(None)
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


def test_weights_are_asked_for_as_the_plan_says(tmp_path: Path) -> None:
    """Units of two blocks; bucket 3 is the root, and bucket 0 the last of forward."""
    plan = planned(tmp_path / "plan.json", 2, count=2, prefetch=2, reshard=True)
    assert len(plan.buckets) == 4
    wanted = [("gather", 3), ("gather", 2), ("gather", 1), ("forward", 3), ("gather", 0)]
    wanted += [("forward", 2), ("forward", 1), ("forward", 0)]
    wanted += [("gather", 0), ("gather", 1), ("gather", 2)]
    wanted += [("push", 0), ("push", 1), ("push", 2), ("push", 3)]
    for events in run_ranks(events_of, 2, str(tmp_path / "plan.json")):
        assert events == wanted


def test_what_is_kept_is_gathered_once(tmp_path: Path) -> None:
    planned(tmp_path / "plan.json", 2, count=2, prefetch=1, reshard=False)
    for events in run_ranks(events_of, 2, str(tmp_path / "plan.json")):
        assert [one for one in events if one[0] == "gather"] == [
            ("gather", 3), ("gather", 2), ("gather", 1), ("gather", 0)
        ]  # fmt: skip


def wrong_model(rank: int, size: int, path: str) -> list[str]:
    plan, said = Plan.load(path), []
    sharded = Model()
    fully_shard(sharded)
    for model, given in (
        (nn.Linear(3, 3), {}),
        (sharded, {}),
        (Model(), {"ignored_params": set()}),
    ):
        with pytest.raises((PlanError, InvalidValueError)) as refusal:
            syncopate.fsdp2(model, plan=plan, **given)
        said.append(str(refusal.value))
    with pytest.raises(InvalidValueError) as refusal:
        syncopate.fsdp2(sharded, mesh=None)
    return [*said, str(refusal.value)]


def test_what_a_plan_cannot_be_applied_to_is_refused(tmp_path: Path) -> None:
    planned(tmp_path / "plan.json", 2)
    for other, sharded, told, without in run_ranks(wrong_model, 2, str(tmp_path / "plan.json")):
        assert "this plan is for another model" in other
        assert "not under fully_shard yet" in sharded
        assert "ignored_params" in told
        assert "left out without a plan" in without


def recorded(rank: int, size: int, path: str) -> None:
    """Record FSDP2 as its users write it."""
    model, mesh = Model(), init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
    plan.save(tmp_path / "plan.json")
    found = run_ranks(by_plan, 2, str(tmp_path / "plan.json"))
    require_same(found, run_ranks(by_hand, 2), exact=True)

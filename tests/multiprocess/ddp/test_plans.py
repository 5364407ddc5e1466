"""Which plans DDP trains by: given, from a file, from a recording, kept; and which are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import DECOUPLED, Bucket, Plan
from syncopate.artifacts.timelines.gradients import name_of
from syncopate.artifacts.workload import fingerprint
from syncopate.engine.ddp.wrap import NO_PLAN, ddp
from syncopate.engine.selfplan import cache
from syncopate.engine.selfplan.contest import Contender
from syncopate.engine.selfplan.start import facts_of_job
from syncopate.errors import (
    ArtifactError,
    EngineError,
    InvalidValueError,
    PlanError,
    SyncopateError,
    UnknownNameError,
)
from syncopate.recipe import Recipe
from tests.multiprocess.ddp.cases import Twins, bucket_bytes, carried, logged, plan_for
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    convnet,
    made_up_workload,
    plan_of,
    tensors_of,
    train_convnet,
)
from tests.multiprocess.harness import run_ranks


def without_names(plan: Plan, model: nn.Module) -> Plan:
    """Return the plan as a recording with the shapes of gradients gives it."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    number = iter(range(len(shapes)))
    names = {
        name: name_of(next(number), shapes[name])
        for bucket in plan.buckets
        for name in bucket.tensors
    }
    buckets = tuple(
        replace(bucket, tensors=tuple(names[name] for name in bucket.tensors))
        for bucket in plan.buckets
    )
    renamed = [(names[name], numel, dtype) for name, numel, dtype in tensors_of(model)]
    return replace(plan, buckets=buckets, fingerprint=fingerprint(renamed))


def of_messages(plan: Plan) -> Plan:
    """Return a plan as a recording of messages gives it: pieces that end where no gradient does."""
    total = sum(bucket.nbytes for bucket in plan.buckets)
    cuts = [total // 3, total - total // 3]
    buckets = tuple(
        Bucket(
            tensors=(f"bucket 0 part {2 * place}", f"bucket 0 part {2 * place + 1}"),
            nbytes=nbytes,
            push=Recipe("all_reduce", "ring"),
        )
        for place, nbytes in enumerate(cuts)
    )
    return replace(plan, buckets=buckets, fingerprint="0" * 16)


def recorded(rank: int, world_size: int, *, shapes: bool) -> tuple[list[int], list[int], list[str]]:
    def plan(model: nn.Module, ranks: int) -> Plan:
        found = plan_for(model, ranks)
        return without_names(found, model) if shapes else of_messages(found)

    with logged() as lines, carried() as seen:
        twins = Twins(rank, world_size, plan=plan)
        for each in twins.both:
            train_convnet(each, rank, each.parameters(), 4)
    twins.require_alike(bits=True)
    found = bucket_bytes(twins.planned)
    assert [4 * numel for *_, numel in seen[-len(found) :]] == found
    return found, [bucket.nbytes for bucket in twins.asked.buckets], lines


def test_a_recording_s_plan_is_matched_by_shapes_in_ready_order() -> None:
    found, asked, lines = run_ranks(partial(recorded, shapes=True), 2)[0]
    assert found == asked
    assert "DDP trains by the plan: its 4 buckets are the plan's (by hand, native+ring)" in lines


def test_a_plan_for_messages_gets_the_nearest_buckets() -> None:
    found, asked, lines = run_ranks(partial(recorded, shapes=False), 2)[0]
    assert len(found) == len(asked) == 2
    assert sum(found) == sum(asked)
    assert found != asked
    (said,) = [line for line in lines if "DDP trains" in line]
    assert said.startswith("DDP trains by the plan as nearly as it can: 0 of its 2 buckets are")
    assert said.endswith("a recording of messages does not tell where gradients end")


def another_order(rank: int, world_size: int) -> list[str]:
    """A plan in another order than gradients become ready; and one where DDP never cuts anew."""
    found = []
    for options in ({}, {"find_unused_parameters": True}):

        def plan(model: nn.Module, ranks: int) -> Plan:
            made = plan_of(model, ranks, [3, 4])
            first, second = (one.tensors for one in made.buckets)
            sizes = {name: 4 * numel for name, numel, _ in tensors_of(model)}
            swapped = ((*first[:2], second[-1]), (*second[:-1], first[2]))
            buckets = tuple(
                replace(one, tensors=names, nbytes=sum(sizes[name] for name in names))
                for one, names in zip(made.buckets, swapped, strict=True)
            )
            return replace(made, buckets=buckets)

        with logged() as lines:
            twins = Twins(rank, world_size, plan=plan, **options)
            for each in twins.both:
                train_convnet(each, rank, each.parameters(), 3)
        twins.require_alike(bits=True)
        found += [line for line in lines if "DDP trains" in line]
    return found


def test_what_ddp_cannot_have_is_said() -> None:
    one, other = run_ranks(another_order, 2)[0]
    assert "as nearly as it can" in one
    assert one.endswith("gradients became ready in another order than the plan's")
    assert other.endswith("with find_unused_parameters=True DDP goes by the order of definition")


Refused = tuple[type[SyncopateError], str, Callable[[], Any]]


def refusals(rank: int, world_size: int, folder: str) -> None:
    model = convnet()
    plan = plan_for(model, world_size)
    path = Path(folder, f"plan-{rank}.json")
    plan.save(path)
    make = partial(ddp, model, timeout_s=TIMEOUT_S)
    decoupled = plan_of(model, world_size, exchange=DECOUPLED)
    wider = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    shapes = without_names(plan_of(wider, world_size), wider)
    pieces = of_messages(plan_of(wider, world_size))
    mistyped = plan_of(model, world_size, algorithm="rign")
    sparse = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Linear(4, 4))
    wrong: list[Refused] = [
        (PlanError, "another model .*lacks '0.bias'", lambda: make(plan_of(wider, world_size))),
        (PlanError, "of the shape of its 'gradient 0 .3.'", lambda: make(shapes)),
        (PlanError, "its gradients have 96 bytes, and the model's have", lambda: make(pieces)),
        (PlanError, "is for 5 ranks; 2 are running", lambda: make(replace(plan, world_size=5))),
        (EngineError, "of the decoupled exchange, and DDP all-reduces", lambda: make(decoupled)),
        (EngineError, "broadcasts of weights", lambda: make(replace(plan, weight_sync_period=2))),
        (UnknownNameError, "unknown algorithm 'rign'", lambda: make(mistyped)),
        (InvalidValueError, "plan is 3; it must be a syncopate.Plan, or the path", lambda: make(3)),
        (ArtifactError, "nothing.json", lambda: make(str(Path(folder, "nothing.json")))),
        (InvalidValueError, "bucket_cap_mb=.*left out", lambda: make(plan, bucket_cap_mb=3)),
        (InvalidValueError, "module is 'Plan'", lambda: ddp(plan, plan, timeout_s=TIMEOUT_S)),
        (EngineError, "sparse=False", lambda: ddp(sparse, plan, timeout_s=TIMEOUT_S)),
        (
            EngineError,
            "rank 1 differs from rank 0: the plan is",
            lambda: make(plan_of(model, world_size, [7] if rank else None)),
        ),
        (
            EngineError,
            "rank 1 differs from rank 0: find_unused_parameters= is False",
            lambda: make(plan, find_unused_parameters=not rank),
        ),
        (
            EngineError,
            "is wrapped in DistributedDataParallel already",
            lambda: ddp(DistributedDataParallel(convnet()), plan, timeout_s=TIMEOUT_S),
        ),
    ]
    for kind, text, refused in wrong:
        with pytest.raises(kind, match=text):
            refused()
    good = ddp(model, path, timeout_s=TIMEOUT_S)  # and nothing of the others is left behind
    train_convnet(good, rank, good.parameters(), 3)
    assert bucket_bytes(good) == [bucket.nbytes for bucket in plan.buckets]


def test_what_cannot_be_is_refused_on_every_rank(tmp_path: Path) -> None:
    run_ranks(refusals, 2, str(tmp_path))


def kept(rank: int, world_size: int, folder: str) -> tuple[list[str], list[int]]:
    os.environ[cache.VARIABLE] = folder
    model = convnet()
    if rank == 0:
        fast, slow = plan_for(model, world_size), plan_of(model, world_size)
        hosts = [os.uname().nodename] * world_size
        facts = facts_of_job("Sequential", fast.fingerprint, hosts, torch.device("cpu"))
        turns = [Contender("a", slow, [2.0, 2.1])]
        turns.append(Contender("b", fast, [1.0, 1.1]))
        cluster = Cluster.flat(world_size, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
        settled = cache.Settled(
            facts=facts | {"exchange": ""},
            plan=plan_of(model, world_size, exchange=DECOUPLED),
            name="decoupled",
            step_s=0.5,
            ddp_step_s=2.0,
            workload=made_up_workload(model),
            cluster=cluster,
            date="2026-11-01T00:00:00+00:00",
            contest=tuple(turns),
        )
        cache.write(settled)
    dist.barrier()
    with logged() as lines:
        planned = ddp(model, timeout_s=TIMEOUT_S)
        train_convnet(planned, rank, planned.parameters(), 3)
        plain = ddp(nn.Sequential(convnet()), timeout_s=TIMEOUT_S)
        ddp(convnet(), timeout_s=TIMEOUT_S, cache=False)
        ddp(convnet(), timeout_s=TIMEOUT_S, bucket_cap_mb=1)
        sparse = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Linear(4, 4))
        ddp(sparse, timeout_s=TIMEOUT_S)  # DDP can train it, without a plan
        train_convnet(plain, rank, plain.parameters(), 3)
    return lines, bucket_bytes(planned)


def test_the_fastest_kept_plan_of_all_reduces_is_taken(tmp_path: Path) -> None:
    (lines, found), (others, _) = run_ranks(kept, 2, str(tmp_path))
    assert found == [bucket.nbytes for bucket in plan_for(convnet(), 2).buckets]
    first, *rest = [line for line in lines if "Reducer" not in line]
    assert first.startswith("b, kept on 2026-11-01T00:00:00+00:00 (")
    assert rest.count(NO_PLAN) == 4
    assert others == []


def beside_a_public_group(rank: int, world_size: int) -> tuple[str, list[float], list[float]]:
    model = convnet()
    planned = ddp(model, plan_for(model, world_size), timeout_s=TIMEOUT_S)
    train_convnet(planned, rank, planned.parameters(), 1)
    group = dist.new_group(backend="syncopate")
    whole = torch.empty(world_size)
    dist.all_gather_single(whole, torch.tensor([float(rank)]), group=group)
    part = torch.empty(1)
    dist.reduce_scatter_single(part, torch.arange(float(world_size)), group=group)
    train_convnet(planned, rank, planned.parameters(), 1)
    return dist.get_backend(group), whole.tolist(), part.tolist()


def test_the_public_backend_stays_as_it_was() -> None:
    """A group of a DDP with a plan takes no other group's place."""
    results = run_ranks(beside_a_public_group, 2)
    assert results == [("syncopate", [0.0, 1.0], [2.0 * rank]) for rank in range(2)]


def alone(rank: int, world_size: int) -> None:
    twins = Twins(rank, world_size)
    for each in twins.both:
        train_convnet(each, rank, each.parameters(), 3)
    twins.require_alike(bits=True)
    assert bucket_bytes(twins.planned) == [bucket.nbytes for bucket in twins.asked.buckets]


def test_one_rank_trains_by_a_plan() -> None:
    run_ranks(alone, 1)

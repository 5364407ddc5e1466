"""The training benchmark's variants on real ranks: all train alike, and tell what they hold."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from benchmarks.contest import turn, works
from benchmarks.contest.results import Setting
from benchmarks.contest.variants import ALONE, ALONE_DELAYED, REFERENCE, SELF, VARIANTS
from msgspec import structs

from syncopate.artifacts.plan import EXCHANGES, Bucket, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.recipe import Recipe
from syncopate.schedules import registry
from tests.multiprocess.harness import run_ranks

RANKS = 2
SETTING = Setting(
    hosts=RANKS, rate="1gbit", ratio=None, iterations=2, warmup=1, optimizer="adamw", quick=True
)


def _workload() -> Workload:
    made = works.make(works.WORKS["resnet20"], None, rank=0, world_size=RANKS, quick=True)
    named = list(made.model.named_parameters())[::-1]
    tensors = (GradientTensor(name=n, numel=p.numel(), backward_s=1e-4) for n, p in named)
    return Workload(model="m", tensors=tuple(tensors), forward_s=0.01, backward_s=0.01)


def _plan(workload: Workload, exchange: str) -> Plan:
    """Return a plan of two buckets."""
    push, pull = EXCHANGES[exchange].push, EXCHANGES[exchange].pull
    names = [tensor.name for tensor in workload.tensors]
    buckets = tuple(
        Bucket(
            tensors=tuple(part),
            nbytes=sum(t.nbytes for t in workload.tensors if t.name in part),
            push=Recipe(push, registry.algorithms(push)[0]),
            pull=Recipe(pull, registry.algorithms(pull)[0]) if pull else None,
        )
        for part in (names[:20], names[20:])
    )
    return Plan(
        model=workload.model,
        fingerprint=workload.fingerprint,
        world_size=RANKS,
        policy="by hand",
        exchange=exchange,
        buckets=buckets,
    )


def _tell(rank: int, _: int, jobs: list[turn.Job]) -> list[turn.Told]:
    return [turn.perform(job) for job in jobs]


def test_every_variant_trains_as_ddp_does(tmp_path: Path) -> None:
    names = [name for name in VARIANTS if name != SELF]
    workload = _workload()
    jobs: list[turn.Job] = []
    for name in names:
        (tmp_path / name).mkdir()
        exchange = VARIANTS[name].exchange
        plan = _plan(workload, exchange) if exchange else None
        if plan is not None and VARIANTS[name].delayed:
            plan = plan.delayed(VARIANTS[name].delay(torch.optim.AdamW))
        jobs.append(
            turn.Job(
                what=turn.TRAIN,
                work="resnet20",
                variant=name,
                setting=SETTING,
                plan=plan,
                folder=str(tmp_path / name),
            )
        )
    prepare = structs.replace(jobs[0], what=turn.PREPARE)
    told = run_ranks(_tell, RANKS, [prepare, *jobs])
    whole = 0  # what the first variant, which shares nothing, holds
    for index, name in enumerate(names, start=1):
        ranks = [one[index] for one in told]
        delayed = VARIANTS[name].delayed
        steps = 2 * VARIANTS[name].k if delayed else SETTING.iterations
        assert all(len(one.steps_s) == steps for one in ranks), name
        assert all(one.peak_bytes > 50e6 for one in ranks) or sys.platform != "linux"
        alone = name in (ALONE, ALONE_DELAYED)
        assert len({one.digest for one in ranks}) == (RANKS if alone else 1), name
        off = turn.distance(tmp_path / name / "weights.pt", tmp_path / REFERENCE / "weights.pt")
        assert delayed or ((off > 1e-2) if alone else (off < 1e-3)), (name, off)
        held = sum(one.state_bytes for one in ranks)
        whole = whole or held
        # Where one rank updates an element, one rank has its state.
        once = name in ("zero-1", "sharded", "rooted") or (delayed and not alone)
        assert abs(held - whole / 2) < 0.01 * whole if once else held == whole, name
    profiled = told[0][0].workload
    assert {t.name for t in profiled.tensors} == {t.name for t in workload.tensors}
    assert profiled.update_s > 0

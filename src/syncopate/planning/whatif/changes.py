"""Changes: each single thing that could differ from today, and what it gains.

Today is a setting whose gradients travel in DDP's buckets, or by the best plan. A change of
hardware keeps the way gradients travel; a change of the plan keeps the hardware. Gains are of
throughput, so that faster devices and larger batches can be compared with faster links; they do not
add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, FSDP, SERVED, SHARDED
from syncopate.artifacts.results.whatif import DDP, Change, Setting
from syncopate.planning.margins import EXACT
from syncopate.planning.whatif.machines import BANDWIDTH, LATENCY, linked
from syncopate.planning.whatif.predictor import Predictor, efficiency, throughput
from syncopate.units import format_link, sold_as

NOTHING, PROGRAM, HARDWARE, TRAINING = "nothing", "program", "hardware", "training"
"""What a change asks for: a plan alone, a program that is not quite DDP's (docs/sharded.md), other
hardware, or a training that computes something else."""

_DEMANDS = (NOTHING, PROGRAM, HARDWARE, TRAINING)

TIED = 0.005
"""Gains closer than this share of throughput are not told apart."""

WORTH = 0.02
"""A change is worth a word from this share of throughput on."""

PULL_PERIOD, LOCAL_STEPS = 4, 8
"""The k of SSD-SGD and the period of local SGD that are tried."""

_OF_ONE_EXCHANGE = {"algorithm": "", "servers": 0}
"""What another exchange has not from today's: its algorithms and its servers."""

_Shifts = tuple[float, ...]


class Option(NamedTuple):
    """A change before it is predicted.

    Attributes:
        kind: such as ``"links"``.
        words: what is done.
        asks: one of the four constants.
        setting: with it.
        ddp: whether gradients travel in DDP's buckets with it.
    """

    kind: str
    words: str
    asks: str
    setting: Setting
    ddp: bool


def options(base: Setting, today: str, cluster: Cluster) -> Iterator[Option]:
    """Yield the single changes from today.

    Args:
        base: today's setting.
        today: by which plan.
        cluster: of today's setting.
    """
    plain = today == DDP
    if plain:
        base = _bare(base)

    def plan(kind: str, words: str, asks: str = NOTHING, **how: object) -> Option:
        return Option(kind, words, asks, replace(base, **how), False)

    if base.ranks > 1:
        if plain:
            kind, words = "algorithm", "all-reduce DDP's buckets by the cheapest algorithm of each"
            if len(cluster.joining) > 1:
                kind = "hierarchy"
                words = "all-reduce DDP's buckets level by level, by the cheapest algorithm"
            yield plan(kind, words, exchange=ALLREDUCE, policy="threshold", algorithm="")
            yield plan("plan", "merge gradients by the best plan", exchange=ALLREDUCE)
            words = "hide half of each all-reduce behind forward, by the best plan (decoupled)"
            yield plan("exchange", words, exchange=DECOUPLED)
        if base.exchange != SHARDED:
            words = "spread the optimizer's state over ranks (sharded), by the best plan"
            shards = _OF_ONE_EXCHANGE | {"exchange": SHARDED, "local_sgd": 0, "pull_period": 0}
            yield plan("sharded", words, PROGRAM, **shards)
        if not base.wire_dtype and base.exchange not in (FSDP, SERVED):
            words = "send gradients in 16 bits (bfloat16), by the best plan"
            yield plan("16 bits", words, TRAINING, wire_dtype="bfloat16")
        if not (base.pull_period or base.local_sgd):
            words = f"pull weights every {PULL_PERIOD}th step (SSD-SGD, k = {PULL_PERIOD})"
            late = _OF_ONE_EXCHANGE | {"exchange": SHARDED, "pull_period": PULL_PERIOD}
            yield plan("k", words, TRAINING, **late)
            words = f"average weights every {LOCAL_STEPS}th step (local SGD)"
            apart = _OF_ONE_EXCHANGE | {"exchange": "", "local_sgd": LOCAL_STEPS}
            yield plan("local SGD", words, TRAINING, **apart)
        rate = 2 * base.bandwidth_bytes_per_s
        sold = sold_as(rate)
        words = "links twice as fast" + (f", {format_link(rate)}" if sold else "")
        faster = linked(cluster, base, BANDWIDTH, rate)
        yield Option("links", words, HARDWARE, faster, plain)
        closer = linked(cluster, base, LATENCY, base.latency_s / 2)
        yield Option("latency", "half the latency between nodes", HARDWARE, closer, plain)
    quick = replace(base, gpu_speed=2 * base.gpu_speed)
    yield Option("compute", "devices that compute twice as fast", HARDWARE, quick, plain)
    if base.batch is not None:
        larger = replace(base, batch=2 * base.batch)
        words = f"a batch of {2 * base.batch} on each rank in place of {base.batch}"
        yield Option("batch", words, TRAINING, larger, plain)


def _bare(setting: Setting) -> Setting:
    """Return a setting that leaves open how gradients travel."""
    return replace(
        setting,
        exchange="",
        policy="",
        algorithm="",
        wire_dtype="",
        pull_period=0,
        servers=0,
        local_sgd=0,
    )


def change_of(option: Option, now: float, predictor: Predictor, shifts: _Shifts = EXACT) -> Change:
    """Return what an option gains.

    Args:
        option: the change.
        now: today's samples per second, with the same shifts.
        predictor: of this training.
        shifts: what bandwidth, latency and computation are multiplied by.
    """
    setting = option.setting
    iteration_s = predictor.iteration_s(setting, ddp=option.ddp, shifts=shifts)
    compute_s = predictor.compute_s(setting, shifts)
    reached = throughput(setting, iteration_s)
    return Change(
        kind=option.kind,
        words=option.words,
        asks=option.asks,
        gain=reached / now - 1 if now else 0.0,
        efficiency=efficiency(compute_s, iteration_s),
        iteration_s=iteration_s,
    )


def ranked(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return changes, the greatest gain first; of gains within ``TIED`` what asks for least."""
    left = sorted(changes, key=lambda change: -change.gain)
    found = []
    while left:
        near = [one for one in left if 1 + one.gain >= (1 - TIED) * (1 + left[0].gain)]
        found.append(min(near, key=lambda change: _DEMANDS.index(change.asks)))
        left.remove(found[-1])
    return tuple(found)

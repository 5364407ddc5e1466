"""Figures of handling are found again in samples made of them, and prices with them hold."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, Handling, Level
from syncopate.calibration import probes
from syncopate.calibration.message_overhead import fit, handling_of
from syncopate.calibration.samples import PROBES, SIZES, Sample
from syncopate.costs.schedule.execution import execution_times
from syncopate.schedules.registry import build, candidates
from syncopate.units import KIB, MIB

TRUE = Handling(
    call_s=1.2e-3,
    round_s=1.5e-4,
    stream_s=8e-5,
    addition_s=4e-5,
    byte_s=4e-9,
    exposed=0.4,
    left_over=0.3,
)
SMALL, LARGE = (sizes for _, sizes in SIZES)


def bare(ranks: int) -> Cluster:
    level = Level(
        name="host",
        size=ranks,
        latency_s=5e-5,
        bandwidth_bytes_per_s=1.19e8,
        burst_bytes=56 * KIB,
    )
    return Cluster(name="c", levels=(level,), reduction_s_per_byte=3e-11)


def probed(cluster: Cluster, sizes: Sequence[int], true: Handling = TRUE) -> list[Sample]:
    """Return what the probes take where ``true`` holds."""
    known = structs.replace(cluster, handling=(true,))
    found = []
    for name, algorithm, options in PROBES:
        schedule = build(name, algorithm, cluster.world_size, **options)
        for nbytes, seconds in zip(sizes, execution_times(schedule, known, sizes), strict=True):
            found.append(Sample(name, algorithm, options, nbytes, (float(seconds),)))
    return found


def errors(cluster: Cluster, found: Handling, sizes: Sequence[int]) -> np.ndarray:
    """Return by how much prices of everything are off where ``TRUE`` holds, as logarithms."""
    known, guessed = (structs.replace(cluster, handling=(h,)) for h in (TRUE, found))
    off = []
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for algorithm in candidates(name, cluster):
            schedule = build(name, algorithm, cluster.world_size)
            prices = (execution_times(schedule, each, sizes) for each in (guessed, known))
            off.append(np.log(next(prices) / next(prices)))
    return np.concatenate(off)


@pytest.mark.parametrize("ranks", [4, 8])
def test_figures_are_found_again(ranks: int):
    cluster = bare(ranks)
    found = Handling(**fit(cluster, probed(cluster, LARGE), 0.0))
    assert np.abs(errors(cluster, found, (96 * KIB, 512 * KIB, 2 * MIB, 16 * MIB))).max() < 0.02
    for name in ("call_s", "stream_s", "addition_s", "byte_s", "exposed", "left_over"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.1), name


@pytest.mark.parametrize(("ranks", "off"), [(2, 0.15), (3, 0.03), (4, 0.03), (7, 0.03)])
def test_prices_of_small_buffers_hold(ranks: int, off: float):
    """With two ranks, latency hides what a message costs in a stream."""
    cluster = bare(ranks)
    found = Handling(**fit(cluster, probed(cluster, SMALL), 0.0))
    assert np.abs(errors(cluster, found, (4 * KIB, 16 * KIB, 64 * KIB))).max() < off


def test_without_costs_there_is_little_to_find():
    cluster = bare(4)
    nothing = Handling(call_s=1e-6)
    found = fit(cluster, probed(cluster, LARGE, nothing), 0.0)
    samples = probed(cluster, LARGE, Handling(**found))
    for sample, free in zip(samples, probed(cluster, LARGE, nothing), strict=True):
        assert sample.seconds == pytest.approx(free.seconds, rel=0.02)


def test_a_share_that_nothing_feels_is_none():
    """Two ranks never turn from one to another."""
    cluster = bare(2)
    assert fit(cluster, probed(cluster, LARGE), 0.0)["left_over"] == 0


def test_noise_moves_prices_little_and_one_outlier_hardly_more():
    cluster, randomness = bare(8), random.Random(7)
    samples = [
        s._replace(samples_s=tuple(s.seconds * randomness.lognormvariate(0, 0.1) for _ in range(9)))
        for s in probed(cluster, LARGE)
    ]
    found = Handling(**fit(cluster, samples, 0.0))
    sizes = (128 * KIB, MIB, 8 * MIB)
    assert np.abs(errors(cluster, found, sizes)).mean() < 0.05
    samples[3] = samples[3]._replace(samples_s=(3 * samples[3].seconds,))
    found = Handling(**fit(cluster, samples, 0.0))
    assert np.abs(errors(cluster, found, sizes)).mean() < 0.08


def test_every_range_of_sizes_has_figures_of_its_own():
    cluster = bare(4)
    slow = structs.replace(TRUE, call_s=5e-3)
    found = handling_of(cluster, probed(cluster, SMALL) + probed(cluster, LARGE, slow), 2e-10)
    assert [entry.up_to_bytes for entry in found] == [limit for limit, _ in SIZES]
    assert [entry.burst_byte_s for entry in found] == [2e-10, 2e-10]
    assert found[0].call_s == pytest.approx(1.2e-3, rel=0.1)
    assert found[1].call_s == pytest.approx(5e-3, rel=0.1)
    assert handling_of(cluster, (), 2e-10) == ()


def test_the_seconds_of_a_sample_are_its_median():
    assert Sample("all_reduce", "ring", {}, 4, (3.0, 1.0, 2.0)).seconds == 2.0


@dataclasses.dataclass
class Alone:
    """A communicator as one rank sees it, whose peers report ``others`` times its own times."""

    world_size: int
    others: float = 1.0
    rank: int = 0
    calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)

    def barrier(self) -> None:
        pass

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_gather_object(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            return [value] * self.world_size
        slower = [[self.others * seconds for seconds in of] for of in value]
        return [value, slower] * (self.world_size // 2)

    def __getattr__(self, collective: str) -> Any:
        def run(tensor: torch.Tensor, *root: int, algorithm: str, options: dict[str, Any]) -> None:
            self.calls.append((collective, algorithm, root, tensor.nbytes, tensor.data_ptr()))

        return run


@pytest.mark.parametrize("ranks", [1, probes.MOST_RANKS + 1])
def test_one_rank_or_very_many_have_no_samples(ranks: int):
    assert probes.measure_samples(Alone(ranks), bare(ranks), budget_s=1.0) == ()


@pytest.mark.parametrize(
    ("budget_s", "sizes"), [(60.0, [*SMALL, *LARGE]), (1e-9, [*SMALL, LARGE[0]])]
)
def test_every_probe_is_measured_at_every_size_that_the_budget_allows(monkeypatch, budget_s, sizes):
    monkeypatch.setattr("syncopate.calibration.timing._AHEAD_S", 0.0)
    monkeypatch.setattr(probes, "_MOST_SAMPLES", 1)
    communicator, cluster = Alone(4, others=2.0), structs.replace(bare(4), hosts=("a",) * 4)
    samples = probes.measure_samples(communicator, cluster, budget_s=budget_s)
    assert [(s[:3], s.nbytes) for s in samples] == [
        ((name, algorithm, dict(options)), nbytes)
        for nbytes in sizes
        for name, algorithm, options in PROBES
    ]
    ran = {call[:2] + call[3:4] for call in communicator.calls}
    assert ran == {(s.collective, s.algorithm, s.nbytes) for s in samples}
    assert {call[2] for call in communicator.calls if call[0] == "broadcast"} == {(0,)}
    assert len({call[4] for call in communicator.calls}) == len(samples)
    assert all(len(s.samples_s) == (3 if s.nbytes <= 128 * KIB else 1) for s in samples)
    assert all(seconds > 0 for s in samples for seconds in s.samples_s)

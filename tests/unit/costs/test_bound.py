"""The physical bound: the line rate behind it, and predictions below it."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, Level, LinearFit
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.bound import (
    iteration_bound_s,
    line_s_per_byte,
    require_possible,
    wire_bytes,
    wire_s,
)
from syncopate.errors import InvalidValueError, PredictionError, UnknownNameError
from syncopate.units import KIB, MIB

GIGABIT = Cluster.preset("1gbe", 4)
LINE = 1.5 / GIGABIT.levels[0].bandwidth_bytes_per_s
RESNET_BYTES = 102_228_128


def with_curves(cluster: Cluster, *points: dict[int, float]) -> Cluster:
    curves = tuple(
        CollectiveCurve(
            collective="all_reduce",
            algorithm=name,
            points=tuple(CurvePoint(nbytes=n, samples_s=(s,)) for n, s in sorted(found.items())),
            fit=LinearFit(a_s=0.0, b_s_per_byte=0.0),
        )
        for name, found in zip(("ring", "native", "halving_doubling"), points, strict=False)
    )
    return structs.replace(cluster, curves=curves)


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_reduce", 150), ("reduce_scatter", 75), ("all_gather", 75), ("broadcast", 100)],
)
def test_the_fewest_bytes_of_each_collective(collective: str, expected: float) -> None:
    assert wire_bytes(4, 100, collective) == expected
    assert wire_bytes(1, 100, collective) == 0
    line = line_s_per_byte(GIGABIT, collective) * GIGABIT.levels[0].bandwidth_bytes_per_s
    assert line == pytest.approx(expected / 100)
    with pytest.raises(UnknownNameError, match="all_redcue"):
        wire_bytes(4, 100, "all_redcue")


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_noise_between_neighbouring_sizes_is_no_line_rate(noise: float) -> None:
    sizes = np.geomspace(1e3, 6.4e7, 100).astype(int)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        seconds = (1e-3 + LINE * sizes) * (1 + noise * rng.standard_normal(len(sizes)))
        noisy = with_curves(GIGABIT, dict(zip(sizes.tolist(), seconds.tolist(), strict=True)))
        assert wire_s(noisy, RESNET_BYTES) == pytest.approx(LINE * RESNET_BYTES, rel=1e-3)


def test_short_messages_that_pass_in_a_burst_are_no_line_rate() -> None:
    burst = with_curves(GIGABIT, {1 * KIB: 1e-4, 64 * KIB: 1e-4, 256 * KIB: 2e-3})
    assert wire_s(burst, RESNET_BYTES) == pytest.approx(LINE * RESNET_BYTES, rel=2e-3)
    # What passes in a burst does so once, and the bound of so much alone is what it took.
    assert wire_s(burst, 256 * KIB) <= 2e-3
    assert wire_s(burst, 64 * KIB) <= 1e-4
    assert wire_s(burst, 4) == 0


def test_long_messages_faster_than_the_links_are_the_line_rate() -> None:
    """Ranks that share memory, or a switch that adds."""
    half = LINE / 2
    shared = with_curves(GIGABIT, {MIB: half * MIB, 64 * MIB: half * 64 * MIB})
    assert wire_s(shared, RESNET_BYTES) == pytest.approx(half * RESNET_BYTES)
    # Not if a link may have saved it up.
    level = structs.replace(GIGABIT.levels[0], burst_bytes=50e6)
    saved = structs.replace(shared, levels=(level,))
    assert wire_s(saved, RESNET_BYTES) == pytest.approx(LINE * RESNET_BYTES)


def test_every_level_has_its_line() -> None:
    levels = (
        Level(name="device", size=2, latency_s=0.0, bandwidth_bytes_per_s=1e12),
        Level(name="host", size=3, latency_s=0.0, bandwidth_bytes_per_s=1.0),
    )
    hosts = Cluster(name="3 x 2", levels=levels)
    assert line_s_per_byte(hosts) == pytest.approx(4 / 3)
    assert line_s_per_byte(hosts, "all_gather") == pytest.approx(2 / 3)
    assert line_s_per_byte(hosts, "reduce") == 1.0


@pytest.mark.parametrize("compute_s", [0.1, 5.0])
def test_an_iteration_takes_the_longer_of_computation_and_wire(compute_s: float) -> None:
    tensors = (GradientTensor(name="w", numel=RESNET_BYTES // 4),)
    workload = Workload(model="m", tensors=tensors, forward_s=0.0, backward_s=compute_s)
    bound_s = iteration_bound_s(workload, GIGABIT)
    assert bound_s == max(compute_s, wire_s(GIGABIT, RESNET_BYTES))


def test_less_than_the_bound_is_refused() -> None:
    require_possible(1.28, 1.28, "a plan")
    require_possible(1.28 * (1 - 1e-12), 1.28, "a plan")
    message = r"a plan is predicted to take 1\.20 s per iteration, less than the 1\.28 s"
    with pytest.raises(PredictionError, match=message):
        require_possible(1.2, 1.28, "a plan")
    for wrong in (float("nan"), -1.0):
        with pytest.raises(InvalidValueError, match="predicted iteration"):
            require_possible(wrong, 1.28, "a plan")

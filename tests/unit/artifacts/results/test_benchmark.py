"""Benchmarks: the formulas of nccl-tests, percentiles, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.results.benchmark import BUS_FACTORS, REDUCING, Benchmark, percentile
from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError
from syncopate.schedules.conditions import CONDITIONS
from tests.unit import examples


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 2 * 3 / 4),
        ("reduce_scatter", 3 / 4),
        ("all_gather", 3 / 4),
        ("broadcast", 1.0),
        ("reduce", 1.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(collective, factor):
    benchmark = examples.benchmark(collective=collective)
    assert benchmark.world_size == 4
    assert benchmark.algbw_bytes_per_s(8_000_000, 2e-3) == pytest.approx(4e9)
    assert benchmark.busbw_bytes_per_s(8_000_000, 2e-3) == pytest.approx(4e9 * factor)
    assert benchmark.busbw_bytes_per_s(8, 0.0) == 0.0


def test_every_collective_has_a_bus_factor_and_one_rank_needs_no_bus():
    assert set(BUS_FACTORS) == set(CONDITIONS)
    assert set(REDUCING) == {name for name, needs in CONDITIONS.items() if needs.reduces}
    assert BUS_FACTORS["all_reduce"](1) == 0


@given(st.lists(st.floats(0, 10), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_sample_that_enough_do_not_exceed(samples, percent):
    found = percentile(samples, percent)
    assert found in samples
    assert 100 * sum(s <= found for s in samples) >= percent * len(samples)
    assert 100 * sum(s < found for s in samples) < percent * len(samples)


def test_a_benchmark_survives_its_file(tmp_path):
    benchmark = examples.benchmark()
    assert Benchmark.load(benchmark.save(tmp_path / "bench.json")) == benchmark
    assert b'"schema_version": 1' in benchmark.to_json()
    assert benchmark.wrong == 3


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b'"mode": "barrier"', b'"mode": "none"', "$"),
        (b'"count": 256', b'"count": 0', "$.series"),
        (b'"collective": "all_reduce"', b'"collective": "scan"', "$"),
        (b'"wrong": 3', b'"wrong": "3"', "$.series"),
        (b'"schema_version": 1', b'"schema_version": 2', "$.schema_version"),
    ],
)
def test_a_damaged_file_is_refused_with_its_field(old, new, field):
    text = examples.benchmark().to_json()
    assert old in text
    with pytest.raises(ArtifactError) as caught:
        Benchmark.from_json(text.replace(old, new, 1), "bench.json")
    assert caught.value.field.startswith(field)
    assert caught.value.path == "bench.json"


def test_contenders_must_share_their_sizes():
    whole = examples.benchmark()
    short = examples.series("ring", (1024,))
    with pytest.raises(SyncopateError, match="sizes of ring"):
        Benchmark(
            collective="all_reduce",
            dtype="float32",
            root=-1,
            mode="barrier",
            warmup=1,
            hosts=whole.hosts,
            series=(whole.series[0], short),
        )
    with pytest.raises(InvalidValueError, match="ascending"):
        examples.series("ring", (1024, 1024))

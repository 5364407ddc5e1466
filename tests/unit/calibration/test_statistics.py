"""What calibration makes of its clock: no sample is dropped, and a byte is a byte."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.artifacts.cluster import Cluster, CurvePoint
from syncopate.calibration import curves, probes, probing
from syncopate.profiling.samples import Iteration, workload
from syncopate.units import MIB


class Alone:
    """A communicator of one rank, beside which others said what ``others`` says."""

    rank, world_size = 0, 2

    def __init__(self, *others: Any) -> None:
        self.others = others

    def barrier(self) -> None: ...

    def broadcast_object(self, obj: Any) -> Any:
        return obj

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj, *self.others]


def clock(monkeypatch: pytest.MonkeyPatch, module: Any, durations_s: Iterator[float]) -> None:
    """Let ``module`` read a clock of which every second reading is the next duration later."""
    readings = (at for duration_s in durations_s for at in (100.0, 100.0 + duration_s))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(readings)))


def test_reduction_is_per_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    size = probing._ADDED_BYTES
    clock(monkeypatch, probing, iter([2e-9 * size] * 100))
    found = probing.measure_reduction(Alone(4e-9 * size))  # type: ignore[arg-type]
    assert found == pytest.approx(3e-9)


def test_every_sample_is_kept_and_the_last_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_s = 9.0
    stamps = iter([(0.0, 1.0), (0.0, slow_s), (0.0, 2.0)])
    communicator = Alone({"ring": [(0.0, 1.5), (0.0, 3.0), (0.0, 2.5)]})
    bench = curves._Bench(communicator, "all_reduce", False)  # type: ignore[arg-type]
    monkeypatch.setattr(bench, "_run", lambda *_: next(stamps))
    assert bench.sample(4, {"ring": {}}, 0.0) == {"ring": [1.5, slow_s, 2.5]}


def test_a_small_message_takes_as_long_as_its_slowest_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        probes, "SynchronisedStart", lambda *_, **__: SimpleNamespace(timed=lambda call: 1e-3)
    )
    cluster = Cluster.preset("1gbe", 2)
    communicator = Alone()
    monkeypatch.setattr(
        communicator,
        "all_gather_object",
        lambda mine: [mine, [[7e-3, *rest] for _, *rest in mine]],
        raising=False,
    )
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        setattr(communicator, name, lambda *_, **__: None)
    samples = probes.measure_samples(communicator, cluster, budget_s=1e-3)  # type: ignore[arg-type]
    assert samples
    assert {max(sample.samples_s) for sample in samples} == {7e-3}
    assert {min(sample.samples_s) for sample in samples} == {1e-3}


def test_the_budget_counts_warm_up_and_check() -> None:
    """At 4 MiB the fewest repetitions, warm-up and check take 20 s, a third of what is left."""
    found = {"ring": {MIB: CurvePoint(nbytes=MIB, samples_s=(1.0,))}}
    assert curves.affordable(["ring"], found, 4 * MIB, 60.0, {}) == ["ring"]
    assert curves.affordable(["ring"], found, 4 * MIB, 59.0, {}) == []
    assert curves.affordable(["ring"], found, 4 * MIB, 12.0, {}, runs=1) == ["ring"]


def test_gradients_that_are_ready_together_stay_in_the_order_of_the_last_iteration() -> None:
    sizes = dict.fromkeys("abc", (1, "float32"))
    orders = ("abc", "cba", "bca")
    iterations = [Iteration(1.0, 1.0, 0.0, ready_s=dict.fromkeys(order, 0.5)) for order in orders]
    found = workload("m", sizes, iterations, {})
    assert [tensor.name for tensor in found.tensors] == list("bca")

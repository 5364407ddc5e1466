"""Calibrating and profiling on several ranks: every rank ends with the same, whatever it saw."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.calibration import calibrate as calibrating
from syncopate.calibration.calibrate import calibrate
from syncopate.collectives.communicator import Communicator
from syncopate.errors import ArtifactError, CalibrationError, InvalidValueError
from syncopate.profiling import profile as profiling
from syncopate.profiling.profile import profile
from syncopate.schedules import registry
from syncopate.tracing import clocks as stamping
from syncopate.tracing import offsets as clocks
from syncopate.tracing.merge import ClockOffset
from syncopate.tracing.offsets import clock_offsets
from syncopate.zoo import Task, replay
from tests.multiprocess.harness import run_ranks

SIZES = (4, 1000, 65536)


def workload(scale: float) -> Workload:
    tensors = tuple(
        GradientTensor(name=f"layer{i}.weight", numel=100 + i, backward_s=0.004 * scale)
        for i in range(4)
    )
    return Workload(model="w", tensors=tensors, forward_s=0.01, backward_s=0.02 * scale)


def calibrated(communicator: Communicator) -> dict[str, Any]:
    heard: list[float] = []
    cluster = calibrate(
        communicator,
        sizes=SIZES,
        budget_s=3.0,
        progress=lambda _, done: heard.append(done),
    )
    assert communicator.detector is not None
    assert communicator.detector.expected is not None, "links are not judged by what was measured"
    return {"cluster": cluster, "heard": heard}


def two_levels(communicator: Communicator) -> Cluster:
    """Calibrate all collectives on what looks like two hosts, and choose by it."""
    calibrating.hosts_of = lambda _: ("a", "b", "a", "b")
    try:
        cluster = calibrate(
            communicator,
            collectives=registry.collectives(),
            sizes=[4, 1 << 20],
            algorithms=["native", "ring", "lp", "blueconnect"],
            budget_s=2.0,
        )
    finally:
        calibrating.hosts_of = clocks.hosts_of
    communicator.use_cluster(cluster)
    for numel in (1, 300_000):
        tensor = torch.ones(numel)
        communicator.all_reduce(tensor, algorithm="auto")
        assert (tensor == communicator.world_size).all()
    return cluster


def racks_from_a_file(communicator: Communicator, path: Path) -> dict[str, Any]:
    """Calibrate what looks like four hosts whose racks a file of rank 0 names; and refuse files."""
    real = calibrating.hosts_of, calibrating.discover
    calibrating.hosts_of = lambda _: ("a", "b", "c", "d")
    calibrating.discover = None  # who searches fails
    # The other ranks' file may be an old one.
    text = "a r1\nb r2\nc r1\nd r2\n" if communicator.rank == 0 else "a r1\n"
    mine = path / f"{communicator.rank}.txt"
    mine.write_text(text)

    def calibrated(racks: Path) -> Cluster:
        few = {"sizes": [4], "algorithms": ["native"], "interference": False}
        return calibrate(communicator, racks=racks, budget_s=0.5, **few)

    refused = []
    try:
        cluster = calibrated(mine)
        for bad in ("a r1 r2", "a r1\nb r2\nc r1", None):
            if communicator.rank == 0 and bad is None:
                mine.unlink()
            elif communicator.rank == 0:
                mine.write_text(bad)
            try:
                calibrated(mine)
            except ArtifactError as error:
                refused.append(error.field + error.reason)
    finally:
        calibrating.hosts_of, calibrating.discover = real
    return {"cluster": cluster, "refused": refused}


def wrong_sum(communicator: Communicator) -> str:
    right = communicator.all_reduce

    def wrong(tensor: torch.Tensor, **options: Any) -> Any:
        handle = right(tensor, **options)
        handle.wait()
        if options["algorithm"] == "ring" and communicator.rank == 2:
            tensor += 1
        return handle

    communicator.all_reduce = wrong
    try:
        calibrate(communicator, sizes=[4, 64], algorithms=["native", "ring"], budget_s=0.5)
    except CalibrationError as error:
        return str(error)
    finally:
        communicator.all_reduce = right
    return ""


def _seconds(communicator: Communicator) -> tuple[float, ...]:
    found = clock_offsets(communicator)
    assert all(0 <= offset.error_s < 0.05 for offset in found)
    return tuple(offset.seconds for offset in found)


def offsets(communicator: Communicator) -> list[tuple[float, ...]]:
    same = _seconds(communicator)
    real = clocks.hosts_of
    clocks.hosts_of = lambda _: ("a", "a", "b", "c")
    try:
        return [same, _seconds(communicator)]
    finally:
        clocks.hosts_of = real


def profiled(rank: int) -> dict[str, Any]:
    """Profile a model that is slow on rank 1, by a clock that only the model's own sleeps move."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def start_anew(*_: object) -> None:
        now[0] = 0.0  # the ranks of one host start each iteration at the same time

    slow_on_rank_1 = replay(workload(3.0 if rank == 1 else 1.0))
    told = SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep)
    with (
        # By its name: the package shows the function of that name.
        mock.patch.object(importlib.import_module("syncopate.zoo.replay"), "time", told),
        mock.patch.object(stamping, "time", told),
        mock.patch.object(profiling, "time", told),
    ):
        measured = profile(slow_on_rank_1.task(), warmup=1, iterations=3, progress=start_anew)
    found: dict[str, Any] = {"workload": measured}
    try:
        profile(Task(nn.Linear(3, 3 if rank == 3 else 2), torch.ones(2, 3)), iterations=1)
    except CalibrationError as error:
        found["error"] = str(error)
    return found


def profiled_on_two_hosts(rank: int) -> tuple[Workload, bool]:
    """Profile a model that computes; return also whether its gradients are as they were."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 8))
    task = Task(model, torch.ones(16, 64))
    with mock.patch.object(profiling.socket, "gethostname", return_value=f"host{rank // 2}"):
        found = profile(task, warmup=1, iterations=2)
    return found, all(p.grad is None for p in model.parameters())


def replayed_under_ddp(rank: int) -> dict[str, float]:
    module = replay(workload(0.1))
    parallel = nn.parallel.DistributedDataParallel(module)
    with pytest.raises(InvalidValueError, match=r"the module inside it, \.module"):
        profile(Task(parallel, ()))
    for _ in range(2):
        parallel.zero_grad()
        (parallel() * (rank + 1)).backward()
    return {name: p.grad.unique().item() for name, p in module.named_parameters()}


def everything(rank: int, world_size: int, path: Path) -> dict[str, Any]:
    with Communicator(timeout_s=100) as communicator:
        return calibrated(communicator) | {
            "two_levels": two_levels(communicator),
            "racks": racks_from_a_file(communicator, path),
            "wrong_sum": wrong_sum(communicator),
            "offsets": offsets(communicator),
            "profiled": profiled(rank),
            "two_hosts": profiled_on_two_hosts(rank),
            "ddp": replayed_under_ddp(rank),
        }


def require_the_same_across_hosts(ranks: list[tuple[Workload, bool]]) -> None:
    found, _ = ranks[0]
    assert all(rank == (found, True) for rank in ranks)
    assert found.metadata["ranks_per_host"] == "2"
    assert found.interference is not None
    assert Workload.from_json(found.to_json()) == found


def require_two_levels(levels: Cluster) -> None:
    assert [(level.name, level.size) for level in levels.levels] == [("device", 2), ("host", 2)]
    assert levels.placement == (0, 2, 1, 3)
    assert {(p.src, p.dst) for p in levels.probes} == {(0, 2), (1, 3), (0, 1)}
    assert Cluster.from_json(levels.to_json()) == levels
    assert {(c.collective, c.algorithm) for c in levels.curves} == {
        (collective, name)
        for collective in registry.collectives()
        for name in ("native", "ring", "lp", "blueconnect")
        if name == "native" or name in registry.algorithms(collective)
    }
    for curve in levels.curves:
        # What was measured is what the links call for, and the curve says what it was.
        assert curve.order == (() if curve.algorithm == "native" else levels.placement)
        for point in curve.points:
            wanted = {
                "lp": {"blocks"},
                "blueconnect": {"factors", "pipelines"},
            }.get(curve.algorithm, set())
            assert set(point.options) == wanted
            assert point.options.get("factors", (2, 2)) == (2, 2)
    blocks = [p.options["blocks"] for c in levels.curves if c.algorithm == "lp" for p in c.points]
    assert blocks[0] == 1
    assert {"repetitions, broadcast", "options"} <= set(levels.metadata)


def require_racks(ranks: list[dict[str, Any]]) -> None:
    cluster = ranks[0]["cluster"]
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 2), ("rack", 2)]
    assert cluster.placement == (0, 2, 1, 3)
    assert all(found == ranks[0] for found in ranks)
    words = ("line 1'a r1 r2' is 3 words; ", "no line for d; ", "cannot read this table of racks: ")
    for reason, begin in zip(ranks[0]["refused"], words, strict=True):
        assert reason.startswith(begin)


def test_four_ranks(tmp_path: Path) -> None:
    ranks = run_ranks(everything, 4, tmp_path)
    first = ranks[0]

    cluster = first["cluster"]
    assert all(rank["cluster"] == cluster for rank in ranks)
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert cluster.world_size == len(cluster.hosts) == 4
    assert [level.name for level in cluster.levels] == ["host"]
    assert 0 < cluster.levels[0].latency_s < 0.1
    assert 1e7 < cluster.levels[0].bandwidth_bytes_per_s < 1e12
    assert 0 < cluster.reduction_s_per_byte < 1e-7
    assert len(cluster.probes) == 4
    names = [curve.algorithm for curve in cluster.curves]
    assert names == [registry.NATIVE, *registry.candidates("all_reduce", cluster)]
    for curve in cluster.curves:
        assert curve.collective == "all_reduce"
        assert curve.points[0].nbytes == 4
        assert all(p.samples_s and min(p.samples_s) > 0 for p in curve.points)
    assert [p.nbytes for p in cluster.curves[0].points] == [4, 1000, 65536]
    assert 0 < cluster.interference.compute_rate <= 1
    assert {"date", "torch", "cpu", "hosts", "repetitions", "samples"} <= set(cluster.metadata)
    assert first["heard"] == sorted(first["heard"])
    assert first["heard"][-1] == 1.0

    levels = first["two_levels"]
    assert all(rank["two_levels"] == levels for rank in ranks)
    require_two_levels(levels)

    require_racks([rank["racks"] for rank in ranks])

    assert all(rank["wrong_sum"] == first["wrong_sum"] for rank in ranks)
    assert "all_reduce (ring)" in first["wrong_sum"]
    assert "wrong result" in first["wrong_sum"]

    same, apart = first["offsets"]
    assert all(rank["offsets"] == [same, apart] for rank in ranks)
    assert same == (0.0, 0.0, 0.0, 0.0)
    assert apart[:2] == (0.0, 0.0)
    # These ranks do share a clock, so all that is found is the error of the method.
    assert 0 < max(math.fabs(offset) for offset in apart) < 0.05

    profiles = [rank["profiled"] for rank in ranks]
    assert all(found == profiles[0] for found in profiles)
    found = profiles[0]["workload"]
    assert found.metadata["ranks"] == "4"
    # The slow rank takes 12 ms for each of its gradients, and 12 ms after the last.
    assert found.forward_s == pytest.approx(0.01)
    assert found.ready_s == pytest.approx([0.01 + 0.012 * count for count in (1, 2, 3, 4)])
    assert found.backward_s == pytest.approx(0.06)
    assert "rank 3 has another model than rank 0" in profiles[0]["error"]
    assert found.interference is None
    require_the_same_across_hosts([rank["two_hosts"] for rank in ranks])

    for rank in ranks:
        assert set(rank["ddp"].values()) == {(1 + 2 + 3 + 4) / 4}


def alone(rank: int, world_size: int) -> Cluster:
    with Communicator() as communicator:
        assert clock_offsets(communicator) == (ClockOffset(0.0, 0.0),)
        return calibrate(communicator)


def test_one_rank_has_nothing_to_wait_for() -> None:
    (cluster,) = run_ranks(alone, 1)
    assert cluster.world_size == 1
    assert cluster.curves == ()
    assert cluster.interference == Interference()
    assert cluster.metadata["ranks"] == "1"

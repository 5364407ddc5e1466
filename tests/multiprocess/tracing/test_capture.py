"""Capture of real trainings: every lane on every rank, and what is left after a kill."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import syncopate
from syncopate.analysis.ranks.arrivals import arrivals
from syncopate.artifacts.timeline import Span
from syncopate.cli import main
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import TraceWriter, read_trace
from tests.children import HANGS_S
from tests.multiprocess.engine.cases import data, mlp, plan_of
from tests.multiprocess.harness import run_ranks

STEPS = 8
SIZES = [2, 3, 1]
EXCHANGES = ("allreduce", "sharded")


def _train(model: nn.Module, rank: int, world_size: int, exchange: str, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, world_size, SIZES, exchange=exchange)
    trained, optimizer = syncopate.distribute(model, optimizer, plan=plan)
    for step in range(steps):
        optimizer.zero_grad()
        trained(data(rank, step, 4, 8)).sum().backward()
        optimizer.step()
    trained.syncopate.ready()
    trained.syncopate.detach()


def _captured(rank: int, world_size: int, directory: Path) -> None:
    for exchange in EXCHANGES:
        with syncopate.trace(directory / exchange):
            _train(mlp(), rank, world_size, exchange, STEPS)
        _train(mlp(), rank, world_size, exchange, 1)  # nobody captures


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a run of each exchange, by two ranks."""
    folder = tmp_path_factory.mktemp("captured")
    run_ranks(_captured, 2, folder)
    return folder


def test_every_rank_captures_every_lane(captured: Path) -> None:
    for exchange in EXCHANGES:
        run = read_run(captured / exchange)
        assert run.remarks == ()
        timeline = run.timeline
        assert timeline.metadata["exchange"] == exchange
        assert timeline.metadata["clock_error_s"] == "0.000000000"
        for rank in range(2):
            for iteration in range(STEPS):
                spans = [s for s in timeline.spans if (s.rank, s.iteration) == (rank, iteration)]
                _require_whole(spans, exchange)
        found = arrivals(timeline)
        pulls = len(SIZES) if exchange == "sharded" else 0
        assert found.collectives == STEPS * (len(SIZES) + pulls)
        assert found.together_s >= found.bound_s > 0
        assert found.clocks_off_s == 0.0


def _averages(rank: int, world_size: int, directory: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, world_size, SIZES).delayed(syncopate.LocalSGD(period=2))
    with syncopate.trace(directory):
        trained, optimizer = syncopate.distribute(model, optimizer, plan=plan)
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            trained(data(rank, step, 4, 8)).sum().backward()
            optimizer.step()
        trained.syncopate.ready()
        trained.syncopate.detach()


def test_an_average_of_weights_is_no_part_of_the_update_that_it_follows(tmp_path: Path) -> None:
    """Nothing hides what local SGD sends."""
    run_ranks(_averages, 2, tmp_path)
    timeline = read_run(tmp_path).timeline
    pulls = [span for span in timeline.spans if span.lane == "pull"]
    assert len(pulls) >= 2 * len(SIZES)
    for pull in pulls:
        assert not [
            span
            for span in timeline.spans
            if span.lane == "update" and span.rank == pull.rank
            if span.start_s < pull.end_s and span.end_s > pull.start_s
        ]


def _require_whole(spans: list[Span], exchange: str) -> None:
    """All of a step is there, in an order that can be."""
    lanes = Counter(span.lane for span in spans)
    assert lanes["forward"] == lanes["backward"] == lanes["update"] == 1
    assert lanes["push"] == len(SIZES)
    assert lanes["pull"] == (len(SIZES) if exchange == "sharded" else 0)
    (update,) = (span for span in spans if span.lane == "update")
    (backward,) = (span for span in spans if span.lane == "backward")
    for span in spans:
        if span.lane == "push":
            assert span.ready_s is not None
            assert span.launched_s is not None
            assert backward.start_s <= span.ready_s <= span.launched_s <= span.start_s
            assert span.end_s <= update.start_s
        if span.lane in ("push", "pull"):
            assert span.nbytes > 0
            assert span.name in ("bucket 0", "bucket 1", "bucket 2")


def _killed(rank: int, world_size: int, directory: Path) -> None:
    capture = syncopate.trace(directory)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = plan_of(model, world_size, SIZES)
    trained, optimizer = syncopate.distribute(model, optimizer, plan=plan)
    until_s = time.monotonic() + HANGS_S
    for step in itertools.count():
        assert time.monotonic() < until_s
        optimizer.zero_grad()
        trained(data(rank, step, 4, 8)).sum().backward()
        optimizer.step()
        if len(set(read_trace(capture.path or "").records["iteration"])) >= STEPS:
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_captured_before_a_kill_can_be_read(tmp_path: Path) -> None:
    assert run_ranks(_killed, 1, tmp_path, may_die=(0,)) == [None]
    run = read_run(tmp_path, last=1_000_000)
    iterations = {span.iteration for span in run.timeline.spans}
    assert iterations == set(range(len(iterations)))
    assert len(iterations) >= STEPS - 1  # the last may be written in part


def _empty(run: Path, others: Path) -> None:
    for path in run.iterdir():
        path.unlink()


def _lack_a_rank(run: Path, others: Path) -> None:
    (run / "rank-0.trace").unlink()


def _mix(run: Path, others: Path) -> None:
    for rank in range(2):
        shutil.copy(others / f"rank-{rank}.trace", run / f"rank-{rank}-2.trace")


def _cut(run: Path, others: Path) -> None:
    path = run / "rank-1.trace"
    path.write_bytes(path.read_bytes()[:-100])


def _jump(run: Path, others: Path) -> None:
    path = run / "rank-1.trace"
    file = read_trace(path)
    records = file.records.copy()
    for field in ("start_s", "end_s", "launched_s", "ready_s"):
        records[field] += 5.0 * (records["iteration"] >= STEPS - 2)
    path.unlink()
    writer = TraceWriter(run, file.header)
    writer.write(records, list(file.notes))
    writer.close()


def _lack_iterations(run: Path, others: Path) -> None:
    for path in run.iterdir():
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")


DEFECTS = {
    "empty": (_empty, 2, r"holds no file of a rank \(rank-0.trace and so on\)"),
    "a rank is missing": (_lack_a_rank, 0, "no file of rank 0: 1 of 2 ranks are shown"),
    "two runs": (_mix, 0, "there are files of 2 runs; this is the one that began last"),
    "cut": (_cut, 0, "ends in the midst of a block"),
    "a clock jumped": (
        _jump,
        0,
        # How far is known to half of what a message takes, on a busy machine a tenth of a second.
        rf"rank 1: its clock jumped in iteration {STEPS - 2}, by about (4\.[89]|5\.[01])",
    ),
    "no iterations": (_lack_iterations, 2, "no iteration was captured"),
}
"""What may be wrong with a run -> how that comes, the exit code, and a pattern of what is said."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_command_says_what_is_wrong_with_a_run_and_shows_the_rest(
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    defect: str,
) -> None:
    damage, expected, says = DEFECTS[defect]
    run, others = (shutil.copytree(captured / name, tmp_path / name) for name in EXCHANGES)
    damage(run, others)
    commands = [["analyze", run], ["explain", run], ["compare", others, run]]
    if find_spec("jinja2"):
        commands.append(["report", run, "-o", "-"])
    for command in commands:
        monkeypatch.setattr("sys.argv", ["syncopate", *map(str, command)])
        assert main() == expected, command
        out, err = capfd.readouterr()
        assert re.search(says, " ".join(err.split())), command
        assert bool(out) == (expected == 0), command

"""Capture of real trainings: every lane on every rank, and what is left after a kill."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import syncopate
from syncopate.analysis import arrivals
from syncopate.timeline import Span
from syncopate.tracing.run import read_run
from syncopate.tracing.trace_file import read_trace
from tests.multiprocess.engine_cases import data, mlp, plan_of
from tests.multiprocess.harness import run_ranks

STEPS = 4
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


def test_every_rank_captures_every_lane(tmp_path: Path) -> None:
    run_ranks(_captured, 2, tmp_path)
    for exchange in EXCHANGES:
        run = read_run(tmp_path / exchange)
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
    until_s = time.monotonic() + 20
    step = 0
    while time.monotonic() < until_s:
        optimizer.zero_grad()
        trained(data(rank, step, 4, 8)).sum().backward()
        optimizer.step()
        step += 1
        if step > STEPS and len(read_trace(capture.path or "").records) > 0:
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_captured_before_a_kill_can_be_read(tmp_path: Path) -> None:
    assert run_ranks(_killed, 1, tmp_path, may_die=(0,)) == [None]
    run = read_run(tmp_path, last=1_000_000)
    iterations = {span.iteration for span in run.timeline.spans}
    assert iterations == set(range(len(iterations)))
    assert len(iterations) >= STEPS - 1

"""Recording: every lane of every rank and step is on the timeline, in an order that can be."""

from __future__ import annotations

from typing import Any

import torch

from syncopate.artifacts.timeline import Timeline
from tests.multiprocess.engine.cases import Pair, data, mlp
from tests.multiprocess.harness import run_ranks

SIZES = [2, 3, 1]


def _record(rank: int, world_size: int) -> Timeline:
    pair = Pair(rank, mlp, sizes=SIZES)
    model, optimizer = pair.model, pair.optimizer
    engine = model.syncopate

    def step(index: int) -> None:
        optimizer.zero_grad()
        if index == 1:
            with model.no_sync():
                model(data(rank, index, 4, 8)).sum().backward()
        model(data(rank, index, 4, 8)).sum().backward()
        optimizer.step()

    step(0)
    engine.record()
    for index in range(3):
        step(index)
    engine.record(False)
    step(9)  # not on the record
    timeline: Timeline = engine.timeline("three steps")
    engine.record()
    step(10)
    again: Timeline = engine.timeline()
    assert {span.iteration for span in again.spans} == {0}
    pair.close()
    return timeline


def test_timeline() -> None:
    timelines = run_ranks(_record, 2)
    timeline: Any = timelines[0]
    assert timelines[1] == timeline
    assert (timeline.name, timeline.source, timeline.world_size) == ("three steps", "measured", 2)
    assert timeline.metadata["buckets"] == "3"
    assert timeline.metadata["torch"] == torch.__version__
    for rank in range(2):
        for iteration in range(3):
            lanes: dict[str, list[Any]] = {}
            for span in timeline.spans:
                if (span.rank, span.iteration) == (rank, iteration):
                    lanes.setdefault(span.lane, []).append(span)
            passes = 2 if iteration == 1 else 1
            assert {lane: len(spans) for lane, spans in lanes.items()} == {
                "forward": passes,
                "backward": passes,
                "push": len(SIZES),
                "wait": 1,
                "update": 1,
            }
            assert [span.name for span in lanes["push"]] == ["bucket 0", "bucket 1", "bucket 2"]
            assert [span.detail for span in lanes["push"]] == ["native", "ring", "ring"]
            assert all(span.nbytes > 0 for span in lanes["push"])
            (wait,), (update,) = lanes["wait"], lanes["update"]
            forward, backward = lanes["forward"][-1], lanes["backward"][-1]
            assert forward.end_s == backward.start_s
            assert backward.end_s == wait.start_s
            assert backward.start_s <= lanes["push"][0].start_s
            assert max(span.end_s for span in lanes["push"]) <= wait.end_s <= update.start_s

"""FSDP2 in traces of torch.profiler: its units, and what stands still on a CPU."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import syncopate
from syncopate.artifacts.timelines.gradients import GRADIENTS, of_text
from syncopate.planning.fsdp.planner import make_fsdp_plan
from syncopate.tracing.foreign import read_timeline
from syncopate.tracing.foreign.chrome.sharded import unit_of
from tests.unit.tracing.foreign.made import profile, times_ms, write

EVALUATED = "autograd::engine::evaluate_function: AddmmBackward0"
GATHER, REDUCE = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"


def shapes(elements: int) -> dict[str, list[object]]:
    return {"Input Dims": [[elements]], "Input type": ["float"]}


def gathered(at: float, lasts: float, unit: str = "") -> list[tuple[object, ...]]:
    """Return a gather that its rank stands still for."""
    bracket = f" ({unit})" if unit else ""
    return [
        ("cpu_op", f"FSDP::all_gather{bracket}", at, at + lasts, {}),
        ("cpu_op", GATHER, at, at + 0.5, {}),
        ("user_annotation", "gloo:all_gather", at + 0.1, at + lasts, shapes(500)),
        ("cpu_op", f"FSDP::all_gather_copy_out{bracket}", at + lasts, at + lasts + 0.1, {}),
    ]


def reduced(at: float, lasts: float, elements: int, unit: str = "") -> list[tuple[object, ...]]:
    """Return the end of a unit's backward and its reduce-scatter."""
    bracket = f" ({unit})" if unit else ""
    return [
        ("cpu_op", f"FSDP::post_backward_accumulate{bracket}", at - 0.2, at - 0.1, {}),
        ("cpu_op", f"FSDP::post_backward_reduce{bracket}", at, at + lasts, {}),
        ("cpu_op", REDUCE, at, at + 0.5, {}),
        ("user_annotation", "gloo:all_reduce", at + 0.1, at + lasts, shapes(elements)),
    ]


def accumulated(at: float, shape: list[int]) -> tuple[object, ...]:
    told = {"Input Dims": [shape], "Input type": ["float"]}
    return ("cpu_op", "torch::autograd::AccumulateGrad", at - 0.1, at, told)


def iteration(begin: float, extra: float = 0.0) -> list[tuple[object, ...]]:
    """Return an iteration of a root unit and two blocks: 20 ms of forward, 46 of backward."""
    rows = [
        ("cpu_op", "FSDP::root_pre_forward", 0, 0.1, {}),
        *gathered(1, 4),  # the root's
        *gathered(10, 5, "blocks.0"),
        *gathered(20, 6, "blocks.1"),
        ("cpu_op", "FSDP::post_forward (blocks.1)", 34, 34.5, {}),
        ("cpu_op", "FSDP::post_forward", 34.5, 35, {}),
        *gathered(36, 6, "blocks.1"),
        ("cpu_op", EVALUATED, 36, 60, {}),
        # A head of the root's is there before the backward of any other unit.
        accumulated(44, [3]),
        ("user_annotation", "FSDP::pre_backward (blocks.1)", 45, 45.5, {}),
        accumulated(50, [10, 10]),
        accumulated(59, [50]),
        *reduced(61, 7, 150, "blocks.1"),
        ("user_annotation", "FSDP::pre_backward (blocks.0)", 68, 68.5, {}),
        ("cpu_op", EVALUATED, 68, 90, {}),
        accumulated(89, [5, 30]),
        *reduced(91, 3, 150, "blocks.0"),
        ("cpu_op", EVALUATED, 94, 98, {}),
        accumulated(97, [7]),
        *reduced(99, 2 + extra, 10),
        ("user_annotation", "Optimizer.step#SGD.step", 102 + extra, 105 + extra, {}),
    ]
    return [(cat, name, begin + at, begin + end, told) for cat, name, at, end, told in rows]


@pytest.fixture
def files(tmp_path):
    rows = [row for number in range(6) for row in iteration(200.0 * number)]
    return write(tmp_path, "prof-", [profile(rank, rows) for rank in (0, 1)])


def test_what_stands_still_for_a_gather_is_no_computation(files):
    timeline = read_timeline(files)
    assert timeline.metadata["exchange"] == "fsdp"
    own = [s for s in timeline.spans if (s.rank, s.iteration) == (0, 1)]
    forward = [s for s in own if s.lane == "forward"]
    backward = [s for s in own if s.lane == "backward"]
    assert sum(s.duration_s for s in forward) == pytest.approx(35e-3 - (4 + 5 + 6) * 1e-3)
    assert sum(s.duration_s for s in backward) == pytest.approx(62e-3 - (6 + 7 + 3) * 1e-3)
    assert times_ms(timeline, "all_gather 1", 1)[0] == (210, 215)


def test_messages_know_their_units(files):
    spans = [s for s in read_timeline(files).spans if (s.rank, s.iteration) == (0, 0)]
    details = {s.name: s.detail for s in spans if s.lane in ("push", "pull")}
    assert details["all_gather 0"] == "gloo:all_gather (root)"
    assert details["all_gather 2"] == details["all_gather 3"] == "gloo:all_gather (blocks.1)"
    assert details["reduce_scatter 1"] == "gloo:all_reduce (blocks.0)"


def test_gradients_know_their_units(files):
    seen = of_text(read_timeline(files).metadata[GRADIENTS])
    assert [(one.shape, one.unit) for one in seen] == [
        ((3,), "root"),
        ((10, 10), "blocks.1"),
        ((50,), "blocks.1"),
        ((5, 30), "blocks.0"),
        ((7,), "root"),
    ]
    # Of 46 ms that are computed 2 are over at 44: 36 to 42 stood still for a gather.
    assert seen[0].done == pytest.approx(2 / 46, abs=1e-5)


def test_a_workload_has_the_units_as_blocks(files):
    work = syncopate.recorded_workload(files)
    assert [tensor.name for tensor in work.tensors] == [
        "root gradient 0 (3)",
        "blocks.1 gradient 1 (10x10)",
        "blocks.1 gradient 2 (50)",
        "blocks.0 gradient 3 (5x30)",
        "root gradient 4 (7)",
    ]
    assert work.forward_s == pytest.approx(20e-3)
    assert work.backward_s == pytest.approx(46e-3)
    made = make_fsdp_plan(work, syncopate.Cluster.preset("10gbe", 2), "wfbp")
    assert [len(bucket.tensors) for bucket in made.buckets] == [2, 1, 2]


def test_explain_names_the_gathers_that_are_exposed(files):
    found = syncopate.explain(*files)
    console = Console(width=200, file=io.StringIO())
    console.print(found.report(), crop=False)
    text = " ".join(console.file.getvalue().split())
    assert "gathers that computation does not hide: 4 of 4, 21.00 ms" in text
    assert "of blocks.1 6.00 ms" in text
    assert "pushes that computation does not hide: 3 of 3, 12.00 ms" in text
    assert "--exchange fsdp" in text


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("FSDP::all_gather", "root"),
        ("FSDP::all_gather (layers.3)", "layers.3"),
        ("FSDP::post_backward_reduce (a, b.0)", "a+b.0"),
        ("FSDP::all_gather (a) [pg=4]", "a"),
    ],
)
def test_the_modules_of_a_unit(name, unit):
    assert unit_of(name) == unit

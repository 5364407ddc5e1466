"""Files for other tools, opened by the tools: where they are installed, and as they once read them.

``SYNCOPATE_TEST_READERS`` names a Python that has them, ``SYNCOPATE_TEST_SCHEMA`` Chakra's
``et_def.proto``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from syncopate.artifacts.timeline import Span, Timeline
from syncopate.tracing.perfetto import to_perfetto
from tests.children import REPOSITORY
from tests.scripts import scripts

PYTHON = os.environ.get("SYNCOPATE_TEST_READERS", sys.executable)
SCHEMA = Path(os.environ.get("SYNCOPATE_TEST_SCHEMA", "et_def.proto"))

with scripts("readers") as [readers]:
    pass


def _timeline():
    """Two ranks: 25 and 15 ms of communication, of which 15 and 5 ms are beside backward."""

    def span(name, lane, rank, start, end, **other):
        start_s, end_s = start * 1e-3, end * 1e-3
        return Span(name=name, lane=lane, rank=rank, start_s=start_s, end_s=end_s, **other)

    spans = []
    for rank in (0, 1):
        spans += [
            span("forward", "forward", rank, 5, 15),
            span("backward", "backward", rank, 15, 45),
            span("bucket 0", "push", rank, 25 + 10 * rank, 40, nbytes=1000),
            span("bucket 1", "push", rank, 45, 55, nbytes=200, channel=1),
            span("SGD", "update", rank, 55, 65),
        ]
    return Timeline(name="a", source="measured", world_size=2, spans=tuple(spans))


@pytest.fixture(scope="module")
def read():
    return readers.read_all(_timeline(), PYTHON, SCHEMA)["read"]


def _require(found):
    if "not_read" in found:
        pytest.skip(found["not_read"])


def test_hta_reads_the_overlap_that_is_there(read):
    _require(read["hta"])
    shares = {rank: round(share) for rank, share in read["hta"]["overlap_percent"].items()}
    assert shares == {"0": 60, "1": 33}
    assert read["hta"]["idle_us"] == {"0": 0, "1": 0}


def test_every_function_of_hta_runs_on_it(read):
    _require(read["hta"])
    found = read["hta"]
    assert found["failed"] == {}
    assert (found["steps"], sorted(found["stragglers"])) == ([1], [0, 1])
    assert found["communication_us"] == 40_000
    # Kernels of one stream do not overlap, and none runs before its launch.
    assert found["least_idle_ratio"] >= 0
    assert found["least_queue"] >= 0


def test_chakra_s_own_classes_read_every_node(read):
    if not SCHEMA.exists():
        pytest.skip("SYNCOPATE_TEST_SCHEMA names no et_def.proto")
    _require(read["chakra"])
    ranks = read["chakra"]["ranks"]
    assert {rank: found["comm_bytes"] for rank, found in ranks.items()} == {"0": 1200, "1": 1200}
    assert {found["nodes"]["COMM_COLL_NODE"] for found in ranks.values()} == {2}
    assert {found["duration_us"] for found in ranks.values()} == {50_000}


def test_perfetto_counts_what_was_written(read):
    _require(read["perfetto"])
    assert (read["perfetto"]["slices"], read["perfetto"]["flows"]) == (10, 2)
    assert read["perfetto"]["errors"] == []


def test_a_broken_rule_is_counted():
    document = json.loads(to_perfetto(_timeline()))
    assert not any(readers.rules_of(document)["broken"].values())
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    complete[0]["dur"] = -1
    complete[1]["tid"] = 77
    flow = next(event for event in document["traceEvents"] if event["ph"] == "f")
    del flow["bp"]
    broken = {rule for rule, times in readers.rules_of(document)["broken"].items() if times}
    assert broken == {"X has ts and dur, both >= 0", "threads have names", 'f has "bp": "e"'}


def test_what_was_read_of_a_real_run_is_what_was_written():
    """Times are whole microseconds in these formats: a part of one for each span."""
    (path,) = (REPOSITORY / "benchmarks" / "results").glob("readers_*.json")
    found = json.loads(path.read_text())
    written, hta, chakra = found["written"], found["read"]["hta"], found["read"]["chakra"]
    assert hta["overlap_percent"] == pytest.approx(written["overlap_percent"], abs=0.01)
    assert hta["compute_us"] == pytest.approx(written["compute_us"], rel=1e-4)
    assert {r: one["comm_bytes"] for r, one in chakra["ranks"].items()} == written["comm_bytes"]
    nodes = {r: one["nodes"]["COMM_COLL_NODE"] for r, one in chakra["ranks"].items()}
    assert nodes == written["messages"]
    assert not any(written["perfetto_rules"]["broken"].values())

"""DLC traces played on other networks, against the same job worked out there."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.analysis.replay.elsewhere import played_on
from syncopate.analysis.replay.fitted import fitted_network
from syncopate.artifacts.timeline import ANSWERS, PULLS, SERVER_COUNT, SERVERS
from syncopate.errors import ArtifactError
from syncopate.tracing import dlc
from syncopate.tracing.dlc import Header, Node, Operation, Record, timeline_of
from syncopate.tracing.dlc.columns import Records
from syncopate.tracing.dlc.reader import Trace
from syncopate.tracing.dlc.records import Dependency

WORKERS, ITERATIONS = 2, 6
LENGTHS = (40_000, 80_000, 20_000)
BYTE_S = 1e-6
LATE_S = 0.01
SEARCH_S = 0.004
ASKED_S = 0.001
OFFSETS_S = (0.30, 0.50, 0.80)
"""From the last weights to each push of worker 0; those of worker 1 come 0.1 s later."""


def worked_out(byte_s: float = BYTE_S, *, mxnet: bool = True):
    """Return when each worker did each of its four operations, by iteration and key.

    A push is answered when the server has both; of what it answers at once its link carries both
    halves as fast. Keys are far apart, so that nothing else meets.
    """
    had = [1.0] * WORKERS
    found = {}
    for iteration in range(ITERATIONS):
        came = [list(had) for _ in LENGTHS]
        for key, length in enumerate(LENGTHS):
            sent = [had[w] + OFFSETS_S[key] + 0.1 * w for w in range(WORKERS)]
            all_there = max(sent) + length * byte_s
            for w in range(WORKERS):
                answered = all_there if mxnet else sent[w] + length * byte_s
                asked = answered + ASKED_S
                back = all_there + ASKED_S + SEARCH_S + 2 * length * byte_s
                found[w, iteration, key] = (sent[w], answered, asked, back)
                came[key][w] = back
        had = [max(came[key][w] for key in range(len(LENGTHS))) for w in range(WORKERS)]
    return found


def traced(times) -> dict[str, Trace]:
    """Return the traces of both workers."""
    operations = (
        Operation.PUSH_SEND_WORKER,
        Operation.PUSH_RECV_WORKER,
        Operation.PULL_SEND_WORKER,
        Operation.PULL_RECV_WORKER,
    )
    found = {}
    for worker in range(WORKERS):
        node = Node(worker, worker=True, workers=WORKERS, servers=1)
        rows = [
            (at_s, place, iteration, key)
            for (w, iteration, key), four in times.items()
            if w == worker
            for place, at_s in enumerate(four)
        ]
        for at_s, place, iteration, key in sorted(rows):
            node.add(
                operations[place],
                key,
                0,
                length=LENGTHS[key],
                num_pp=0,
                time_us=round(at_s * 1e6),
                iteration=iteration,
            )
        header = Header(WORKERS, 1, f"host{worker}")
        found[f"run/worker-{worker}.txt"] = Trace(header, Records.of(node.records), ())
    return found


def lasts_s(times):
    ends = [
        max(four[0] for (_, i, _), four in times.items() if i == iteration)
        for iteration in range(ITERATIONS)
    ]
    return np.diff(ends)


@pytest.mark.parametrize("bandwidth", [1.0, 2.0, 10.0, 0.8])
def test_a_job_elsewhere_is_what_it_is_worked_out_to_be(bandwidth):
    timeline = timeline_of(traced(worked_out()))
    assert timeline.metadata[SERVER_COUNT] == "1"
    assert (timeline.metadata[ANSWERS], timeline.metadata[SERVERS]) == ("together", "synchronous")
    assert timeline.metadata[PULLS] == "after pushes"
    own = fitted_network(timeline, servers=1)
    assert own.lines["send"] == (pytest.approx(0.0, abs=1e-5), pytest.approx(BYTE_S, rel=1e-3))
    found = played_on(timeline, own.changed(bandwidth), own)
    there = worked_out(BYTE_S / bandwidth)
    expected = dict(enumerate(lasts_s(there), start=1))
    told = dict(zip(found.iterations, found.replayed_s, strict=True))
    counted = [number for number in told if number > 1]
    assert len(counted) >= 3
    assert [told[n] for n in counted] == pytest.approx([expected[n] for n in counted], rel=2e-3)


def test_more_servers_share_what_all_send_at_once():
    """With two servers each worker has its weights at its own link's rate."""
    timeline = timeline_of(traced(worked_out()))
    own = fitted_network(timeline, servers=1)
    one, two = (played_on(timeline, own.changed(servers=n), own).medians_s[1] for n in (1, 2))
    assert one - two == pytest.approx(LENGTHS[2] * BYTE_S, rel=0.02)


def test_what_dependencies_say_becomes_spans():
    times = worked_out()
    timeline = timeline_of(traced(times))
    spans = {(s.lane, s.rank, s.iteration, s.name): s for s in timeline.spans}
    origin_s = min(four[0] for four in times.values())
    for (worker, iteration, key), four in times.items():
        push = spans["push", worker, iteration, f"key {key}"]
        pull = spans["pull", worker, iteration, f"key {key}"]
        got = (push.start_s, push.end_s, pull.start_s, pull.end_s)
        assert got == pytest.approx([at_s - origin_s for at_s in four], abs=2e-6)
        assert (push.nbytes, pull.nbytes, push.detail) == (LENGTHS[key], LENGTHS[key], "s0")


def changed(trace: Trace, change) -> Trace:
    records = [change(one) for one in trace.records]
    return trace._replace(records=Records.of([one for one in records if one is not None]))


def without_a_request(one: Record) -> Record | None:
    there = (one.operation, one.iteration, one.key) == (Operation.PULL_SEND_WORKER, 2, 1)
    return None if there else one


def round_in_circles(one: Record) -> Record:
    if (one.operation, one.iteration, one.key) == (Operation.PUSH_RECV_WORKER, 2, 1):
        return one._replace(dependency=Dependency.PUSH_ON_PUSH, depends_on=(f"1-{one.number}-s0",))
    return one


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without_a_request, "incomplete: there is no Pull_Send_Worker of key 1 in iteration 2"),
        (round_in_circles, "goes round in circles: id .* waits for 1-.*, which does not come"),
    ],
)
def test_an_incomplete_or_cyclic_trace_is_refused(change, complaint):
    traces = traced(worked_out())
    path = next(iter(traces))
    traces[path] = changed(traces[path], change)
    with pytest.raises(ArtifactError, match=complaint):
        timeline_of(traces)


def test_all_workers_are_needed_once_and_of_one_job():
    first, second = traced(worked_out()).items()
    with pytest.raises(ArtifactError, match="a job of 2 workers; missing: w1"):
        timeline_of(dict([first]))
    with pytest.raises(ArtifactError, match="of worker 0, as a trace before it"):
        timeline_of({"a": first[1], "b": first[1]})
    other = second[1]._replace(header=Header(3, 1, "host1"))
    with pytest.raises(ArtifactError, match="of another job than"):
        timeline_of({first[0]: first[1], second[0]: other})
    server = first[1]._replace(header=Header(2, 1, "host2", "server"))
    with pytest.raises(ArtifactError, match="of no worker"):
        timeline_of({"server-0.txt": server})
    assert dlc.timeline_of is timeline_of

"""What nodes of a parameter server captured: put together, on one clock, and as DLC traces."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict

import numpy as np
import pytest

from syncopate.errors import ArtifactError
from syncopate.tracing import dlc
from syncopate.tracing.dlc import Operation, Record, SetUp
from syncopate.tracing.dlc.records import INITIAL, Dependency
from syncopate.tracing.perfetto import to_perfetto
from syncopate.tracing.recorder import Event, Recorder
from syncopate.tracing.run import read_run
from syncopate.tracing.served.node_offsets import pairs
from syncopate.tracing.served.perfetto import served_events
from syncopate.tracing.served.read import node_files, served_of
from syncopate.tracing.served.rows import KINDS, ROW, RowQueue
from syncopate.tracing.served.to_dlc import dlc_files, dlc_traces
from syncopate.tracing.trace_file import Header, TraceWriter
from tests.unit.tracing.served_cases import UPDATE_S, Job, Said


def trained(iterations=3, **given):
    job = Job(**given)
    job.connect(0.0)
    job.first_values(0.1)
    for number in range(iterations):
        job.iteration(number, 1.0 + number)
    return job


def served(job, directory, **given):
    remarks: list[str] = []
    job.write(directory, **given)
    return served_of(node_files(directory, remarks), remarks), remarks


def test_a_queue_of_rows_keeps_order_and_counts_what_it_has_no_room_for():
    queue = RowQueue(capacity=3)
    for number in range(2):
        queue.add((number, 0, 0, -1, number, 0, 0, 0, 0.0, 0.0))
    assert queue.take()["kind"].tolist() == [0, 1]
    for number in range(5):
        queue.add((number, 0, 0, -1, number, 2**40, -(2**31) - 1, 8, 0.25, 0.5))
    rows = queue.take()
    assert (rows["number"].tolist(), queue.dropped, len(queue.take())) == ([0, 1, 2], 2, 0)
    assert rows[0].tolist() == (0, 0, 0, -1, 0, 2**40, -(2**31) - 1, 8, 0.25, 0.5)
    assert (ROW.itemsize, len(KINDS) < 256) == (56, True)
    assert np.array_equal(queue.take(), np.empty(0, ROW))


def test_rows_of_several_threads_are_taken_or_counted():
    queue, count, took = RowQueue(capacity=100), 3000, []

    def add(thread):
        for number in range(count):
            queue.add((thread, 0, 0, -1, number, 0, 0, 0, 0.0, 0.0))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(3)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        took.append(queue.take())
    took.append(queue.take())
    rows = np.concatenate(took)
    assert len(rows) + queue.dropped == 3 * count
    for thread in range(3):
        numbers = rows["number"][rows["kind"] == thread]
        assert (np.diff(numbers) > 0).all(), "those of one thread stay in order"


def test_every_message_is_put_together_with_what_came_of_it(tmp_path):
    found, remarks = served(trained(), tmp_path)
    assert remarks == ["no file of scheduler: 3 of 4 nodes are shown"]
    assert (found.workers, found.servers, found.synchronous) == (2, 1, True)
    together = list(pairs(list(found.messages.values())))
    assert len(together) == sum(map(len, found.messages.values())) / 2
    for sent, came, _, _ in together:
        assert came.time_s - sent.time_s == pytest.approx(0.001)
        assert (sent.kind, sent.key, sent.nbytes) == (came.kind, came.key, came.nbytes)
        assert sent.queued_s == pytest.approx(sent.time_s - 0.0001)
    assert [w.end_s - w.start_s for w in found.work] == [pytest.approx(UPDATE_S)] * 6


def test_worker_0_has_the_papers_numbers(tmp_path):
    found, _ = served(trained(), tmp_path)
    trace = dlc_traces(found)["worker-0"]
    assert dlc.findings(trace.records) == ()
    records = [r for r in trace.records if isinstance(r, Record)]
    of_key = [r for r in records if r.key == 0]
    assert [r.op_id for r in of_key] == [f"0-{number}-s0" for number in range(4 + 4 * 3)]
    assert [r.num_pp for r in of_key[:4]] == [INITIAL, INITIAL, 1, 1]
    assert {r.iteration for r in of_key[:4]} == {-1}
    assert {r.op_id: r.num_pp for r in records if r.operation is Operation.PUSH_SEND_WORKER} == {
        "0-0-s0": INITIAL, "1-0-s0": INITIAL,
        "0-4-s0": 3, "1-4-s0": 5, "0-8-s0": 7, "1-8-s0": 9, "0-12-s0": 11, "1-12-s0": 13,
    }  # fmt: skip
    pulls = {r.op_id: r.num_pp for r in records if r.operation is Operation.PULL_RECV_WORKER}
    assert pulls["0-7-s0"] == 4
    assert [r.length for r in of_key[4:8]] == [110, 10, 10, 104]
    assert [r.dependency for r in of_key[4:8]] == [
        Dependency.PUSH_ON_PULL,
        Dependency.PUSH_ON_PUSH,
        Dependency.PULL_ON_PUSH,
        Dependency.PULL_ON_PULL,
    ]
    assert [r.depends_on for r in of_key[4:8]] == [
        ("3-s0",), ("0-4-s0",), ("0-5-s0",), ("0-6-s0",),
    ]  # fmt: skip
    # From the push to the acknowledgement that all have come: 2 ms later than its own.
    assert of_key[5].d_time_us == pytest.approx(2000 + 1000 + 100 + 1000, abs=1)
    assert of_key[4].time_us == 1_001_000_000
    set_up = [r for r in trace.records if isinstance(r, SetUp)]
    assert [(r.src, r.dst, r.length) for r in set_up] == [(0, 2, 76), (2, 0, 44), (0, 2, 300)]
    assert {r.operation for r in set_up} == {"SendCom_To_Servers"}
    # What says only that a push came, and not yet that it is over.
    assert trace.left_out == Counter(Ack=3 * 2)


def test_servers_and_other_workers_have_theirs(tmp_path):
    found, _ = served(trained(servers=2), tmp_path)
    traces = dlc_traces(found)
    other = [r for r in traces["worker-1"].records if isinstance(r, Record) and r.key == 1]
    assert [r.op_id for r in other[:4]] == ["1-0-s1", "1-1-s1", "1-2-s1", "1-3-s1"]
    assert other[2].depends_on == ("1-s0", "1-s1")
    assert traces["worker-1"].left_out == Counter()
    server = [r for r in traces["server-1"].records if isinstance(r, Record)]
    assert {r.key for r in server} == {1}
    mine = [r for r in server if r.peer == "w0"]
    assert [r.number for r in mine] == list(range(-2, 2 + 4 * 3))
    assert mine[0].num_pp == mine[1].num_pp == INITIAL
    of_worker = {r.op_id[:-3]: r.num_pp for r in traces["worker-0"].records if hasattr(r, "key")}
    # Servers count from -2 what worker 0 counts from 0.
    assert all(r.num_pp == of_worker[f"1-{r.number + 2}"] for r in mine)
    answer = next(r for r in mine if r.number == 3)
    assert (answer.depends_on, answer.many) == (("1-2-w0", "1-2-w1"), True)
    assert all(dlc.findings(one.records) == () for one in traces.values())


def test_the_files_are_read_again_without_a_complaint(tmp_path):
    job = trained(servers=2)
    job.say("w1", "scheduler", 0.0, Said("Register", nbytes=66))
    job.say("scheduler", "s1", 0.01, Said("Roster", nbytes=175))
    found, remarks = served(job, tmp_path)
    assert remarks == []
    files, said = dlc_files(found)
    assert [*files] == [
        "worker-0.txt", "worker-1.txt", "server-0.txt", "server-1.txt", "scheduler.txt", "keys.tsv",
    ]  # fmt: skip
    assert said[0] == "worker-0.txt: 6 Ack left out: the format has no place for them"
    for name, trace in dlc_traces(found).items():
        path = tmp_path / f"{name}.txt"
        path.write_bytes(files[path.name])
        assert dlc.read(path) == (trace.header, trace.records, ())
        assert dlc.repaired(trace.records) == trace.records
    (first, second) = dlc.read(tmp_path / "scheduler.txt").records
    assert first[1:] == (1, 4, 66, 0, "Register")
    assert second[1:] == (4, 3, 175, 0, "Roster")
    assert files["keys.tsv"].decode().splitlines()[1] == "0\t0\tt0\tfloat32\t0\t25"


def test_a_pull_before_its_push_is_answered_waits_for_the_push_alone(tmp_path):
    job = Job(workers=1, keys=1)
    job.first_values(0.0)
    job.say("w0", "s0", 1.0, Said("Push", 0, 1, nbytes=100))
    job.pull(0, 0, 1, 1.0005)
    job.say("s0", "w0", 1.0011, Said("Ack", 0, 1, 1))
    found, _ = served(job, tmp_path)
    records = dlc_traces(found)["worker-0"].records
    assert dlc.findings(records) == ()
    (asked,) = (r for r in records if isinstance(r, Record) and r.op_id == "0-6-s0")
    assert asked.dependency is Dependency.PULL_ON_PUSH
    assert (asked.depends_on, asked.d_time_us) == (("0-4-s0",), 500)


def test_what_has_no_place_is_counted_and_the_rest_keeps_its_own(tmp_path):
    job = Job(workers=1, keys=1)
    job.first_values(0.0)
    job.iteration(0, 1.0, pulls=False)  # weights are pulled every second time
    job.iteration(1, 2.0)
    job.pull(0, 0, 2, 3.0, request=999)  # once more in the same iteration
    job.say("w0", "s0", 3.1, Said("Push", 0, 2, nbytes=110))  # sent again
    job.say("w0", "s0", 3.2, Said("Query", 0, 7))
    job.say("s0", "w0", 3.3, Said("Ack", 0, 2, 2, asked=True))
    found, _ = served(job, tmp_path)
    trace = dlc_traces(found)["worker-0"]
    assert trace.left_out == Counter(Pull=1, Weights=1, Push=1, Query=1, Ack=1)
    records = [r for r in trace.records if isinstance(r, Record)]
    assert [r.number for r in records] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert records[6].depends_on == ("3-s0",)
    assert dlc.findings(trace.records) == ()


def test_asynchronous_servers_answer_each_push(tmp_path):
    job = Job(workers=2, keys=1)
    job.mode = "asgd"
    job.first_values(0.0)
    came_s = job.say("w1", "s0", 1.0, Said("Push", 0, 1, nbytes=100))
    job.say("s0", "w1", came_s + 0.0001, Said("Ack", 0, 1, 1))
    found, _ = served(job, tmp_path)
    assert not found.synchronous
    (answer,) = (
        r
        for r in dlc_traces(found)["server-0"].records
        if isinstance(r, Record) and r.op_id == "0-3-w1"
    )
    assert (answer.depends_on, answer.d_time_us) == (("0-2-w1",), 100)


def test_a_capture_that_begins_in_the_midst_is_numbered_as_the_whole(tmp_path):
    job = Job(keys=1)
    job.iteration(7, 1.0)
    job.iteration(8, 2.0)
    found, _ = served(job, tmp_path, leave_out=("w1",))
    trace = dlc_traces(found)["worker-0"]
    first = next(r for r in trace.records if isinstance(r, Record))
    assert (first.op_id, first.iteration, first.dependency) == ("0-32-s0", 7, Dependency.NONE)
    assert dlc.findings(trace.records) == ()
    # Nobody has worker 1's own numbers: they are as the server saw its messages.
    by_server = dlc_traces(found)["server-0"].records
    assert [r.num_pp for r in by_server if r.peer == "w1"] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_clocks_of_several_hosts_are_bounded_by_messages_both_ways(tmp_path):
    job = trained(servers=2, clocks={"s0": 50.0, "w1": -7.0})
    found, remarks = served(job, tmp_path)
    for sent, came, _, _ in pairs(list(found.messages.values())):
        assert came.time_s >= sent.time_s
    # Every message takes 1 ms, so that half of two bounds the error.
    assert found.clocks["s0"].seconds == pytest.approx(50.0, abs=1e-6)
    assert found.clocks["w1"].error_s == pytest.approx(0.001, abs=1e-6)
    assert (
        "s0: clock differs from that of w0 by 50.000000 s, by messages both ways, "
        "1000 us at most off" in remarks
    )
    assert found.clocks["s1"] == (0.0, 0.0)


def test_clocks_without_messages_both_ways_are_said_to_be_unknown(tmp_path):
    job = Job(workers=1, keys=1, clocks={"s0": 5.0})
    job.say("w0", "s0", 1.0, Said("Push", 0, 1))
    _, remarks = served(job, tmp_path)
    assert "s0: nothing says by how much the clock differs from that of w0" in remarks


def test_clocks_that_drifted_are_named(tmp_path):
    job = Job(workers=1, keys=1, clocks={"s0": 5.0})
    job.iteration(0, 1.0)
    job.clocks["s0"] = 5.02
    job.iteration(1, 2.0)
    _, remarks = served(job, tmp_path)
    assert any("it drifted: messages both ways contradict each other" in r for r in remarks)


def test_a_file_that_ends_early_is_read_as_far_as_it_is_whole(tmp_path):
    paths = trained().write(tmp_path)
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:-5])
    run = read_run(tmp_path)
    said = "\n".join(run.remarks)
    assert f"{paths[1].name}: ends in the midst of a block" in said
    assert run.served is not None
    assert [len(mine) > 0 for mine in run.served.messages.values()] == [True, True, False]
    paths[0].write_bytes(b"no file of ours\n")
    assert f"{paths[0].name}: not valid JSON" in read_run(tmp_path).remarks[0]


def test_a_run_without_ranks_has_a_timeline_of_its_workers(tmp_path):
    trained().write(tmp_path)
    run = read_run(tmp_path, last=2)
    assert run.timeline.world_size == 2
    assert run.timeline.metadata["exchange"] == "served"
    assert run.first == 1
    lanes = Counter((s.rank, s.lane, s.iteration) for s in run.timeline.spans)
    assert lanes[0, "push", 1] == lanes[1, "pull", 2] == 2
    assert lanes[1, "backward", 2] == 1
    assert {s.name for s in run.timeline.spans if s.lane == "push"} == {"t0", "t1"}
    computed = next(s for s in run.timeline.spans if s.lane == "backward" and s.rank == 0)
    # From the weights of iteration 0 to the last push of iteration 1.
    assert computed.duration_s == pytest.approx(2.0005 - 1.0087, abs=1e-6)


def test_of_several_jobs_the_last_is_shown(tmp_path):
    trained(iterations=1).write(tmp_path, run="first")
    other = trained(iterations=2)
    other.began_s = 2000.0
    other.write(tmp_path, run="second")
    run = read_run(tmp_path)
    assert run.served is not None
    assert run.served.run == "second"
    assert "files of 2 runs" in "\n".join(run.remarks)


def test_a_directory_of_nothing_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="holds no file of a rank"):
        read_run(tmp_path)


def test_perfetto_has_an_arrow_of_every_message(tmp_path):
    job = trained(servers=2)
    job.say("w1", "scheduler", -0.5, Said("Register", nbytes=66))
    job.write(tmp_path)
    run = read_run(tmp_path)
    assert run.served is not None
    beside = [*served_events(run)]
    events = json.loads(to_perfetto(run.timeline, beside=beside))["traceEvents"]
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    assert len(arrows) == len([*pairs(list(run.served.messages.values()))])
    boxes = {(e["pid"], e["tid"], e["ts"], e["name"]) for e in events if e["ph"] == "X"}
    for start, finish in arrows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert finish["ts"] - start["ts"] == pytest.approx(1000, abs=0.01)
        for end in (start, finish):
            assert (end["pid"], end["tid"], end["ts"], end["name"]) in boxes
    assert min(event["ts"] for event in events if "ts" in event) == 0.0
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 4: "server 0", 5: "server 1", 6: "scheduler"}
    updates = [e for e in events if e["ph"] == "X" and e["cat"] == "update"]
    assert {e["dur"] for e in updates} == {UPDATE_S * 1e6}
    assert {e["pid"] for e in updates} == {4, 5}


def test_perfetto_shows_what_the_timeline_shows(tmp_path):
    trained(iterations=4).write(tmp_path)
    run = read_run(tmp_path, last=1)
    pushes = [
        event
        for event in served_events(run)
        if event["ph"] == "X" and event["name"].startswith("Push ")
    ]
    assert {event["args"]["number"] for event in pushes} == {4}


def rank_file(directory, rank, worker, at_s, run="job"):
    """Write the file of a rank whose process is a worker, too."""
    header = Header(run="its own", rank=rank, world_size=2, host="h", clock="c", began_s=1.0)
    recorder = Recorder()
    recorder.add([Event("backward", at_s, at_s + 1.0, 0), Event("forward", at_s - 1.0, at_s, 0)])
    writer = TraceWriter(directory, header)
    notes = [{"job": run, "worker": worker}, {"texts": recorder.texts}]
    writer.write(recorder.take(), notes)
    writer.close()


def test_ranks_are_on_the_clock_of_the_messages_between_their_workers(tmp_path):
    job = trained(clocks={"w0": 50.0})
    job.write(tmp_path)
    rank_file(tmp_path, 0, worker=1, at_s=2.0)
    rank_file(tmp_path, 1, worker=0, at_s=52.25)
    run = read_run(tmp_path)
    assert run.ranks == {"w1": 0, "w0": 1}
    begins = {s.rank: s.start_s for s in run.timeline.spans if s.lane == "backward"}
    assert begins == {0: pytest.approx(1.0), 1: pytest.approx(1.25)}
    assert run.origin_s == 1.0
    said = "\n".join(run.remarks)
    assert "w0: clock differs from that of w1 by 50.000000 s" in said
    assert "was not compared" not in said

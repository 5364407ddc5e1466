"""DLC: read, written, made from messages, and repaired, beside the paper's own trace."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing import dlc
from syncopate.tracing.dlc import Header, Node, Operation, Record, Records, SetUp
from syncopate.tracing.dlc.records import INITIAL, Dependency

FIG_8 = Path(__file__).parent / "data" / "sketchdlc_fig8.csv"
HEADER = Header(workers=2, servers=1, hostname="GPU-1-12")
FIG_8_SHA256 = "5e12ce8d455d5894cfd2632021e3dfb1763887ad377fdfcc64d53ab55716a360"
"""Of the text of the figure with eight lines above its columns, as the authors' file has it."""


def figure_8():
    """Return the records of the paper's Fig. 8, from the table of their fields."""
    lines = [line for line in FIG_8.read_text().splitlines() if not line.startswith("#")]
    found = []
    for row in csv.reader(lines[1:]):
        numbers = [int(value) for value in row[:5]]
        if len(row) == 6:
            found.append(SetUp(*numbers, row[5]))
            continue
        key, number, peer = row[6].split("-")
        many = row[10].startswith("(")
        depends_on = () if row[10] == "-1" else (row[10].strip("()"),)
        kind, d_time_us, time_us = Dependency(int(row[7])), int(row[8]), int(row[9])
        found.append(
            Record(
                *numbers,
                Operation(row[5]),
                int(key),
                int(number),
                peer,
                kind,
                d_time_us,
                time_us,
                depends_on,
                many,
            )
        )
    return tuple(found)


def written(tmp_path, records, header=HEADER):
    path = tmp_path / "trace_record.txt"
    path.write_text("".join(dlc.to_dlc(header, records)), encoding="utf-8")
    return path


def test_the_papers_own_trace_comes_out_byte_for_byte(tmp_path):
    path = written(tmp_path, figure_8())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == FIG_8_SHA256
    read = dlc.read(path)
    assert read == (HEADER, figure_8(), ())


def test_lists_that_end_with_a_full_stop_are_read(tmp_path):
    path = written(tmp_path, figure_8())
    path.write_text(path.read_text().replace("(3-s0,)", "(3-s0.)"))
    assert dlc.read(path).records == figure_8()


def test_what_is_odd_about_the_papers_trace_is_said_and_repaired():
    said = dlc.findings(figure_8())
    assert said == (
        "id 16: Pull_Recv_Worker 3-3-s0 stands before 3-2-s0, for which it waited",
        "id 16 stands twice; each record has its own",
        "id 24: Pull_Recv_Worker 5-3-s0 stands before 5-2-s0, for which it waited",
        "id 24 stands twice; each record has its own",
    )
    mended = dlc.repaired(figure_8())
    assert dlc.findings(mended) == ()
    assert [record.id for record in mended] == list(range(68))
    assert sorted(r[1:] for r in mended) == sorted(r[1:] for r in figure_8())


def test_a_node_makes_the_papers_records_from_its_messages():
    node = Node(0, worker=True, workers=2, servers=1)
    expected = dlc.repaired(figure_8())
    for record in expected:
        if isinstance(record, SetUp):
            node.set_up(0, sends=record.src == 0, length=record.length)
        else:
            node.add(
                record.operation,
                record.key,
                0,
                length=record.length,
                num_pp=record.num_pp,
                time_us=record.time_us,
                iteration=record.iteration,
            )
    # The paper spells its very first operation in another way.
    assert node.records[1:] == list(expected[1:])
    assert node.records[0] == expected[0]._replace(operation="SendCom_To_Servers")


def iteration(node, number, operations, key, peer, at_us, *, num_pp=1):  # noqa: PLR0917
    """Add one message of each operation, a millisecond apart; return the records."""
    return [
        node.add(
            one,
            key,
            peer,
            length=10,
            num_pp=num_pp,
            time_us=at_us + 1000 * step,
            iteration=number,
        )
        for step, one in enumerate(operations)
    ]


WORKER = [one for one in Operation if one.by_worker]
SERVER = [one for one in Operation if not one.by_worker]


def test_other_workers_begin_with_a_pull_and_wait_for_all_servers():
    node = Node(1, worker=True, workers=2, servers=2)
    first = iteration(node, -1, WORKER[2:], 3, 1, 0)
    assert [one.op_id for one in first] == ["3-0-s1", "3-1-s1"]
    assert [one.dependency for one in first] == [Dependency.NONE, Dependency.PULL_ON_PULL]
    push = iteration(node, 0, WORKER, 3, 1, 10_000)[0]
    assert (push.src, push.dst, push.number) == (1, 3, 2)
    assert (push.depends_on, push.many) == (("1-s0", "1-s1"), True)
    # From the pull that it sent at 0.
    assert push.d_time_us == 10_000


def test_a_server_counts_from_minus_two_and_its_answer_waits_for_all_workers():
    node = Node(0, worker=False, workers=2, servers=1)
    assert [one.op_id for one in iteration(node, -1, SERVER, 0, 0, 0, num_pp=INITIAL)] == [
        "0--2-w0",
        "0--1-w0",
        "0-0-w0",
        "0-1-w0",
    ]
    iteration(node, -1, SERVER[2:], 0, 1, 0)
    received, sent, *_ = iteration(node, 0, SERVER, 0, 0, 10_000)
    assert received.depends_on == ("0-1-w0", "0-1-w1")
    assert (sent.depends_on, sent.many) == (("0-2-w0", "0-2-w1"), True)
    assert (sent.dependency, sent.d_time_us) == (Dependency.PUSH_ON_PUSH, 1000)
    assert (sent.src, sent.dst) == (2, 0)


@pytest.mark.parametrize(("rank", "worker"), [(0, True), (1, True), (0, False)])
def test_columns_have_the_nodes_and_iterations_of_their_records(rank, worker):
    node = Node(rank, worker=worker, workers=2, servers=1)
    node.set_up(0, sends=True, length=8)
    order = WORKER if worker else SERVER
    for number, operations in enumerate((order[2 * rank :], order, order), start=-1):
        iteration(node, number, operations, 3, 0, 0)
    records, timed = Records.of(node.records), node.records[1:]
    assert records.timed().tolist() == [False, *[True] * len(timed)]
    assert records.nodes().tolist()[1:] == [one.node for one in timed]
    assert records.iterations().tolist()[1:] == [one.iteration for one in timed]
    for what in ("push", "sends", "by_worker"):
        found = records.of_operations(what).tolist()
        assert found == [False, *(getattr(one.operation, what) for one in timed)]


def test_asynchronous_servers_answer_one_push():
    node = Node(0, worker=False, workers=2, servers=1, synchronous=False)
    iteration(node, -1, SERVER[2:], 0, 1, 0)
    sent = iteration(node, 0, SERVER, 0, 1, 10_000)[1]
    assert (sent.depends_on, sent.many) == (("0-2-w1",), False)


def test_what_a_worker_does_not_do_is_refused():
    node = Node(0, worker=True, workers=1, servers=1)
    with pytest.raises(InvalidValueError, match=r"operation is .*Pull_Send_Server.*Push_Send_"):
        iteration(node, 0, [Operation.PULL_SEND_SERVER], 4, 0, 0)
    with pytest.raises(InvalidValueError, match=r"rank is 1; it must be in 0\.\.0"):
        Node(1, worker=True, workers=1, servers=1)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=30),
    st.integers(0, 1),
    st.booleans(),
)
def test_what_a_node_wrote_is_read_again(tmp_path_factory, steps, rank, worker):
    # No message is waited for here that the other worker sends.
    node = Node(rank, worker=worker, workers=2, servers=2, synchronous=False)
    order = WORKER if worker else SERVER
    begun: dict[tuple[int, int], int] = {}
    for at_us, (key, peer) in enumerate(steps):
        pushes_first = rank == 0 if worker else peer == 0
        place = begun.get((key, peer), 0 if pushes_first else 2)
        iteration(node, place // 4 - 1, [order[place % 4]], key, peer, at_us)
        begun[key, peer] = place + 1
    header = HEADER._replace(servers=2, role="worker" if worker else "server")
    path = written(tmp_path_factory.mktemp("dlc"), node.records, header)
    assert dlc.read(path) == (header, tuple(node.records), ())
    assert dlc.findings(node.records) == ()


@pytest.mark.parametrize(
    ("old", "new", "column", "words"),
    [
        ("2\t0\t2\t2042", "2\t0\tx\t2042", 5, "dst is 'x', not an integer"),
        ("OP:= Push_Send_Worker\t0-0-s0", "OP:= Push_Say\t0-0-s0", 16, "unknown operation"),
        ("OP:= Push_Send_Worker\t0-0-s0", "Push_Send_Worker\t0-0-s0", 16, "is no operation"),
        ("0-0-s0\t0\t0\t", "0-s0\t0\t0\t", 38, "no op_id"),
        ("0-0-s0\t0\t0\t", "0-0-s0\t5\t0\t", 45, r"dep_type is 5; it must be in 0\.\.4"),
        ("\t481409\t", "\t1481409\t", 60, "time_usec is 1481409"),
        ("\t481409\t-1", "\t481409\t(x,)", 67, "id_dep is"),
        ("\t481409\t-1", "", 60, "10 fields; expected 6 or 12"),
        ("2\t0\t2\t2042", f"2\t0\t{1 << 31}\t2042", 5, "dst holds .*number of 32 bits"),
        ("0-0-s0\t0\t0\t", f"0-{1 << 63}-s0\t0\t0\t", 38, "op_id holds .*of 64 bits"),
        ("0-0-s0\t0\t0\t", f"0-0-s0\t0\t{1 << 63}\t", 47, "d_time holds .*of 64 bits"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_read(tmp_path, old, new, column, words):
    path = written(tmp_path, figure_8())
    path.write_text(path.read_text().replace(old, new, 1))
    read = dlc.read(path)
    assert read.records == figure_8()[:2] + figure_8()[3:]
    (damage,) = read.damage
    assert (damage.path, damage.line) == (str(path), 12)
    assert damage.column == column
    assert str(damage).startswith(f"{path}:12:{column}: ")
    assert re.search(words, damage.reason)


@pytest.mark.parametrize("text", ["", "id\tsrc\n", "{}\n" * 200])
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"other\.txt: not a DLC trace"):
        dlc.read(path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        dlc.read(tmp_path / "missing.txt")


def test_a_damaged_line_among_many_is_named_by_its_number(tmp_path):
    node = Node(0, worker=True, workers=1, servers=1)
    for number in range(200):
        iteration(node, number - 1, WORKER, 0, 0, 4000 * number)
    path = written(tmp_path, node.records)
    lines = path.read_text().splitlines(keepends=True)
    first = len(lines) - len(node.records)
    lines[first + 500] = lines[first + 500].replace("\t10\t", "\tten\t", 1)
    lines.insert(first + 300, "\n")
    path.write_text("".join(lines))
    told = []
    read = dlc.read(path, told.append)
    assert read.records == (*node.records[:500], *node.records[501:])
    assert [(one.line, one.column) for one in read.damage] == [(first + 502, 9)]
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= 1


def waiting(*names, many=False, key=3, number=2, place=0, peer="s0"):
    """Return a record that waited for some others."""
    kind, what = Dependency.PULL_ON_PUSH, Operation.PULL_SEND_WORKER
    numbers = (place, 0, 2, 8, 1, what, key, number, peer)
    return Record(*numbers, kind, 7, 1000 - place, names, many)


SPELLED = (
    waiting("3-1-s0"),
    waiting("3--1-s0", "3--1-s1", many=True),
    waiting("1-s0", "1-s1", many=True),
    waiting(many=True),
    waiting("03-1-s0"),
    waiting("3-1-s0", "4-2-s0", many=True),
    waiting("-0-s1", peer="s1"),
    waiting(f"{1 << 31}-1-s0", number=-(1 << 63)),
    waiting("what the format lacks"),
    SetUp(-1, 0, 2, 1 << 62, 0, "Hello"),
)


def test_every_record_is_had_back_from_columns_as_it_was():
    records = Records.of(SPELLED * 1000)
    assert records == SPELLED * 1000
    assert [type(one) for one in records] == [type(one) for one in SPELLED] * 1000
    assert (records[-1], records[5010:5020]) == (SPELLED[-1], SPELLED)
    assert records[::-3] == (SPELLED * 1000)[::-3]
    assert records != SPELLED * 999
    assert records[:10] != (*SPELLED[:9], SPELLED[9]._replace(id=0))
    row = sum(getattr(records, field).itemsize for field in Records.DTYPES)
    assert row < 100, "an object takes several hundred bytes"
    with pytest.raises(IndexError):
        records[len(records)]
    with pytest.raises(ValueError, match="read-only"):
        records.id[0] = 1
    with pytest.raises(InvalidValueError, match=r"src of a record is 2147483648.*of 32 bits"):
        Records.of([waiting()._replace(src=1 << 31)])


@pytest.mark.parametrize("others", [0, 200])
def test_what_stands_too_early_is_found_however_it_names_what_it_waited_for(others):
    # Of one kind many are looked at together, and of many kinds each by itself.
    records = [
        waiting(*names, many=len(names) > 1, key=9, number=n, place=n)
        for n, names in enumerate([("9-5-s0",), ("9-1-s0",), ("5-s0",), ("9-0-s0", "9-4-s0")])
    ]
    records += [waiting("8-8-s0", key=9, number=4, place=4), waiting(key=9, number=5, place=5)]
    records += [waiting(f"9-5-s{n}", place=6 + n, peer=f"s{n}") for n in range(others)]
    assert dlc.findings(records) == (
        "id 0: Pull_Send_Worker 9-0-s0 stands before 9-5-s0, for which it waited",
        "id 3: Pull_Send_Worker 9-3-s0 stands before 9-4-s0, for which it waited",
    )
    assert [one.time_us for one in dlc.repaired(records)] == sorted(r.time_us for r in records)


def test_a_compressed_trace_that_is_cut_off_is_refused(tmp_path):
    path = written(tmp_path, figure_8() * 200)
    packed = tmp_path / "trace.txt.gz"
    content = gzip.compress(path.read_bytes())
    packed.write_bytes(content)
    assert dlc.read(packed) == dlc.read(path)
    packed.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="cannot be read: Compressed file ended before"):
        dlc.read(packed)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_trace_of_windows_is_read(tmp_path, encoding):
    path = written(tmp_path, figure_8())
    expected = dlc.read(path)
    path.write_bytes(path.read_text("utf-8").encode(encoding))
    assert dlc.read(path) == expected

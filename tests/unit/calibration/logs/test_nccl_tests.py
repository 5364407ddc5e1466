"""Logs of nccl-tests: what rows say, in every version, with warnings and other text between."""

from __future__ import annotations

import json
import re

import pytest

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.artifacts.overlap import RDMA, TCP
from syncopate.calibration.logs.measured import CollectiveLog
from syncopate.calibration.logs.nccl_json import as_lines, is_nccl_json
from syncopate.calibration.logs.nccl_tests import read_nccl_tests
from syncopate.calibration.logs.text import lines_of
from syncopate.errors import ArtifactError
from tests.unit.calibration.logs import written

DEBUG = "node00:100:140 [0] NCCL INFO "


def read(text: str, collective: str = "", path: str = "log") -> CollectiveLog:
    (found,) = read_nccl_tests(path, lines_of(text), collective)
    return found


def seconds(log: CollectiveLog) -> dict[int, tuple[float, ...]]:
    return {sample.nbytes: sample.seconds for sample in log.samples}


PLAIN = written.nccl_tests()
EXPECTED = {
    size: pytest.approx([time_us * 1e-6 for time_us in written.times_us(size)])
    for size in written.SIZES
}


def test_a_log_is_read_whole() -> None:
    found = read(PLAIN)
    assert seconds(found) == EXPECTED
    assert (found.collective, found.ranks, found.host_count) == ("all_reduce", 32, 4)
    assert (found.ranks_per_host, found.hosts[8]) == (8, "node01")
    assert found.device == "NVIDIA A100-SXM4-80GB"
    assert found.version == "nccl-tests version 2.17.6"
    assert (found.forced, found.carrier, found.remarks) == ("", "", ())


@pytest.mark.parametrize(
    ("header", "roots"),
    [(written.NEW, True), (written.OLD, False), (written.OLDEST, False), ("", True), ("", False)],
    ids=["new", "old", "oldest", "no header", "no header, no root"],
)
def test_headers_of_all_versions(header: str, roots: bool) -> None:
    text = PLAIN.replace(written.NEW, header)
    if not roots:
        text = re.sub(r"(sum) +-1", r"\1", text)
        text = re.sub(r" +0$", "  2e-06", text, flags=re.MULTILINE)
    found = read(text)
    assert seconds(found) == EXPECTED
    assert found.remarks == ()


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "0: ", "2025-08-01T12:00:00.123Z ", "node00: ", "[0] "]
)
def test_what_launchers_put_before_each_line(prefix: str) -> None:
    text = "\n".join(prefix + line for line in PLAIN.splitlines())
    assert seconds(read(text)) == EXPECTED
    assert read(text).ranks == 32


def test_messages_between_rows_and_within_them() -> None:
    lines = []
    for number, line in enumerate(PLAIN.splitlines()):
        cut = line.find("-1") + 2 if "sum" in line and number % 2 else 0
        if cut:
            # A row is printed in pieces, and NCCL's messages of other ranks fall between them.
            lines += [line[:cut] + "[3] " + DEBUG + "65536 Bytes -> Algo 0 proto 0 time 3.7"]
            lines += ["node01:9:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/IPC"]
            lines += ["WARNING: a transport is slow, 12 times", line[cut:]]
        else:
            lines += [line, "some library says 1 2 3"]
    found = read("\r\n".join(lines))
    assert seconds(found) == EXPECTED
    assert found.remarks == ()


def test_rows_of_several_processes_in_turn_are_samples_of_one_test() -> None:
    rows = [line for line in PLAIN.splitlines() if "sum" in line]
    head = PLAIN.split(rows[0])[0]
    cut = [row.rfind("-1") + 2 for row in rows]
    pieces = []
    for row, at in zip(rows, cut, strict=True):
        pieces += [f"0: {row[:at]}", f"1: {row[:at]}", f"1: {row[at:]}", f"0: {row[at:]}"]
    found = read(head + "\n".join(pieces))
    assert len(found.samples) == 2 * len(rows)
    assert all(sample.seconds == EXPECTED[sample.nbytes] for sample in found.samples)


def test_a_last_row_that_was_cut_off() -> None:
    whole = [line for line in PLAIN.splitlines() if "sum" in line]
    until = PLAIN.index(whole[-1])
    at_once = PLAIN[: until + whole[-1].index("-1") + 9]
    found = read(at_once)
    assert seconds(found) == {s: t for s, t in EXPECTED.items() if s != written.SIZES[-1]}
    assert found.remarks == ("log: 1 row left out, cut off or mixed up with other output",)
    # Out of place is whole, in place is not.
    found = read(PLAIN[: until + whole[-1].rindex(" ") - 7])
    assert len(found.samples[-1].seconds) == 1


def test_rows_that_contradict_themselves_are_left_out() -> None:
    mixed = PLAIN.replace(f"{written.SIZES[-1]:12d}", f"{8 * written.SIZES[-1]:12d}")
    found = read(mixed)
    assert len(found.samples) == len(written.SIZES) - 1
    assert "1 row left out" in found.remarks[0]


def test_a_long_line_of_dashes_takes_no_time() -> None:
    banner = "-" * 60 + " my runs " + "-" * 60 + "\n"
    assert seconds(read(banner + PLAIN)) == EXPECTED


def test_a_row_without_its_last_column() -> None:
    header = "#  size  count  type  redop" + "  time  algbw  busbw  #wrong" * 2 + "  root\n"
    row = "1048576  262144  float  sum" + "  100.0  10.49  20.32  0" * 2 + "\n"
    found = read("all_reduce_perf\n" + written.nccl_tests(sizes=()) + header + row)
    assert seconds(found) == {1048576: pytest.approx([1e-4, 1e-4])}


def test_wrong_data_is_told() -> None:
    rows = [line for line in PLAIN.splitlines() if "sum" in line]
    found = read(PLAIN.replace(rows[3], rows[3].removesuffix("0") + "7"))
    assert found.remarks == (
        "log: 1 time of data that the test found wrong; do not trust this host",
    )


def test_what_nccl_chose_by_size() -> None:
    tuned = "".join(
        f"{DEBUG}AllReduce: {size} Bytes -> Algo {'TREE' if size < 10_000 else 'RING'} proto LL\n"
        for size in written.SIZES
    )
    found = read(PLAIN + tuned)
    assert {s.nbytes: s.algorithm for s in found.samples} == {
        size: "tree" if size < 10_000 else "ring" for size in written.SIZES
    }
    by_number = re.sub("Algo (TREE|RING)", lambda m: f"Algo {int(m[1] == 'RING')}", tuned)
    assert read(PLAIN + by_number) == found


@pytest.mark.parametrize(
    ("said", "forced", "carrier"),
    [
        ("NCCL_ALGO set by environment to Tree", "tree", ""),
        ("NCCL_TREE_THRESHOLD set by environment to 0.", "ring", ""),
        ("NCCL_ALGO set by environment to Ring,Tree", "", ""),
        ("NCCL_ALGO set by environment to ^Tree", "", ""),
        ("Using network Socket", "", TCP),
        ("Using network IB", "", RDMA),
        ("Channel 00/0 : 7[3] -> 8[0] [send] via NET/Socket/0", "", TCP),
        ("Channel 00/0 : 7[3] -> 8[0] [send] via NET/IB/0/GDRDMA", "", RDMA),
    ],
)
def test_what_the_environment_allowed(said: str, forced: str, carrier: str) -> None:
    found = read(written.nccl_tests(before=f"{DEBUG}{said}\n"))
    assert (found.forced, found.carrier) == (forced, carrier)
    assert {sample.algorithm for sample in found.samples} == {forced}


def test_a_command_line_allows_one_algorithm() -> None:
    found = read(written.nccl_tests(before="+ mpirun -x NCCL_ALGO=Ring ./all_reduce_perf -b 8\n"))
    assert found.forced == "ring"


def test_several_tests_in_one_file() -> None:
    text = PLAIN + written.nccl_tests(test="all_gather", start_us=60.0)
    first, second = read_nccl_tests("log", lines_of(text))
    assert (first.collective, second.collective) == ("all_reduce", "all_gather")
    assert second.samples[0].seconds[0] == pytest.approx(60e-6, rel=1e-3)


def nameless(test: str = "all_reduce", **shape: int) -> str:
    text = re.sub(r"# Coll.*\n", "", written.nccl_tests(test=test, **shape))
    return re.sub(r"# Using devices\n(#  Rank.*\n)*", "", text)


class TestWhatTheLogDoesNotSay:
    def test_rates_tell_an_all_reduce_and_its_ranks(self) -> None:
        found = read(nameless(hosts=1, per_host=8))
        assert (found.collective, found.ranks) == ("all_reduce", 8)

    def test_a_file_tells_by_its_name(self) -> None:
        assert read(nameless("all_gather"), path="run/all_gather-1.log").collective == "all_gather"

    def test_the_user_tells(self) -> None:
        assert read(nameless("reduce_scatter"), "reduce_scatter").collective == "reduce_scatter"

    def test_many_ranks_are_not_told_by_two_decimals(self) -> None:
        assert read(nameless(hosts=8, per_host=32)).ranks == 0

    def test_ranks_that_are_left_out_of_the_list_are_counted(self) -> None:
        text = re.sub(r"#  Rank  ?[1-9] .*\n", "", PLAIN)
        found = read(text)
        assert (found.ranks, found.hosts, found.host_count) == (32, (), 4)
        assert found.ranks_per_host == 8


def as_json(**changes: object) -> str:
    """Return the log as ``-J`` writes it."""
    devices = [
        {"rank": rank, "group": 0, "pid": 7, "hostname": f"node{rank // 8}", "device": rank % 8,
         "device_hex": "0000:0f:00", "device_info": "NVIDIA H100"}
        for rank in range(32)
    ]  # fmt: skip
    results = []
    for size in written.SIZES:
        row = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        for place, time_us in zip(
            ("out_of_place", "in_place"), written.times_us(size), strict=True
        ):
            rate = size / time_us / 1e3
            row[place] = {
                "time": time_us,
                "alg_bw": rate,
                "bus_bw": rate * 2 * 31 / 32,
                "nwrong": 0.0,
            }
        results.append(row)
    document = {
        "version": 2,
        "args": ["./all_reduce_perf", "-b", "8"],
        "env": ["NCCL_ALGO=Tree", "HOME=/root"],
        "nccl_version": 22807,
        "config": {"devices": devices},
        "results": results,
    }
    return json.dumps(document | changes)


def test_json_says_what_text_does() -> None:
    (found,) = read_nccl_tests("log", as_lines("log", as_json()))
    assert is_nccl_json(as_json())
    assert seconds(found) == EXPECTED
    assert (found.collective, found.ranks, found.ranks_per_host) == ("all_reduce", 32, 8)
    assert (found.forced, found.device, found.remarks) == ("tree", "NVIDIA H100", ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (as_json()[:-20], "not valid JSON (damaged or truncated)"),
        (as_json(results=[]), "JSON of nccl-tests without results"),
    ],
)
def test_json_that_is_damaged(text: str, said: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        as_lines("log", text)
    assert said in str(raised.value)


def test_json_that_is_too_deep() -> None:
    with pytest.raises(ArtifactError, match=TOO_DEEP):
        as_lines("log", '{"nccl_version": ' + "[" * 200_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAIN.replace("  time  ", "cputime "), "times of processors (-C)"),
        (nameless("all_gather"), "give --collective, one of all_reduce"),
        (PLAIN.replace("all_reduce", "alltoall"), "a test of alltoall, of which nothing is known"),
        (written.nccl_tests(1, 1), "each process tested one GPU alone"),
        (written.nccl_tests(sizes=()), "no row can be read: it has no row of a size and times"),
        (PLAIN[: PLAIN.index("-1 ") + 4], "no row can be read: 1 rows are cut off"),
    ],
)
def test_refusals(text: str, said: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        read(text)
    assert said in str(raised.value)
    assert str(raised.value).startswith("log: ")

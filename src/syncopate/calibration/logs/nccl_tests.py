"""nccl-tests: tables of ``all_reduce_perf`` and its siblings; rccl-tests writes the same.

[Note: rows] A row is a size, a count, a type, an operation, in newer versions a root, and then for
calls out of place and in place a time in us, two rates and a check. The header says which. A
process prints a row in pieces, and NCCL's own messages fall between them, so pieces of one process
are put together again. A row whose time and rate contradict each other was mixed up with another,
and is left out; so is a last row that was cut off before its first time was whole.

[Note: what NCCL chose] ``NCCL_ALGO`` and ``NCCL_TREE_THRESHOLD`` allow one algorithm alone where
the log shows them set. With ``NCCL_DEBUG_SUBSYS=TUNING`` NCCL says its choice for every size.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from syncopate.artifacts.overlap import RDMA, TCP
from syncopate.artifacts.results.benchmark import BUS_FACTORS
from syncopate.calibration.logs.measured import CollectiveLog, Sample
from syncopate.errors import ArtifactError

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "sendrecv")
"""The tests that say something about a cluster here."""

_OTHERS = ("alltoall", "alltoallv", "gather", "scatter", "hypercube")
_TYPES = (
    r"u?int(?:8|32|64)?|char|half|float(?:16|32|64)?|double|bfloat16|bf16|"
    r"f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2"
)
_OPERATIONS = "sum|prod|max|min|avg|mulsum|none|all"
_ROW = re.compile(rf"\s*(\d+)\s+(\d+)\s+({_TYPES})\s+({_OPERATIONS})\b(.*)")
_HEADER = re.compile(r"#\s+(?:size\s+count|bytes\s+N)\s+type\s+(?:redop|op)\b(.*)")
_NUMBERS = re.compile(r"\s*(?:(?:[-+:0-9.e]|N/A|nan|inf)\s*)+", re.IGNORECASE)
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
    r"\s+\[[^\]]*\]\s*(.*)"
)
_DEBUG = re.compile(r"(?:\[\d+\]\s+)?[\w.-]+:\d+:\d+ \[\d+\] (.*)")
_TEST = re.compile(rf"\b({'|'.join((*COLLECTIVES, *_OTHERS))})_perf(?:_mpi)?\b")
_BEGINS = re.compile(r"# (?:(?:nccl|rccl)-tests version|Collective test starting|nThread)")
_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto")
_ALGO = re.compile(r"NCCL_ALGO(?:=| set by environment to )[\"']?([\w^,;:]+)")
_NO_TREES = re.compile(r"NCCL_TREE_THRESHOLD(?:=| set by environment to )[\"']?0\b")
_CARRIER = re.compile(r"Using network (\w+)|NET/(Socket|IB)\b")
_NUMBERED = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""NCCL's algorithms by their numbers, as versions before 2.24 print them."""

_TIMES = ("time", "algbw", "busbw", "#wrong")

_MIXED_UP = 0.25
"""A row is mixed up if its rate is off by this share of its size over its time."""


def is_nccl_tests(text: str) -> bool:
    """Say whether a text is, or begins, a log of nccl-tests."""
    marks = (_HEADER, _BEGINS, _RANK, re.compile(r"\b\w+_perf(?:_mpi)?\b.* -[begft] "))
    return "NCCL INFO" in text or any(mark.search(text) for mark in marks)


@dataclass
class _Table:
    """The reader of one test, line by line."""

    collective: str = ""
    columns: tuple[str, ...] = ()
    ranks: dict[int, str] = field(default_factory=dict)
    device: str = ""
    version: str = ""
    samples: list[Sample] = field(default_factory=list)
    factors: list[tuple[float, float]] = field(default_factory=list)
    operations: set[str] = field(default_factory=set)
    roots: set[str] = field(default_factory=set)
    chosen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    pending: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    wrong: int = 0


@dataclass
class _Around:
    """The facts that hold for all tests of a file."""

    forced: str = ""
    carrier: str = ""


def read_nccl_tests(
    path: str, lines: Sequence[tuple[str, str]], collective: str = ""
) -> tuple[CollectiveLog, ...]:
    """Return the tests of a log, in order.

    Args:
        path: of the file, for errors.
        lines: prefix and rest of each.
        collective: which was tested, where the log does not say.

    Raises:
        ArtifactError: no row is whole; a test that says nothing about a cluster; or it is not
            known which collective was tested.
    """
    around, tables = _Around(), [_Table()]
    for prefix, line in lines:
        if _BEGINS.match(line) and tables[-1].samples:
            _finish(tables[-1])
            tables.append(_Table())
        _take(tables[-1], around, prefix, line)
    _finish(tables[-1])
    whole = [table for table in tables if table.samples]
    if not whole:
        if any("cputime" in table.columns for table in tables):
            reason = "times of processors (-C), which say nothing of the network; run it without -C"
            raise ArtifactError(path, reason)
        cut = sum(table.dropped for table in tables)
        why = f"{cut} rows are cut off or mixed up" if cut else "it has no row of a size and times"
        raise ArtifactError(path, f"a log of nccl-tests, of which no row can be read: {why}")
    return tuple(_log(path, table, around, collective) for table in whole)


def _take(table: _Table, around: _Around, prefix: str, line: str) -> None:
    """Read one line into a table."""
    debug = _DEBUG.search(line)
    if debug is not None:
        line = line[: debug.start()]
        _take_debug(table, around, debug.group(1))
    elif _NUMBERS.fullmatch(line) is None and _ROW.match(line) is None:
        _take_other(table, around, line)
        return
    if not line.strip():
        return
    row = _ROW.match(line)
    if row is not None:
        _complete(table, table.pending.pop(prefix, ""))
        table.pending[prefix] = line.rstrip()
    elif prefix in table.pending and _NUMBERS.fullmatch(line):
        table.pending[prefix] += " " + line.strip()


def _take_debug(table: _Table, around: _Around, text: str) -> None:
    """Read one of NCCL's own messages."""
    choice = _CHOICE.search(text)
    if choice is not None:
        name = choice.group(2).lower()
        if name.isdecimal():
            name = _NUMBERED[int(name)] if int(name) < len(_NUMBERED) else ""
        if name:
            table.chosen[int(choice.group(1))].add(name)
    _take_environment(around, text)
    carrier = _CARRIER.search(text)
    if carrier is not None:
        socket = "socket" in (carrier.group(1) or carrier.group(2)).lower()
        around.carrier = TCP if socket else RDMA


def _take_environment(around: _Around, text: str) -> None:
    allowed = _ALGO.search(text)
    if allowed is not None and re.fullmatch(r"[A-Za-z_]+", allowed.group(1)):
        around.forced = allowed.group(1).lower()
    elif _NO_TREES.search(text):
        around.forced = "ring"


def _take_other(table: _Table, around: _Around, line: str) -> None:
    """Read a header, a rank, or the command that was run."""
    header, rank, test = _HEADER.match(line), _RANK.match(line), _TEST.search(line)
    if header is not None:
        table.columns = tuple(header.group(1).split())
    elif rank is not None:
        if int(rank.group(2) or 0) == 0:
            table.ranks.setdefault(int(rank.group(1)), rank.group(3))
        table.device = table.device or rank.group(4).strip()
    elif test is not None:
        table.collective = test.group(1)
    for pattern in (r"(?:nccl|rccl)-tests version \S+", r"NCCL version \S+"):
        version = re.search(pattern, line)
        if version is not None and version.group() not in table.version:
            table.version = ", ".join(filter(None, (table.version, version.group())))
    _take_environment(around, line)


def _finish(table: _Table) -> None:
    for text in table.pending.values():
        _complete(table, text)
    table.pending.clear()


def _complete(table: _Table, text: str) -> None:
    """Turn the pieces of a row into a sample; see [Note: rows]."""
    row = _ROW.match(text)
    if row is None:
        return
    values = row.group(5).split()
    columns = table.columns or (*(("root",) if len(values) % 4 == 1 else ()), *_TIMES, *_TIMES)
    found: list[float] = []
    for at, name in enumerate(columns):
        if name == "root" and at < len(values):
            table.roots.add(values[at])
        # The last piece of a row that was cut off may be a part of a number.
        if name != "time" or len(values) < at + len(_TIMES):
            continue
        time_us, algbw, busbw = map(_number, values[at : at + 3])
        if _fits(int(row.group(1)), time_us, algbw):
            found.append(time_us * 1e-6)
            table.factors.append((algbw, busbw))
            counted = "#wrong" in table.columns or values[at + 3].isdecimal()
            table.wrong += counted and _number(values[at + 3]) > 0
    nbytes = int(row.group(1))
    if found and nbytes:
        table.operations.add(row.group(4))
        table.samples.append(Sample(nbytes, tuple(found)))
    elif nbytes:
        table.dropped += 1


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _fits(nbytes: int, time_us: float, algbw: float) -> bool:
    """Say whether a time is one, and the rate beside it that of the size."""
    if not (0 < time_us < math.inf):
        return False
    rate = nbytes / time_us * 1e-3
    # Rates are printed with two decimals.
    return not algbw > 0.1 or abs(rate - algbw) <= _MIXED_UP * rate + 0.01


def _log(path: str, table: _Table, around: _Around, collective: str) -> CollectiveLog:
    collective = _collective(path, table, collective)
    ranks = max(table.ranks, default=-1) + 1 or _ranks_by_rate(table, collective)
    if ranks == 1:
        raise ArtifactError(
            path,
            "each process tested one GPU alone, and nothing was sent; build nccl-tests with MPI=1, "
            "or give one process several GPUs with -g",
        )
    hosts = tuple(table.ranks[rank] for rank in sorted(table.ranks))
    remarks = []
    if table.dropped:
        rows = f"{table.dropped} row{'s' * (table.dropped > 1)}"
        remarks.append(f"{path}: {rows} left out, cut off or mixed up with other output")
    if table.wrong:
        times = f"{table.wrong} time{'s' * (table.wrong > 1)}"
        remarks.append(f"{path}: {times} of data that the test found wrong; do not trust this host")
    samples = tuple(
        Sample(one.nbytes, one.seconds, _only(table.chosen.get(one.nbytes, set())) or around.forced)
        for one in table.samples
    )
    return CollectiveLog(
        path=path,
        collective=collective,
        ranks=ranks,
        hosts=hosts if len(hosts) == ranks else (),
        host_count=len(set(hosts)),
        samples=samples,
        forced=around.forced,
        carrier=around.carrier,
        device=table.device,
        version=table.version,
        remarks=tuple(remarks),
    )


def _only(names: set[str]) -> str:
    return next(iter(names)) if len(names) == 1 else ""


def _collective(path: str, table: _Table, told: str) -> str:
    """Return which collective was tested: as the log says, as the user does, or as rates show.

    Raises:
        ArtifactError: a test that says nothing here, or none of these tells.
    """
    found = table.collective or told
    if not found:
        named = re.findall(rf"(?<![a-z_])({'|'.join(COLLECTIVES)})(?![a-z])", path.lower())
        found = named[-1] if len(set(named)) == 1 else ""
    if not found and table.operations == {"sum"} and table.roots <= {"-1"}:
        # Beside a sum without a root, only the all-reduce moves more than the buffer.
        algbw, busbw = max(table.factors, default=(0.0, 0.0))
        found = "all_reduce" if busbw > 1.2 * algbw > 0 else ""
    if found in COLLECTIVES:
        return found
    if found:
        reason = f"a test of {found}, of which nothing is known here; known: "
        raise ArtifactError(path, reason + ", ".join(COLLECTIVES))
    raise ArtifactError(
        path,
        "which collective was tested is not in the log (a line with all_reduce_perf, say); give "
        f"--collective, one of {', '.join(COLLECTIVES)}",
    )


def _ranks_by_rate(table: _Table, collective: str) -> int:
    """Return the ranks that the rates beside each other show; 0 where several numbers fit.

    The bus bandwidth is the rate times a factor of the number of ranks; both have two decimals.
    """
    factor = BUS_FACTORS.get(collective)
    if factor is None or not table.factors:
        return 0
    fitting = set(range(2, _MOST_BY_RATE + 1))
    for algbw, busbw in table.factors:
        if algbw > 0 and math.isfinite(busbw):
            half = 0.005 if algbw < 100 else 0.05
            fitting = {
                p for p in fitting if abs(factor(p) * algbw - busbw) <= half * (factor(p) + 1)
            }
    return fitting.pop() if len(fitting) == 1 else 0


_MOST_BY_RATE = 64
"""Beyond it the factors of neighbouring numbers of ranks are closer than decimals tell."""

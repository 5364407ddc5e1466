"""Recorded ranks: what is written of a training of plain torch, one file of each rank.

[Note: lines] A file is one JSON object at any time, and is appended to: its ``blocks`` stand on a
line each, and a block takes the place of the brackets behind the one before. Each has a number and
a checksum. A line that is damaged, or whose end is missing, costs that block and not the others.
Each block repeats whose file it is, so that damage to the first line costs nothing.
Files of version 1 have no blocks, and hold the dump of the flight recorder as torch writes it.
Blocks of version 2 do not say what the wall clock was ahead of the monotonic one.

[Note: clocks that are set] torch notes collectives by the wall clock. Where that is set, what came
before and behind is on two clocks. Each block says how far it is ahead of the monotonic clock, so
blocks between which it was set are told from a pause, and the longest row of the others is kept.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from syncopate.artifacts.artifact import Artifact, Record

Launched = tuple[int, int, int, int, int, int]
"""A collective as a block has it; see :class:`Block`."""

_OPEN, CLOSE = b',"blocks":[', b"\n]}\n"
_NEVER = 1 << 62
_MOST_NAMED = 8
_SET_NS = 20_000_000
"""A clock that is slewed, by half a thousandth, is not set: a block is of two seconds."""

_BLOCK = re.compile(rb',?\{"number":(\d+),"crc32":(\d+),"content":(.*)\}')
_FLIGHT_VERSION = "2.0"


class Step(Record, frozen=True, kw_only=True):
    """One step of an optimizer.

    Attributes:
        optimizer: which, in the order of their first steps.
        name: its class, such as ``"SGD"``.
        number: how many steps it had made before.
        start_ns: since 1970, on the clock of the host.
        end_ns: likewise.
    """

    optimizer: int
    name: str
    number: int
    start_ns: int
    end_ns: int


class RecordedRank(Artifact, frozen=True, kw_only=True):
    """The recording of one rank.

    Attributes:
        rank: which.
        world_size: number of ranks.
        host: the name of its host.
        torch: the version of torch.
        steps: of all optimizers, in order; the last ones only, where there were too many.
        forwards: ``(begin, end)`` of each, likewise; empty: not known.
        backwards: when each came to the first output of its forward, likewise.
        began_ns: when the recording began.
        written_ns: when this was written; 0: not known.
        flight_recorder: what torch's flight recorder held, as torch writes it.
    """

    KIND: ClassVar[str] = "recorded rank"
    SCHEMA_VERSION: ClassVar[int] = 3
    OLDEST_VERSION: ClassVar[int | None] = 1

    rank: int
    world_size: int
    host: str
    torch: str
    steps: tuple[Step, ...] = ()
    forwards: tuple[tuple[int, int], ...] = ()
    backwards: tuple[int, ...] = ()
    began_ns: int = 0
    written_ns: int = 0
    flight_recorder: dict[str, Any] = {}

    @classmethod
    def from_json(cls, data: bytes | str, source: object = "<memory>") -> RecordedRank:
        """Decode strictly, but for blocks that are damaged: they are left out.

        Args:
            data: the JSON text.
            source: what to call the text in errors, usually its path.

        Raises:
            ArtifactError: not valid JSON, another kind, another version, or a field at fault.
        """
        return cls.whole(data, source)[0]

    @classmethod
    def whole(
        cls, data: bytes | str, source: object = "<memory>"
    ) -> tuple[RecordedRank, tuple[str, ...]]:
        """Decode likewise; return also what is damaged and left out, a sentence each.

        Raises:
            ArtifactError: as :meth:`from_json`.
        """
        text = data.encode() if isinstance(data, str) else data
        blocks, lost = _blocks(text)
        first = text.partition(b"\n")[0].rstrip()
        if blocks:
            header = msgspec.json.encode(blocks[0].about)
        elif first.endswith(_OPEN):
            header = first.removesuffix(_OPEN) + b"}"
        else:
            return super().from_json(text, source), ()
        about = super().from_json(header, source)
        blocks, set_by = _on_one_clock(blocks)
        recorded, partial = _joined(about, blocks)
        said = (f"damaged: {lost}" if lost else "", set_by, partial)
        return recorded, tuple(f"{source}: {one}" for one in said if one)


class Call(Record, frozen=True, kw_only=True):
    """The common fields of equal collectives.

    Attributes:
        name: torch's, such as ``"gloo:all_reduce"``.
        group: name and description of the process group.
        p2p: whether it is a message of two ranks.
        sizes: of the inputs.
        dtypes: of the inputs.
    """

    name: str
    group: tuple[str, str]
    p2p: bool
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


class Block(Record, frozen=True, kw_only=True):
    """A rank's events from one writing to the next.

    Attributes:
        written_ns: when it was written.
        ahead_ns: how far the wall clock was ahead of the monotonic one then; 0: not known.
        about: whose it is, as the first line of the file says.
        steps: of optimizers, in order.
        forwards: ``(begin, end)`` of each.
        backwards: when each began.
        calls: the kinds of collectives among ``launches``.
        launches: of each collective: its number in the flight recorder, its number in its group,
            its place in ``calls``, when it was launched, when it was found done and how long it ran
            in nanoseconds; 0: not known. One that was found done later than it was written comes a
            second time.
        groups: name of a process group -> its ranks.
    """

    written_ns: int
    ahead_ns: int = 0
    about: dict[str, Any] = {}
    steps: tuple[Step, ...] = ()
    forwards: tuple[tuple[int, int], ...] = ()
    backwards: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    launches: tuple[Launched, ...] = ()
    groups: dict[str, str] = {}


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(b"%d" % number))


def _blocks(text: bytes) -> tuple[list[Block], str]:
    """Return the blocks that are whole, and what is lost, in words; empty: nothing."""
    found: list[Block] = []
    expected = lost = 0
    cut = False
    for line in text.split(b"\n"):
        if not line or line.startswith(b"]}"):
            continue
        block = block_in(line)
        cut = block is None
        if block is None:
            continue
        number, content = block
        lost += max(number - expected, 0)
        expected = number + 1
        found.append(content)
    said = []
    if lost:
        said.append(f"{lost} block{'s are' if lost > 1 else ' is'} left out")
    if cut:
        said.append("the last block is not whole, and is left out")
    return found, "; ".join(said)


def block_in(line: bytes) -> tuple[int, Block] | None:
    """Return number and content of a line; None: it is damaged."""
    matched = _BLOCK.fullmatch(line.rstrip())
    if matched is None or int(matched[2]) != _checksum(int(matched[1]), matched[3]):
        return None
    try:
        return int(matched[1]), msgspec.json.decode(matched[3], type=Block)
    except (ValueError, RecursionError):
        return None


def _on_one_clock(blocks: list[Block]) -> tuple[list[Block], str]:
    """Return the most blocks between which no clock was set, and what is left out, in words.

    [Note: clocks that are set]
    """
    rows: list[list[Block]] = [[]]
    most_ns = 0
    for block in blocks:
        before = rows[-1][-1] if rows[-1] else None
        by_ns = set_by_ns(before, block) if before is not None else 0
        if by_ns:
            most_ns = max(most_ns, by_ns, key=abs)
            # A part of it may be by the clock as it was before; that is told by the next alone.
            rows.append([])
        rows[-1].append(block)
    if len(rows) == 1:
        return blocks, ""
    kept = max((row[1:] if at else row for at, row in enumerate(rows)), key=len)
    said = (
        f"the clock of its host was set, by up to {most_ns * 1e-9:.3f} s: {len(kept)} of "
        f"{len(blocks)} blocks are on one clock, and the others are left out"
    )
    return kept, said


def set_by_ns(before: Block, block: Block) -> int:
    """Return by how much the wall clock was set from one block to the next; 0: not by much."""
    if before.ahead_ns and block.ahead_ns:
        by_ns = block.ahead_ns - before.ahead_ns
    else:
        by_ns = min(block.written_ns - before.written_ns, 0)  # it cannot go back by itself
    return by_ns if abs(by_ns) > _SET_NS else 0


def _joined(about: RecordedRank, blocks: Sequence[Block]) -> tuple[RecordedRank, str]:
    """Return a rank with what its blocks say, without iterations that lost a part; say which."""
    launches = {launch[0]: (launch, block.calls) for block in blocks for launch in block.launches}
    ordered = [launches[record] for record in sorted(launches)]
    steps = sorted((step for block in blocks for step in block.steps), key=lambda s: s.start_ns)
    forwards = [one for block in blocks for one in block.forwards]
    backwards = [one for block in blocks for one in block.backwards]
    marks = [(step.start_ns, step.number) for step in steps if step.optimizer == 0]
    gaps, said = _gaps([launch for launch, _ in ordered], marks)
    for begin_ns, end_ns in gaps:
        ordered = [one for one in ordered if not begin_ns <= one[0][3] < end_ns]
        steps = [step for step in steps if not begin_ns < step.start_ns < end_ns]
        forwards = [one for one in forwards if not begin_ns <= one[0] < end_ns]
        backwards = [one for one in backwards if not begin_ns <= one < end_ns]
    # What is missing is left out by now; a number above 0 would be taken for more that is.
    entries = [
        _entry(number, launch, calls[launch[2]]) for number, (launch, calls) in enumerate(ordered)
    ]
    groups = {name: ranks for block in blocks for name, ranks in block.groups.items()}
    config = {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in groups.items()}
    recorded = msgspec.structs.replace(
        about,
        steps=tuple(steps),
        forwards=tuple(forwards),
        backwards=tuple(backwards),
        written_ns=max((block.written_ns for block in blocks), default=about.began_ns),
        flight_recorder={"version": _FLIGHT_VERSION, "pg_config": config, "entries": entries},
    )
    return recorded, said


def _gaps(
    launches: Sequence[Launched], marks: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], str]:
    """Return the times of iterations that lack collectives, and which these are, in words.

    Args:
        launches: by their numbers in the flight recorder.
        marks: when an iteration ended and its number, in order.
    """
    found: list[tuple[int, int]] = []
    named: list[str] = []
    moments = [moment for moment, _ in marks]
    before = -1, 0
    for record, _, _, start_ns, *_ in launches:
        if record > before[0] + 1:
            begin, end = bisect_right(moments, before[1]), bisect_right(moments, start_ns)
            first = marks[begin - 1][1] + 1 if begin else 0
            last = marks[end][1] if end < len(marks) else marks[-1][1] + 1 if marks else first
            found.append(
                (moments[begin - 1] if begin else 0, moments[end] if end < len(marks) else _NEVER)
            )
            named.append(f"{first}" if first == last else f"{first} to {last}")
        before = record, start_ns
    which = ", ".join(named[:_MOST_NAMED]) + (" and others" if len(named) > _MOST_NAMED else "")
    missing = f"left out, because collectives of them are missing: iterations {which}"
    return found, missing if named else ""


def _entry(number: int, launch: Launched, call: Call) -> dict[str, Any]:
    """Return a collective as torch's flight recorder writes it, in the fields that are read."""
    _, collective, _, start_ns, done_ns, took_ns = launch
    return {
        "record_id": number,
        "profiling_name": call.name,
        "process_group": call.group,
        "collective_seq_id": collective,
        "is_p2p": call.p2p,
        "input_sizes": call.sizes,
        "input_dtypes": call.dtypes,
        "time_created_ns": start_ns,
        "time_discovered_completed_ns": done_ns,
        "duration_ms": took_ns * 1e-6 if took_ns else None,
    }


def block_of(
    groups: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], first: int, taken: Block
) -> Block:
    """Return ``taken`` with collectives of torch's flight recorder.

    Args:
        groups: what the recorder says of process groups.
        entries: what it says of each collective.
        first: the number that counts as 0.
        taken: the rest of the block.
    """
    calls: dict[Call, int] = {}
    launches: list[Launched] = []
    for entry in entries:
        call = Call(
            name=entry["profiling_name"],
            group=tuple(entry["process_group"]),
            p2p=entry["is_p2p"],
            sizes=tuple(map(tuple, entry["input_sizes"])),
            dtypes=tuple(entry["input_dtypes"]),
        )
        launches.append(
            (
                entry["record_id"] - first,
                entry["collective_seq_id"],
                calls.setdefault(call, len(calls)),
                entry["time_created_ns"],
                entry["time_discovered_completed_ns"] or 0,
                round((entry.get("duration_ms") or 0.0) * 1e6),
            )
        )
    return msgspec.structs.replace(
        taken,
        calls=tuple(calls),
        launches=tuple(launches),
        groups={name: str(group.get("ranks", "")) for name, group in groups.items()},
    )


def described(about: RecordedRank) -> dict[str, Any]:
    """Return what a file says of its rank, and a block repeats."""
    return {
        "kind": about.KIND,
        "schema_version": about.SCHEMA_VERSION,
        "rank": about.rank,
        "world_size": about.world_size,
        "host": about.host,
        "torch": about.torch,
        "began_ns": about.began_ns,
    }


def first_line(about: dict[str, Any]) -> bytes:
    """Return how a file begins, up to its first block."""
    return msgspec.json.encode(about)[:-1] + _OPEN


def line_of(number: int, block: Block, about: dict[str, Any]) -> bytes:
    """Return a block as it follows the one before it."""
    content = msgspec.json.encode(msgspec.structs.replace(block, about=about))
    checksum = _checksum(number, content)
    line = b'{"number":%d,"crc32":%d,"content":%s}' % (number, checksum, content)
    return (b"\n," if number else b"\n") + line

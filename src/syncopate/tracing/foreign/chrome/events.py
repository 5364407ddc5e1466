"""Events: what a file in Chrome's trace format holds, read in pieces.

The format is an object with ``traceEvents``, or the array of events alone, which may lack its last
bracket. Complete events (``X``) and pairs of ``B`` and ``E`` on one thread are stretches of time.
Times are microseconds, as numbers or as texts.

[Note: events in pieces] A trace has a million events, and most of them say nothing of
communication. Pieces of the file are decoded one after the other, and only what is asked for is
kept. A piece ends where an event ends and another begins: ``},{``. So may a list within an event;
such a piece cannot be decoded, and is read on with what follows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from gzip import BadGzipFile
from typing import IO, Any, NamedTuple

import msgspec

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.errors import ArtifactError

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
"""How the events of an object begin."""

_OF_THE_HOST = ("cpu_op", "user_annotation")
"""Categories of events whose ``pid`` is that of a process; a device's is its number."""

ON_DEVICE = "gpu_user_annotation"
"""The category of what the host said of itself, repeated among what the device did."""

_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_PIECE_BYTES = 1 << 22
_STEP_BYTES = 1 << 14
_LOOK_BYTES = 1 << 17
"""How far from its end the last event of a piece begins."""

_MOST_TRIES = 8
"""Pieces that are joined before what cannot be decoded counts as damaged."""


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are read here."""

    correlation: Any = None
    stream: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_kind: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    iteration: Any = None
    nbytes: Any = msgspec.field(default=None, name="bytes")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="Input type")


NOTHING = Args()


class Event(NamedTuple):
    """One stretch of time: in nanoseconds, on the clock of the file."""

    start_ns: int
    end_ns: int
    name: str
    cat: str
    args: Args


class _Read(msgspec.Struct, gc=False):
    """An event as it stands in the file."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = None
    dur: Any = None
    args: Args | str | int | float | bool | list[Any] | None = None


class Chrome(NamedTuple):
    """A file.

    Attributes:
        about: what stands beside the events; empty for an array.
        events: the stretches that were asked for, by start, the longest of several first.
        odd: what is odd about other events, and how many they are.
        total: how many events there are.
        process: what the host's events are of, as the file names it; empty: not known.
    """

    about: dict[str, Any]
    events: list[Event]
    odd: dict[str, int]
    total: int
    process: str


_EVENTS = msgspec.json.Decoder(list[_Read])


def read_events(
    file: IO[bytes], path: str | os.PathLike[str], wanted: Callable[[str, str], bool]
) -> Chrome:
    """Return what a file holds, from where it stands.

    Args:
        file: its bytes, which begin with an array or an object.
        path: what to call it in errors.
        wanted: given category (in small letters) and name of a stretch, says whether to keep it.

    Raises:
        ArtifactError: it is damaged or ends too early, with the place.
        OSError: it cannot be read.
    """
    text = file.read(_STEP_BYTES)
    array = text.lstrip()[:1] == b"["
    opens = re.compile(rb"\s*\[").match(text) if array else EVENTS.search(text)
    while opens is None and not array and (more := file.read(_STEP_BYTES)):
        text += more
        opens = EVENTS.search(text)
    if opens is None:
        reason = "no events of a Chrome trace: neither an array nor an object with traceEvents"
        raise ArtifactError(path, reason)
    head = b"{}" if array else text[: opens.end()]
    pieces = _Pieces(path, wanted, place=opens.end())
    rest = pieces.read(text[opens.end() :], file)
    about = {} if array else pieces.about(head, rest)
    base_ns = number_of(about.get("baseTimeNanoseconds"), 0)
    if base_ns:
        pieces.events = [
            one._replace(start_ns=one.start_ns + base_ns, end_ns=one.end_ns + base_ns)
            for one in pieces.events
        ]
    pieces.events.sort(key=lambda event: (event.start_ns, -event.end_ns))
    return Chrome(about, pieces.events, pieces.odd(), pieces.count, pieces.process)


class _Pieces:
    """Reads events one piece after the other.

    Args:
        path: of the file.
        wanted: as of :func:`read_events`.
        place: how many bytes stand before the first event.
    """

    def __init__(
        self, path: str | os.PathLike[str], wanted: Callable[[str, str], bool], place: int
    ) -> None:
        self.events: list[Event] = []
        self._path, self._wanted, self._place = path, wanted, place
        self.count = 0
        self.process = ""
        self._negative = self._unended = 0
        self._open: dict[tuple[Any, Any], list[tuple[int, str, str, Args]]] = {}
        self._broken = ""

    def read(self, text: bytes, file: IO[bytes]) -> bytes:
        """Read all events; return what stands behind them.

        Raises:
            ArtifactError: they are damaged, or end too early.
        """
        tries = 0
        while more := self._more(file, _PIECE_BYTES << min(tries, 4)):
            cut = _last_cut(text)
            if cut is not None and self._decoded(b"[" + text[: cut.start() + 1] + b"]"):
                self._place += cut.end() - 1
                text, tries = text[cut.end() - 1 :] + more, 0
                continue
            # [Note: events in pieces]; or the events are over, and what is behind them is long.
            text += more
            tries += 1
            if tries > _MOST_TRIES:
                break
        else:
            more = b""
        return self._last(text + more)

    def _more(self, file: IO[bytes], nbytes: int) -> bytes:
        """Return the next bytes; of a compressed file that is cut off all that are there."""
        parts: list[bytes] = []
        try:
            while nbytes > 0 and (part := file.read(min(nbytes, _STEP_BYTES))):
                parts.append(part)
                nbytes -= len(part)
        except BadGzipFile as error:
            self._broken = f"the compressed file is cut off or damaged ({error})"
        return b"".join(parts)

    def _last(self, text: bytes) -> bytes:
        """Read the last events; return what stands behind them, from their bracket on."""
        if self._broken:
            self._refuse(text)
        if self._decoded(b"[" + text.rstrip().rstrip(b"]").rstrip().rstrip(b",") + b"]"):
            return b"]" if text.rstrip().endswith(b"]") else b""
        end = _end_of_events(text)
        if end is not None and self._decoded(b"[" + text[:end] + b"]"):
            return text[end:]
        self._refuse(text)
        return b""

    def about(self, head: bytes, rest: bytes) -> dict[str, Any]:
        """Return what stands before and behind the events.

        Raises:
            ArtifactError: that is damaged, or ends too early.
        """
        try:
            found: dict[str, Any] = msgspec.json.decode(_utf8(head + rest))
        except (ValueError, RecursionError) as error:
            what = "ends too early" if not rest.strip() else f"is damaged: {error}"
            reason = f"it {what}, behind {self.count} whole events, at or after byte {self._place}"
            raise ArtifactError(self._path, reason, "$.traceEvents") from None
        return found

    def odd(self) -> dict[str, int]:
        """Return the oddities, and of how many events."""
        left = sum(map(len, self._open.values())) + self._unended
        said = {"end before they begin": self._negative, "begin or end alone": left}
        return {what: count for what, count in said.items() if count}

    def _decoded(self, text: bytes) -> bool:
        """Take up the events of an array; return whether that was one."""
        try:
            found = _EVENTS.decode(_utf8(text))
        except msgspec.ValidationError as error:
            at = re.search(r"\$\[(\d+)\](.*?)`?$", str(error))
            where = f"$.traceEvents[{self.count + int(at[1])}]{at[2]}" if at else "$.traceEvents"
            reason = f"not an event of a Chrome trace: {str(error).partition(' - at ')[0]}"
            raise ArtifactError(self._path, reason, where) from None
        except (ValueError, RecursionError):
            return False
        for one in found:
            self._take(one)
            self.count += 1
        return True

    def _take(self, one: _Read) -> None:
        if one.ph not in ("X", "B", "E"):
            return
        name, cat = str(one.name), str(one.cat).lower()
        if not self.process and cat in _OF_THE_HOST:
            self.process = str(one.pid)
        if one.ph == "X":
            if not self._wanted(cat, name):
                if one.ts is None:
                    self._ns(one.ts, "ts")
                return
            start_ns, lasts_ns = self._ns(one.ts, "ts"), self._ns(one.dur or 0, "dur")
            self._keep(start_ns, start_ns + lasts_ns, name, cat, _args(one))
            return
        stack = self._open.setdefault((_key(one.pid), _key(one.tid)), [])
        if one.ph == "B":
            stack.append((self._ns(one.ts, "ts"), name, cat, _args(one)))
        elif stack:
            start_ns, name, cat, args = stack.pop()
            if self._wanted(cat, name):
                self._keep(start_ns, self._ns(one.ts, "ts"), name, cat, args)
        else:
            self._unended += 1

    def _keep(self, start_ns: int, end_ns: int, name: str, cat: str, args: Args) -> None:
        self._negative += end_ns < start_ns
        self.events.append(Event(start_ns, max(start_ns, end_ns), name, cat, args))

    def _ns(self, value: Any, field: str) -> int:
        """Return microseconds, as a number or a text, in whole nanoseconds."""
        try:
            if isinstance(value, str):
                value = float(value) if "." in value or "e" in value.lower() else int(value)
            # As one float, a time since 1970 would lose a quarter of a microsecond.
            whole = int(value)
            rest: int = round((value - whole) * 1000)
            return whole * 1000 + rest
        except (TypeError, ValueError, OverflowError):
            reason = f"not an event of a Chrome trace: {field} is {value!r}, and no time"
            raise ArtifactError(self._path, reason, f"$.traceEvents[{self.count}]") from None

    def _refuse(self, text: bytes) -> None:
        """Say where the events are damaged."""
        whole, at, error = 0, 0, self._broken or "it ends too early"
        for cut in _BETWEEN.finditer(text):
            try:
                msgspec.json.decode(_utf8(text[at : cut.start() + 1]))
            except (ValueError, RecursionError) as damage:
                if str(damage).endswith("truncated"):
                    continue  # [Note: events in pieces]
                said = TOO_DEEP if isinstance(damage, RecursionError) else str(damage)
                error = f"it is damaged: {said}"
                break
            whole, at = whole + 1, cut.end() - 1
        count = self.count + whole
        reason = f"{error}, behind {count} whole events, at or after byte {self._place + at}"
        raise ArtifactError(self._path, reason, f"$.traceEvents[{count}]")


def _last_cut(text: bytes) -> re.Match[bytes] | None:
    """Return the last place where an event may end and another begin."""
    return max(
        _BETWEEN.finditer(text, max(len(text) - _LOOK_BYTES, 0)),
        key=lambda found: found.start(),
        default=None,
    )


def _args(one: _Read) -> Args:
    return one.args if isinstance(one.args, Args) else NOTHING


def _key(value: Any) -> Any:
    return value if isinstance(value, int | str | float) else str(value)


def _utf8(text: bytes) -> bytes:
    """Return a text with what is no UTF-8 in it replaced: names may have been cut in a letter."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def _end_of_events(text: bytes) -> int | None:
    """Return where the bracket is that ends the events; None: there is none.

    It is the first one outside of texts that no other opened.
    """
    depth = 0
    for found in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', text, re.DOTALL):
        one = found[0]
        if one in b"[{":
            depth += 1
        elif one in b"]}":
            if depth == 0:
                return found.start()
            depth -= 1
    return None


def number_of(value: Any, otherwise: int) -> int:
    """Return a number that a file may have as a text, or not at all."""
    try:
        return otherwise if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise

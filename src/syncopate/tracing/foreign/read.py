"""Reading: files of ranks, known by their content, as one timeline."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.artifacts.faults import not_json
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.reading import read_whole, readable
from syncopate.tracing.foreign import flight, profiler
from syncopate.tracing.foreign.assemble import timeline_of
from syncopate.tracing.foreign.chrome.events import EVENTS
from syncopate.tracing.foreign.chrome.ranks import of_ranks
from syncopate.tracing.foreign.ranktrace import RankTrace
from syncopate.tracing.foreign.recording.recorded import RecordedRank
from syncopate.tracing.foreign.tables.columns import Mapped
from syncopate.tracing.foreign.tables.read import has_name_of_table, is_table, read_tables

READABLE = (
    "a timeline, files of `syncopate record`, dumps of torch's flight recorder, traces of "
    "torch.profiler (Chrome's format), or a table"
)

RECORDED = "rank-*.json"
"""The files of recorded ranks in the directory of a run."""

_PICKLE = b"\x80"
_TIMELINE, _BEGIN_BYTES = re.compile(rb'\s*\{\s*"kind"\s*:\s*"timeline"'), 256
"""How a timeline begins that is read in pieces, as its files may be long."""

_CAPTURED = re.compile(rb'\{"kind":"(trace|node_trace)"')
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|\]|$)")
_RECORDED = re.compile(rb'"kind"\s*:\s*"recorded rank"')
_KIND, _LOOK_BYTES = re.compile(rb'\s*\{\s*"kind"\s*:'), 1 << 14


def is_document(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is JSON, compressed or not, or a pickle, by how it begins.

    Raises:
        ArtifactError: it cannot be read.
    """
    with readable(path) as file:
        begin = file.read(64)
        packed = isinstance(file, GzipFile)
    if packed:
        return not has_name_of_table(path)
    if not begin and Path(path).suffix == ".json":
        return True
    return begin.startswith(_PICKLE) or begin.lstrip()[:1] in (b"{", b"[")


def read_timeline(paths: Sequence[str | os.PathLike[str]], table: Mapped | None = None) -> Timeline:
    """Return the timeline that files hold: one whole, or one file of each rank.

    Args:
        paths: the files.
        table: what tables call their columns and kinds; given, all files are tables.

    Raises:
        ArtifactError: a file that cannot be read, or is none of :data:`READABLE`.
        InvalidValueError: files of several kinds, several timelines, or ranks that do not fit.
    """
    if not paths:
        raise InvalidValueError("FILE", [], "at least one")
    name = os.path.basename(os.path.realpath(Path(paths[0]).parent)) or "recorded"
    tables = [path for path in paths if table is not None or _is_table(path)]
    if tables:
        other = next((path for path in paths if path not in tables), None)
        if other is not None:
            raise InvalidValueError("FILE", str(other), "a table too, or left out")
        return timeline_of(read_tables(tables, table), name=name)
    found = [_read(path) for path in paths]
    whole = [one for one in found if isinstance(one, Timeline)]
    if whole and len(found) > 1:
        at = next(path for path, one in zip(paths, found, strict=True) if isinstance(one, Timeline))
        raise InvalidValueError(
            "FILE", str(at), "the only file, or left out: a timeline has all ranks"
        )
    if whole:
        return whole[0]
    ranks = [one for one in found if isinstance(one, RankTrace)]
    tools = sorted({rank.tool for rank in ranks})
    if len(tools) > 1:
        raise InvalidValueError("the files", tools, "of one tool")
    if tools == [profiler.TOOL]:
        ranks = of_ranks(list(zip(paths, ranks, strict=True)))
    return timeline_of(ranks, name=name)


def _is_table(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is a table, by its name or its first line; JSON and pickles are none."""
    return not is_document(path) and (has_name_of_table(path) or is_table(path))


def recorded_paths(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the files of recorded ranks in the directory of a run."""
    return sorted(Path(directory).glob(RECORDED))


def profile_paths(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the traces of torch.profiler in a directory, known by their content.

    Raises:
        ArtifactError: a file cannot be read.
    """
    paths = sorted(path for path in Path(directory).glob("*.json*") if os.path.isfile(path))
    return [path for path in paths if _is_profile(path)]


def _is_profile(path: Path) -> bool:
    with readable(path) as file:
        begins = file.read(_BEGIN_BYTES)
        file.seek(0)
        return _is_trace(file, begins)


def read_directory(directory: str | os.PathLike[str], last: int) -> Timeline:
    """Return the timeline of a training of plain torch; of several the one that was written last.

    Files belong to one training where the times from their begin to when they were written overlap.

    Args:
        directory: where the ranks wrote.
        last: how many iterations to show, the last ones.

    Raises:
        ArtifactError: a file that is no recorded rank.
        InvalidValueError: less than one iteration is asked for, or nothing was recorded.
    """
    if last < 1:
        raise InvalidValueError("last", last, "at least 1")
    paths = recorded_paths(directory)
    found, notes = _of_last(paths)
    if paths and not found:
        rule = "one of a recorded rank: nothing was written yet"
        raise InvalidValueError(f"the content of {paths[0]}", "", rule)
    ranks = [flight.read_recorded(one.rank, one.path, one.damage) for one in found]
    name = os.path.basename(os.path.realpath(directory))
    return timeline_of(ranks, name=name, last=last, notes=notes)


class _Recorded(NamedTuple):
    """A file of a recorded rank: its path, the rank, and what is damaged."""

    path: Path
    rank: RecordedRank
    damage: tuple[str, ...]


def _of_last(paths: Sequence[Path]) -> tuple[list[_Recorded], list[str]]:
    """Return the ranks of the training that was written last, and what is to be said of it.

    Raises:
        ArtifactError: no file can be read.
    """
    read: list[_Recorded] = []
    errors: list[ArtifactError] = []
    empty: list[Path] = []
    for path in paths:
        try:
            if data := read_whole(path):
                read.append(_Recorded(path, *RecordedRank.whole(data, path)))
            else:
                empty.append(path)
        except OSError as error:
            errors.append(ArtifactError(path, f"cannot be read: {error.strerror or error}"))
        except ArtifactError as error:
            errors.append(error)
    if errors and not read:
        raise errors[0]
    trainings: list[list[_Recorded]] = []
    until_ns = -1
    for one in sorted(read, key=lambda one: one.rank.began_ns):
        if one.rank.began_ns > until_ns:
            trainings.append([])
        trainings[-1].append(one)
        until_ns = max(until_ns, one.rank.written_ns)
    notes = [f"left out: {error}" for error in errors]
    if len(trainings) > 1:
        began = datetime.fromtimestamp(trainings[-1][0].rank.began_ns * 1e-9, UTC)
        notes.append(
            f"there are files of {len(trainings)} runs; this is the one that began last, "
            f"{began:%Y-%m-%d %H:%M:%S} UTC"
        )
    notes += [f"left out: {path}: it is empty" for path in empty]
    return (trainings or [[]])[-1], notes


def _read(path: str | os.PathLike[str]) -> Timeline | RankTrace:
    with readable(path) as file:
        begins = file.read(_BEGIN_BYTES)
        file.seek(0)
        if not begins.strip():
            raise ArtifactError(path, f"it is empty; expected {READABLE}")
        if _TIMELINE.match(begins):
            return Timeline.from_file(file, path)
        if _is_trace(file, begins):
            return profiler.read_trace(file, path)
        data = file.read()
    if _CAPTURED.match(begins):
        rule = "a part of a run; give the directory in which the files of all its ranks lie"
        raise ArtifactError(path, rule)
    if _kind(data) == Timeline.KIND:
        return Timeline.from_json(data, path)
    if _RECORDED.search(data, 0, _LOOK_BYTES):  # which may be damaged
        recorded, damage = RecordedRank.whole(data, path)
        return flight.read_recorded(recorded, path, damage)
    document = _decoded(data, path)
    if isinstance(document, dict) and flight.is_dump(document):
        return flight.read_dump(document, path)
    raise ArtifactError(path, f"{_described(document)}; expected {READABLE}")


def _is_trace(file: IO[bytes], begins: bytes) -> bool:
    """Say whether a file is in Chrome's trace format, and go back to its begin."""
    if _ARRAY.match(begins):
        return True
    if begins.lstrip()[:1] != b"{" or _KIND.match(begins):
        return False
    found, text = False, b""
    while not found and (more := file.read(_LOOK_BYTES)):
        text = text[-_BEGIN_BYTES:] + more
        found = EVENTS.search(text) is not None
    file.seek(0)
    return found


class _Kind(msgspec.Struct):
    kind: str = ""


def _kind(data: bytes) -> str:
    """Return what kind of artefact a document says it is, and read no more of it."""
    try:
        return msgspec.json.decode(data, type=_Kind).kind
    except (ValueError, RecursionError):
        return ""


def _decoded(data: bytes, path: str | os.PathLike[str]) -> Any:
    if data.startswith(_PICKLE):
        return flight.unpickled(data, path)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason, field = not_json(data, str(error))
        reason = reason.replace("not valid JSON", "neither a pickle nor valid JSON")
        raise ArtifactError(path, f"{reason}; expected {READABLE}", field) from None
    except RecursionError:
        raise ArtifactError(path, f"{TOO_DEEP}; expected {READABLE}") from None


def _described(document: Any) -> str:
    if not isinstance(document, dict):
        return f"found a {type(document).__name__} at the top"
    if "kind" in document:
        return f"found a {document['kind']!r} artefact"
    return f"found an object of {', '.join(sorted(map(str, document))[:5]) or 'nothing'}"

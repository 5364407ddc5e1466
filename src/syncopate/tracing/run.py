"""Run: the files that the ranks of one training wrote, as one timeline.

What is whole is shown; what is missing or damaged is said.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.timeline import Span, Spans, Timeline
from syncopate.tracing.merge import merge, offset_bounds
from syncopate.tracing.recorder import spans_of
from syncopate.tracing.trace_file import Written, read_trace

PATTERN = "rank-*.trace"
"""The files of ranks in the directory of a run."""

_SYMMETRIC = {"allreduce": ("push",), "sharded": ("push", "pull")}
"""Exchange -> the lanes whose collectives end nowhere before all ranks have come to them."""


class Run(NamedTuple):
    """What a directory says of a training.

    Attributes:
        timeline: every rank that wrote a file, on rank 0's clock.
        remarks: what is missing, damaged or uncertain, a sentence each.
    """

    timeline: Timeline
    remarks: tuple[str, ...]


def read_run(directory: str | os.PathLike[str], last: int = 200) -> Run:
    """Read the directory of a run; of several runs the one that began last.

    Args:
        directory: where the ranks wrote.
        last: how many iterations to show, the last ones.

    Raises:
        InvalidValueError: less than one iteration is asked for.
        ArtifactError: no file of a rank is there, none can be read, or none holds an iteration.
    """
    if last < 1:
        raise InvalidValueError("last", last, "at least 1")
    directory = Path(directory)
    paths = sorted(directory.glob(PATTERN))
    if not paths:
        reason = "holds no file of a rank (rank-0.trace and so on); was anything captured here?"
        raise ArtifactError(directory, reason)
    remarks: list[str] = []
    files: list[Written] = []
    for path in paths:
        try:
            files.append(read_trace(path))
        except ArtifactError as error:
            remarks.append(str(error))
    if not files:
        raise ArtifactError(directory, f"none of its files can be read: {remarks[0]}")
    found = {one.header.rank: one for one in _of_last_run(files, remarks)}
    del files
    remarks += _shortcomings(found)
    if not any(len(one.records) for one in found.values()):
        reason = "no iteration was captured: a training ends one with the next forward"
        raise ArtifactError(directory, reason)
    first = max(int(one.records["iteration"].max(initial=0)) for one in found.values()) - last + 1
    if first > 0:
        remarks.append(f"the last {last} iterations are shown, from iteration {first} on")
    world_size = max(max(found) + 1, *(one.header.world_size for one in found.values()))
    spans: list[Sequence[Span]] = [()] * world_size
    for rank, one in found.items():
        spans[rank] = _spans(one, first)
        found[rank] = one._replace(records=one.records[:0].copy())  # they are not needed twice
    offsets_s = [0.0] * world_size
    for rank, offset_s, remark in _offsets(found, spans):
        offsets_s[rank] = offset_s
        remarks += [remark] if remark else []
    metadata = _metadata(found)
    name = f"{directory.name}: {metadata['model']}" if "model" in metadata else directory.name
    timeline = merge(spans, name=name, offsets_s=offsets_s, metadata=metadata)
    return Run(timeline, tuple(remarks))


def _of_last_run(files: Sequence[Written], remarks: list[str]) -> list[Written]:
    runs: dict[str, list[Written]] = defaultdict(list)
    for one in files:
        runs[one.header.run].append(one)
    last = max(runs.values(), key=lambda run: min(one.header.began_s for one in run))
    if len(runs) > 1:
        began = datetime.fromtimestamp(min(one.header.began_s for one in last), UTC)
        remarks.append(
            f"there are files of {len(runs)} runs; this is the one that began last, "
            f"{began:%Y-%m-%d %H:%M:%S} UTC"
        )
    return last


def _shortcomings(found: dict[int, Written]) -> Iterator[str]:
    world_size = next(iter(found.values())).header.world_size
    missing = [str(rank) for rank in range(world_size) if rank not in found]
    if missing:
        ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
        yield f"no file of {ranks}: {len(found)} of {world_size} ranks are shown"
    for one in found.values():
        if one.missing_bytes:
            yield (
                f"{one.path}: ends in the midst of a block; its last {one.missing_bytes} bytes are "
                "left out"
            )
        dropped = max((note.get("dropped", 0) for note in one.notes), default=0)
        if dropped:
            yield f"{one.path}: {dropped} events were dropped: there was no room for them"


def _spans(one: Written, first: int) -> Spans:
    texts = [text for note in one.notes for text in note.get("texts", ())]
    names = {note["number"]: note["model"] for note in one.notes if "plan" in note}
    models = {n: f"{name} {n}: " for n, name in names.items()} if len(names) > 1 else {}
    records = one.records[one.records["iteration"] >= first]
    return spans_of(records, texts, one.header.rank, models=models)


def _offsets(
    found: dict[int, Written], spans: Sequence[Sequence[Span]]
) -> Iterator[tuple[int, float, str]]:
    """Yield each rank's clock minus rank 0's, and what is to be said of it."""
    exchanges = {note["exchange"] for one in found.values() for note in one.notes if "plan" in note}
    lanes = _SYMMETRIC.get(exchanges.pop(), ()) if len(exchanges) == 1 else ()
    bounds = offset_bounds(spans, lanes)
    for rank, one in found.items():
        low_s, high_s = bounds[rank]
        bounded = math.isfinite(low_s) and math.isfinite(high_s) and low_s <= high_s
        middle_s, half_s = (low_s + high_s) / 2, (high_s - low_s) / 2
        offset_s, error_s = one.header.offset_s, one.header.offset_error_s
        if offset_s is None and bounded:
            yield (
                rank,
                middle_s,
                f"rank {rank}: its clock was not compared with rank 0's by messages; by what they "
                f"did together it differs by {middle_s:.6f} s, {half_s * 1e6:.0f} us at most off",
            )
        elif offset_s is None:
            yield rank, 0.0, f"rank {rank}: its clock was not compared with rank 0's"
        elif bounded and not low_s - error_s <= offset_s <= high_s + error_s:
            yield (
                rank,
                middle_s,
                f"rank {rank}: its clock has drifted since it was compared with rank 0's, from "
                f"{offset_s:.6f} s to {middle_s:.6f} s by what they did together",
            )
        else:
            yield rank, offset_s, ""


def _metadata(found: dict[int, Written]) -> dict[str, str]:
    """Return what the first rank says of its last plan, and of the clocks."""
    first = found[min(found)]
    plans = [note for note in first.notes if "plan" in note]
    said = {key: str(value) for key, value in plans[-1].items()} if plans else {}
    hosts = Counter(one.header.host for one in found.values())
    error_s = max(one.header.offset_error_s for one in found.values())
    return {key: value for key, value in said.items() if key not in ("number", "iteration")} | {
        "run": first.header.run,
        "hosts": str(len(hosts)),
        "clock_error_s": f"{error_s:.9f}",
    }

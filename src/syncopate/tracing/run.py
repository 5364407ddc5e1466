"""Run: the files that the ranks and nodes of one training wrote, as one timeline.

Where workers of a parameter server wrote files and no rank did, because the script trains without
``distribute``, the timeline is made of their messages.

What is whole is shown; what is missing or damaged is said.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.timeline import HOSTS, Span, Spans, Timeline, about_servers
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.tracing.jumps import jumps, longest_row
from syncopate.tracing.merge import ClockOffset, bounds_of_each, merge
from syncopate.tracing.pauses import placed
from syncopate.tracing.recorder import Records, spans_of
from syncopate.tracing.served.read import Served, node_files, served_of
from syncopate.tracing.served.workers import key_names, spans_of_workers
from syncopate.tracing.trace_file import Header, NodeFile, RankFile, read_traces, texts_of

PATTERN = "rank-*.trace"
"""The files of ranks in the directory of a run."""

_SYMMETRIC = {"allreduce": ("push",), "sharded": ("push", "pull")}
"""Exchange -> the lanes whose collectives end nowhere before all ranks have come to them."""


_NO_METADATA = ("number", "iteration", "tensors")
"""What notes of plans say that is not of the whole run."""


class Run(NamedTuple):
    """A training, as its directory records it.

    Attributes:
        timeline: every rank that wrote a file, on rank 0's clock.
        remarks: what is missing, damaged or uncertain, a sentence each.
        served: what the nodes of a parameter server did, all of it; None: there was none.
        first: the first iteration that is shown.
        origin_s: where the timeline begins by the clock of ``served``.
        ranks: worker, such as ``"w0"`` -> its rank in the timeline.
        carriers: key of a slice -> name of the spans that carry it.
    """

    timeline: Timeline
    remarks: tuple[str, ...]
    served: Served | None = None
    first: int = 0
    origin_s: float = 0.0
    ranks: Mapping[str, int] = {}
    carriers: Mapping[int, str] = {}


def read_run(
    directory: str | os.PathLike[str],
    last: int = 200,
    progress: Callable[[str, float], None] | None = None,
) -> Run:
    """Read the directory of a run; of several runs the one that began last.

    Args:
        directory: where the ranks wrote.
        last: how many iterations to show, the last ones.
        progress: told what is read, and which part of the ranks' files has been, in [0, 1].

    Raises:
        InvalidValueError: less than one iteration is asked for.
        ArtifactError: no file of a rank or node is there, none can be read, or none holds an
            iteration.
    """
    if last < 1:
        raise InvalidValueError("last", last, "at least 1")
    directory = Path(directory)
    remarks: list[str] = []
    files, nodes = _files(directory, remarks, progress)
    found = of_last_run(files, nodes, remarks)
    files.clear()  # or records would stay when there are spans of them
    return run_of(directory, *found, last, remarks)


def run_of(
    directory: Path,
    found: dict[int, RankFile],
    nodes: Sequence[NodeFile],
    last: int,
    remarks: list[str],
) -> Run:
    """Return what files of one run say.

    Args:
        directory: where they lie.
        found: rank -> its file; left without records.
        nodes: files of the nodes of a parameter server.
        last: how many iterations to show, the last ones.
        remarks: what is said already.

    Raises:
        ArtifactError: none of them holds an iteration.
    """
    remarks += _shortcomings(found) if found else ()
    served = served_of(nodes, remarks, *_told(found)) if nodes else None
    by_messages = served if not found else None
    spans, first = (
        spans_of_workers(by_messages, last) if by_messages else _of_ranks(found, last, remarks)
    )
    if served is None and not any(map(len, spans)):
        reason = "no iteration was captured: a training ends one with the next forward"
        raise ArtifactError(directory, reason)
    if first:
        shown = len({int(i) for mine in spans for i in np.unique(Spans.of(mine).iteration)})
        remarks.append(f"the last {shown} iterations are shown, from iteration {first} on")
    together = _together(found)
    spans = _on_one_clock(spans, together, remarks)
    offsets_s, errors_s = [0.0] * len(spans), [0.0]
    for rank, offset, remark in _offsets(found, spans, together, served):
        offsets_s[rank] = offset.seconds
        errors_s.append(offset.error_s)
        remarks += [remark] if remark else []
    metadata = _metadata(found, served, max(errors_s)) | _links(found, first)
    name = f"{directory.name}: {metadata['model']}" if "model" in metadata else directory.name
    timeline = merge(spans, name=name, offsets_s=offsets_s, metadata=metadata)
    starts_s = [
        float(Spans.of(mine).start_s.min()) - by_s
        for mine, by_s in zip(spans, offsets_s, strict=True)
        if len(mine)
    ]
    origin_s = min(starts_s, default=0.0)
    ranks, carriers = _ranks(found, served), _carriers(found, served)
    return Run(timeline, tuple(remarks), served, first, origin_s, ranks, carriers)


def _files(
    directory: Path, remarks: list[str], progress: Callable[[str, float], None] | None
) -> tuple[list[RankFile], list[NodeFile]]:
    """Return the files of ranks and of nodes that can be read.

    Raises:
        ArtifactError: there are none.
    """
    files = read_traces(sorted(directory.glob(PATTERN)), Header, remarks, progress)
    nodes = node_files(directory, remarks)
    if not files and not nodes:
        if remarks:
            raise ArtifactError(directory, f"none of its files can be read: {remarks[0]}")
        reason = "holds no file of a rank (rank-0.trace and so on); was anything captured here?"
        raise ArtifactError(directory, reason)
    return files, nodes


def of_last_run(
    files: Sequence[RankFile], nodes: Sequence[NodeFile], remarks: list[str]
) -> tuple[dict[int, RankFile], list[NodeFile]]:
    """Return the files of the run that began last, by rank, and of the job that it joined."""
    began_s: dict[str, float] = {}
    runs = [_job(one).get("job", one.header.run) for one in files]
    began = [(run, one.header.began_s) for run, one in zip(runs, files, strict=True)]
    for run, at_s in (*began, *((node.header.run, node.header.began_s) for node in nodes)):
        began_s[run] = min(at_s, began_s.get(run, math.inf))
    last = max(began_s, key=lambda run: began_s[run])
    if len(began_s) > 1:
        remarks.append(
            f"there are files of {len(began_s)} runs; this is the one that began last, "
            + _written(began_s[last])
        )
    mine: dict[int, list[RankFile]] = {}
    for run, one in zip(runs, files, strict=True):
        if run == last:
            mine.setdefault(one.header.rank, []).append(one)
    if (times := max(map(len, mine.values()), default=1)) > 1:
        remarks.append(f"this run was captured {times} times; this is the capture that began last")
    chosen = {
        rank: max(theirs, key=lambda one: (len(one.records) > 0, one.header.began_s))
        for rank, theirs in mine.items()
    }
    return chosen, [node for node in nodes if node.header.run == last]


def _job(one: RankFile) -> dict[str, Any]:
    """Return which job of a parameter server a rank joined, and as which worker; empty: none."""
    return next((note for note in reversed(one.notes) if "job" in note), {})


def _told(found: dict[int, RankFile]) -> tuple[str, dict[str, ClockOffset]]:
    """Return which worker has the clock that counts, and what is known of the others' clocks."""
    known: dict[str, ClockOffset] = {}
    for one in found.values():
        offset_s, error_s = one.header.offset_s, one.header.offset_error_s
        if (job := _job(one)) and offset_s is not None:
            known[f"w{job['worker']}"] = ClockOffset(offset_s, error_s)
    first = _job(found[0]) if 0 in found else {}
    return f"w{first['worker']}" if first else "", known if first else {}


def _ranks(found: dict[int, RankFile], served: Served | None) -> dict[str, int]:
    """Return the rank of each worker."""
    if served is None:
        return {}
    if not found:
        return {f"w{rank}": rank for rank in range(served.workers)}
    jobs = {rank: _job(one) for rank, one in found.items()}
    return {f"w{job['worker']}": rank for rank, job in jobs.items() if job}


def _carriers(found: dict[int, RankFile], served: Served | None) -> dict[int, str]:
    """Return the name of the spans that carry each slice: its own, or that of its bucket."""
    if served is None:
        return {}
    if not found:
        return key_names(served)
    plans = [note for note in found[min(found)].notes if "tensors" in note]
    buckets = enumerate(plans[-1]["tensors"]) if plans else ()
    carried = {tensor: f"bucket {index}" for index, tensors in buckets for tensor in tensors}
    return {key: carried.get(one.tensor, "") for key, one in served.keys.items()}


def _of_ranks(
    found: dict[int, RankFile], last: int, remarks: list[str]
) -> tuple[list[Sequence[Span]], int]:
    """Return the spans of each rank in the last iterations, and the first of these."""
    world_size = max(max(found) + 1, *(one.header.world_size for one in found.values()))
    captured = np.empty(0, np.int64)
    for rank, each in found.items():
        one, backwards = _in_order(each)
        if backwards:
            remarks.append(
                f"{one.path}: left out, because they end before they begin: {backwards} of its "
                "events; the clock of this rank jumped"
            )
        found[rank] = one = one._replace(records=_whole(one))
        captured = np.union1d(captured, one.records["iteration"])
    first = int(captured[-last]) if len(captured) > last else 0
    remarks += _thinned(found, captured[captured >= first])
    spans: list[Sequence[Span]] = [()] * world_size
    for rank, one in found.items():
        spans[rank] = _spans(one, first)
        found[rank] = one._replace(records=one.records[:0].copy())  # they are not needed twice
    return spans, first


def _whole(one: RankFile) -> Records:
    """Return a file's records, each in its iteration, without iterations that lost a part."""
    records = placed(one.records)
    for first, last in one.blocks.lost:
        records = records[(records["iteration"] < first) | (records["iteration"] > last)]
    return records


def _thinned(found: dict[int, RankFile], shown: NDArray[np.int64]) -> Iterator[str]:
    """Say which of the iterations that are shown are some of many, to save room on the disk."""
    notes = [note["thinned"] for one in found.values() for note in one.notes if "thinned" in note]
    before = max((note["before"] for note in notes), default=0)
    if len(shown) and shown[0] < before:
        every = max(note["every"] for note in notes)
        sampled = f"every {every}th one and " if every else ""
        yield (
            f"of iterations {shown[0]} to {before - 1} there are {int((shown < before).sum())}: "
            f"{sampled}those that took unusually long"
        )


def _shortcomings(found: dict[int, RankFile]) -> Iterator[str]:
    world_size = next(iter(found.values())).header.world_size
    missing = [str(rank) for rank in range(world_size) if rank not in found]
    if missing:
        ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
        yield f"no file of {ranks}: {len(found)} of {world_size} ranks are shown"
    for one in found.values():
        yield from one.shortcomings("events")


def _in_order(one: RankFile) -> tuple[RankFile, int]:
    """Return a file without the events that end before they begin, and how many they were."""
    with np.errstate(invalid="ignore"):
        right = one.records["end_s"] - one.records["start_s"] >= 0
    wrong = len(right) - int(right.sum())
    return (one._replace(records=one.records[right]) if wrong else one), wrong


def _spans(one: RankFile, first: int) -> Spans:
    texts = texts_of(one.notes)
    names = {note["number"]: note["model"] for note in one.notes if "plan" in note}
    models = {n: f"{name} {n}: " for n, name in names.items()} if len(names) > 1 else {}
    records = one.records[one.records["iteration"] >= first]
    missing = int(records["detail"].max(initial=0)) + 1 - len(texts)
    if missing > 0 or len(set(texts)) < len(texts):  # notes that said texts are lost
        texts += [""] * missing
        known = list(dict.fromkeys(texts))
        records["detail"] = np.array([known.index(text) for text in texts])[records["detail"]]
        texts = known
    return spans_of(records, texts, one.header.rank, models=models)


def _together(found: dict[int, RankFile]) -> tuple[str, ...]:
    """Return the lanes of which nothing ends on a rank before it began on all others."""
    exchanges = {note["exchange"] for one in found.values() for note in one.notes if "plan" in note}
    return _SYMMETRIC.get(exchanges.pop(), ()) if len(exchanges) == 1 else ()


def _on_one_clock(
    spans: list[Sequence[Span]], together: Sequence[str], remarks: list[str]
) -> list[Sequence[Span]]:
    """Return the spans of the most iterations between two jumps of a clock."""
    found = jumps(spans, together)
    if not found:
        return spans
    parts = [Spans.of(mine) for mine in spans]
    row = longest_row((int(i) for part in parts for i in np.unique(part.iteration)), found)
    for jump in found:
        remarks.append(
            f"rank {jump.rank}: its clock jumped in iteration {jump.iteration}, by about "
            f"{jump.by_s:.3f} s by what the ranks did together"
        )
    if row is None:
        return spans
    remarks.append(f"iterations {row[0]} to {row[1]} are shown: between jumps there are no more")
    return [part.take((part.iteration >= row[0]) & (part.iteration <= row[1])) for part in parts]


def _offsets(
    found: dict[int, RankFile],
    spans: Sequence[Sequence[Span]],
    together: Sequence[str],
    served: Served | None,
) -> Iterator[tuple[int, ClockOffset, str]]:
    """Yield each rank's clock minus rank 0's, and what is to be said of it."""
    bounds = bounds_of_each(spans, together)
    for rank, one in found.items():
        low_s, high_s = bounds[rank].between_s
        by_ends = bounds[rank].offset
        offset_s, error_s = one.header.offset_s, one.header.offset_error_s
        as_worker = served.clocks.get(f"w{_job(one).get('worker')}") if served else None
        if offset_s is None and as_worker is not None and math.isfinite(as_worker.error_s):
            # What is uncertain about it is said of the worker.
            yield rank, ClockOffset(as_worker.seconds, error_s), ""
        elif offset_s is None and by_ends is not None:
            yield (
                rank,
                by_ends,
                f"rank {rank}: its clock was not compared with rank 0's by messages; as both end "
                f"collectives together it differs by {by_ends.seconds:.6f} s; single ones "
                f"{by_ends.error_s * 1e6:.0f} us off as a rule",
            )
        elif offset_s is None:
            said = f"rank {rank}: its clock was not compared with rank 0's"
            yield rank, ClockOffset(0.0, error_s), said
        elif by_ends is not None and not low_s - error_s <= offset_s <= high_s + error_s:
            yield (
                rank,
                by_ends,
                f"rank {rank}: its clock has drifted since it was compared with rank 0's, from "
                f"{offset_s:.6f} s to {by_ends.seconds:.6f} s by what they did together",
            )
        else:
            yield rank, ClockOffset(offset_s, error_s), ""


def _metadata(
    found: dict[int, RankFile], served: Served | None, clock_error_s: float
) -> dict[str, str]:
    """Return what the first rank says of its last plan, and of the clocks."""
    if not found:
        assert served is not None
        hosts, run = set(served.hosts.values()), served.run
        clock_error_s = max(abs(clock.error_s) for clock in served.clocks.values())
        first_s = min((mine[0].time_s for mine in served.messages.values() if mine), default=0.0)
        said = {"exchange": SERVED, "began": _written(served.epoch_s + first_s)}
    else:
        first = found[min(found)]
        plans = [note for note in first.notes if "plan" in note]
        said = {key: str(value) for key, value in plans[-1].items()} if plans else {}
        hosts, run = {one.header.host for one in found.values()}, first.header.run
        said["began"] = _written(first.header.began_s)
    if served is not None:
        said |= about_servers(served.servers, synchronous=served.synchronous)
    return {key: value for key, value in said.items() if key not in _NO_METADATA} | {
        "run": run,
        HOSTS: str(len(hosts)),
        "clock_error_s": f"{clock_error_s:.9f}",
    }


def _written(moment_s: float) -> str:
    """Write seconds since 1970 for people."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _links(found: dict[int, RankFile], first: int) -> dict[str, str]:
    """Return what connections had carried before iteration ``first`` and in the end, as JSON.

    :mod:`syncopate.analysis.evidence.links` judges by it.
    """
    before: dict[int, Any] = {}
    after: dict[int, Any] = {}
    for rank, one in found.items():
        notes = [note for note in one.notes if "links" in note]
        while notes and not notes[-1]["links"]["carried"]:
            notes.pop()  # nothing was carried, or connections were closed by then
        if notes:
            early = [note for note in notes if note["iteration"] <= max(first, 0)]
            before[rank] = (early[-1] if early else notes[0])["links"]
            after[rank] = notes[-1]["links"]
    if not after:
        return {}
    return {"links": msgspec.json.encode({"before": before, "after": after}).decode()}

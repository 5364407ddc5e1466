"""Timeline: DLC traces of all workers as a timeline, with what their dependencies say.

=============  =======================================  ==========================================
``dep_type``   record                                   here
=============  =======================================  ==========================================
4              a push is sent after the weights of the  computation, from the last weights of the
               iteration before                         iteration before to the last push; a push
                                                        follows as far into it
1              a push is answered                       the push, which lasts until then
2              weights are asked for after the push     the pull begins behind its push, where that
                                                        was answered before
3              weights come after the request           the pull, which lasts until then
=============  =======================================  ==========================================

Whether the server answers a push when it has those of all workers, as MXNet's does, and whether
weights wait for these, the times say: where three quarters of them do, all do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from syncopate.artifacts.plan import SERVED
from syncopate.artifacts.timeline import (
    AFTER_PUSHES,
    ANSWERS,
    ASYNCHRONOUS,
    PULLS,
    SERVER_COUNT,
    SERVERS,
    SYNCHRONOUS,
    TOGETHER,
    Span,
    Timeline,
)
from syncopate.artifacts.timelines.spans import Numbers
from syncopate.errors import ArtifactError, encodable
from syncopate.tracing.dlc.columns import OPERATIONS, Records
from syncopate.tracing.dlc.reader import Trace
from syncopate.tracing.dlc.records import OF_WORKERS

_PUSHED, _ANSWERED, _ASKED, _CAME = range(4)
"""Places in ``OF_WORKERS``."""
_MOSTLY = 0.75
_WORKER = "worker"


class _Way(NamedTuple):
    """The four operations of a worker with a key in an iteration.

    Attributes:
        times_s: of each.
        nbytes: of each.
        peer: the server.
    """

    times_s: tuple[float, ...]
    nbytes: tuple[int, ...]
    peer: str


_Key = tuple[int, int]
"""Iteration, key."""


def timeline_of(traces: Mapping[str, Trace]) -> Timeline:
    """Return the training that DLC traces are of, a rank for each worker.

    Args:
        traces: path -> trace; those of servers and of the scheduler are left out.

    Raises:
        ArtifactError: no worker's trace, one of another job, two of one worker, or one in which an
            operation is missing or waits for what does not come before it.
    """
    workers = {path: one for path, one in traces.items() if one.header.role == _WORKER}
    if not workers:
        path = next(iter(traces), "traces")
        raise ArtifactError(path, "of no worker; a run is played by the traces of all its workers")
    header = next(iter(workers.values())).header
    origin_us = min(_first_us(one.records) for one in workers.values())
    found: dict[int, dict[_Key, _Way]] = {}
    for path, trace in workers.items():
        if (trace.header.workers, trace.header.servers) != (header.workers, header.servers):
            raise ArtifactError(path, f"of another job than {next(iter(workers))}")
        rank, ways = _ways(path, trace.records, origin_us)
        if rank in found:
            raise ArtifactError(path, f"of worker {rank}, as a trace before it; each once")
        found[rank] = ways
    if missing := sorted({*range(header.workers)} - {*found}):
        names = ", ".join(f"w{rank}" for rank in missing)
        path = next(iter(workers))
        raise ArtifactError(path, f"of a job of {header.workers} workers; missing: {names}")
    spans = [span for rank, ways in found.items() for span in _spans(rank, ways)]
    return Timeline(
        name=encodable(Path(next(iter(workers))).resolve().parent.name) or "DLC traces",
        source="measured",
        world_size=header.workers,
        spans=tuple(spans),
        metadata={"exchange": SERVED, SERVER_COUNT: str(header.servers), **_said(found)},
    )


def _first_us(records: Records) -> int:
    times_us = records.time_us[records.timed()]
    return int(times_us.min()) if len(times_us) else 0


def _ways(path: str, records: Records, origin_us: int) -> tuple[int, dict[_Key, _Way]]:
    """Return the worker of a trace, and what it did with each key in each iteration.

    Raises:
        ArtifactError: see :func:`timeline_of`.
    """
    rows = np.flatnonzero(records.timed())
    if not len(rows):
        raise ArtifactError(path, "no push and no pull: there is nothing to play")
    _require_order(path, records, rows)
    rank = int(records.nodes()[rows[0]])
    at = {OPERATIONS.index(operation): place for place, operation in enumerate(OF_WORKERS)}
    seen: dict[_Key, dict[int, tuple[float, int, int]]] = defaultdict(dict)
    columns = (
        records.iterations()[rows], records.key[rows], records.operation[rows],
        records.time_us[rows] - origin_us, records.length[rows], records.peer[rows],
    )  # fmt: skip
    for iteration, key, operation, time_us, length, peer in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if iteration >= 0 and operation in at:
            seen[iteration, key].setdefault(at[operation], (time_us * 1e-6, length, peer))
    if not seen:
        raise ArtifactError(path, "no iteration of a training: there is nothing to play")
    last = max(iteration for iteration, _ in seen)
    ways = {}
    for (iteration, key), four in sorted(seen.items()):
        if lacking := [str(OF_WORKERS[n]) for n in range(4) if n not in four]:
            if iteration == last:
                continue  # the trace ends within it
            said = f"{', '.join(lacking)} of key {key} in iteration {iteration}"
            raise ArtifactError(path, f"incomplete: there is no {said}")
        times_s, nbytes, peers = zip(*(four[n] for n in range(4)), strict=True)
        ways[iteration, key] = _Way(times_s, nbytes, records.texts[peers[0]])
    return rank, ways


def _require_order(path: str, records: Records, rows: Numbers) -> None:
    """Refuse a trace in which an operation waits for itself or for what follows it."""
    heads = np.array([how.heads for how in records.waits])[records.waited[rows]]
    wrong = (heads > 0) & (records.waited_number[rows] >= records.number[rows])
    if wrong.any():
        one = records[int(rows[np.flatnonzero(wrong)[0]])]
        named = ", ".join(getattr(one, "depends_on", ()))
        said = f"id {one.id}: {one.operation} waits for {named}, which does not come before it"
        raise ArtifactError(path, f"goes round in circles: {said}")


def _spans(rank: int, ways: Mapping[_Key, _Way]) -> Iterator[Span]:
    sent: dict[int, float] = {}
    had: dict[int, float] = {}
    for (iteration, key), way in ways.items():
        sent[iteration] = max(sent.get(iteration, -np.inf), way.times_s[_PUSHED])
        had[iteration] = max(had.get(iteration, -np.inf), way.times_s[_CAME])
        for lane, start, end, carries in (
            ("push", _PUSHED, _ANSWERED, _PUSHED),
            ("pull", _ASKED, _CAME, _CAME),
        ):
            yield Span(
                name=f"key {key}",
                lane=lane,
                rank=rank,
                start_s=way.times_s[start],
                end_s=max(way.times_s[end], way.times_s[start]),
                iteration=iteration,
                channel=key,  # of two keys none waits for the other
                nbytes=way.nbytes[carries],
                detail=way.peer,
            )
    yield from computed(rank, sent, had)


def computed(rank: int, sent: Mapping[int, float], had: Mapping[int, float]) -> Iterator[Span]:
    """Yield the computation of a worker, from its last weights to its last push (Section 4.2).

    Args:
        rank: the worker.
        sent: iteration -> when it sent its last push.
        had: iteration -> when it had its last weights.
    """
    for iteration, end_s in sent.items():
        start_s = had.get(iteration - 1)
        if start_s is not None and start_s <= end_s and iteration >= 0:
            yield Span(
                name="computation",
                lane="backward",
                rank=rank,
                start_s=start_s,
                end_s=end_s,
                iteration=iteration,
            )


def _said(found: Mapping[int, Mapping[_Key, _Way]]) -> dict[str, str]:
    """Return what the times say of servers; see the module."""
    every = [(key, way) for ways in found.values() for key, way in ways.items()]
    sent: dict[_Key, float] = {}
    for key, way in every:
        sent[key] = max(sent.get(key, -np.inf), way.times_s[_PUSHED])
    said = {PULLS: AFTER_PUSHES}
    if _most(way.times_s[_ANSWERED] >= sent[key] for key, way in every) and len(found) > 1:
        said[ANSWERS] = TOGETHER
    synchronous = _most(way.times_s[_CAME] >= sent[key] for key, way in every)
    said[SERVERS] = SYNCHRONOUS if synchronous else ASYNCHRONOUS
    return said


def _most(said: Iterable[bool]) -> bool:
    values: Sequence[bool] = list(said)
    return sum(values) >= _MOSTLY * len(values)

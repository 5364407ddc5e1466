"""Ranks: whose the files of a profiler are, and on which iteration each is.

A trace says its rank where the profiler ran after the process group was made. Else the name of the
file has to: ``rank3.json``, or the one number in which the names differ. Several files of one rank
are windows of its training where they lie one behind the other, of one process, and the profiler
goes on counting its steps. Of two trainings that wrote to one folder the last one is read.

A rank whose profiler did not number its iterations counts them from 0. Beside others it takes the
numbers that these have at the same times.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.artifacts.timeline import Group
from syncopate.errors import ArtifactError
from syncopate.tracing.foreign.iterations import iteration_at
from syncopate.tracing.foreign.profiler import keyed
from syncopate.tracing.foreign.ranktrace import Launch, RankTrace, Work

_RANK = re.compile(r"rank[-_.= ]?(\d+)", re.IGNORECASE)

Counted = TypeVar("Counted", Launch, Work)

Named = tuple[str | os.PathLike[str], RankTrace]
"""A file and what it holds."""


def of_ranks(files: Sequence[Named]) -> list[RankTrace]:
    """Return each rank once, numbered as the others.

    Raises:
        ArtifactError: whose a file is cannot be told, or two are of one rank at the same time.
    """
    traces = _joined(_told(files))
    extents = [_extent(trace) for trace in traces]
    if max(start_ns for start_ns, _ in extents) > min(end_ns for _, end_ns in extents):
        note = "no time is in the files of all ranks: are they of one run, and clocks set?"
        traces[0] = traces[0]._replace(notes=(*traces[0].notes, note))
    return [keyed(trace) for trace in _numbered(_of_groups(traces))]


def _told(files: Sequence[Named]) -> list[Named]:
    """Return the files with a rank each."""
    named = _by_names([path for path, _ in files])
    said = [trace.rank for _, trace in files]
    apart = None not in named and len(set(named)) == len(named) > 1
    if -1 not in said and not (apart and len(set(said)) == 1):
        return list(files)
    told: list[Named] = []
    for (path, trace), rank in zip(files, named, strict=True):
        if rank is None and len(files) == 1:
            told.append((path, trace._replace(rank=0)))
        elif rank is None:
            reason = (
                "it does not say its rank, and neither does its name: call the files rank0.json, "
                "rank1.json and so on"
            )
            raise ArtifactError(path, reason)
        else:
            note = f"all files say that they are of rank {said[0]}: their names tell the ranks"
            notes = () if -1 in said else (note,)
            told.append((path, trace._replace(rank=rank, notes=(*trace.notes, *notes))))
    return told


def _by_names(paths: Sequence[str | os.PathLike[str]]) -> list[int | None]:
    names = [os.path.basename(path) for path in paths]
    found = [_RANK.search(name) for name in names]
    if all(found):
        return [int(one[1]) if one and int(one[1]) < MAX_RANKS else None for one in found]
    numbers = [re.findall(r"\d+", name) for name in names]
    if len({re.sub(r"\d+", "#", name) for name in names}) == 1:
        differ = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
        if len(differ) == 1 and all(int(one) < MAX_RANKS for one in differ[0]):
            return [int(one) for one in differ[0]]
    return [None] * len(names)


def _joined(files: Sequence[Named]) -> list[RankTrace]:
    """Return each rank once: of several windows of its training one behind the other."""
    by_rank: dict[int, list[Named]] = defaultdict(list)
    for path, trace in files:
        by_rank[trace.rank].append((path, trace))
    runs = [_runs(sorted(own, key=lambda one: _extent(one[1]))) for own in by_rank.values()]
    several = max(map(len, runs))
    begin_ns = max(_extent(own[-1][0][1])[0] for own in runs) if several > 1 else 0
    last = [own[-1] for own in runs if _extent(own[-1][-1][1])[1] >= begin_ns]
    found = [_windows(own) for own in last]
    if several > 1:
        note = f"there are traces of {several} runs; this is the one that began last"
        found[0] = found[0]._replace(notes=(*found[0].notes, note))
    return found


def _runs(files: Sequence[Named]) -> list[list[Named]]:
    """Return the windows of a rank by the training that they are of, in order."""
    found: list[list[Named]] = []
    for path, trace in files:
        if not found or _begins_anew(found[-1][-1][1], trace):
            found.append([])
        found[-1].append((path, trace))
    return found


def _begins_anew(before: RankTrace, after: RankTrace) -> bool:
    """Say whether a window is of another training than the one before it."""
    if _extent(after)[0] < _extent(before)[1]:
        return False  # at the same time: refused
    if before.process and after.process and before.process != after.process:
        return True
    numbered = before.numbered and after.numbered and before.marks and after.marks
    return bool(numbered) and after.marks[0][1] <= before.marks[-1][1]


def _windows(files: Sequence[Named]) -> RankTrace:
    for (path, before), (other, after) in pairwise(files):
        if _extent(after)[0] < _extent(before)[1]:
            reason = (
                f"it says that it is of rank {after.rank} at the same time as {Path(path).name}; "
                "give one file of each rank, or call them rank0.json, rank1.json and so on"
            )
            raise ArtifactError(other, reason)
    traces = [trace for _, trace in files]
    if len(traces) == 1:
        return traces[0]
    numbered = all(trace.numbered for trace in traces)
    for place, before in enumerate(traces[:-1]):
        if not numbered and before.marks:
            traces[place + 1] = _shifted(traces[place + 1], before.marks[-1][1])
    marks = [mark for trace in traces for mark in trace.marks]
    return traces[0]._replace(
        world_size=max(trace.world_size for trace in traces),
        launches=tuple(launch for trace in traces for launch in trace.launches),
        work=tuple(work for trace in traces for work in trace.work),
        marks=tuple(marks),
        numbered=numbered,
        notes=tuple(note for trace in traces for note in trace.notes),
    )


def _extent(trace: RankTrace) -> tuple[int, int]:
    """Return when a rank began what is recorded of it, and when it ended."""
    every = [(one.start_ns, one.end_ns or one.start_ns) for one in trace.launches]
    every += [(one.start_ns, one.end_ns) for one in trace.work]
    return min((a for a, _ in every), default=0), max((b for _, b in every), default=0)


def _of_groups(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return ranks that describe a group alike: what one knows of it holds for all."""
    known: dict[str, set[Group]] = defaultdict(set)
    for trace in traces:
        for group in {*(launch.group for launch in trace.launches), *trace.groups}:
            if group.ranks:
                known[group.name].add(group)
    only = {name: next(iter(found)) for name, found in known.items() if len(found) == 1}

    def told(group: Group) -> Group:
        return group if group.ranks else only.get(group.name, group)

    return [
        trace._replace(
            launches=tuple(one._replace(group=told(one.group)) for one in trace.launches)
        )
        for trace in traces
    ]


def _numbered(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return ranks whose iterations have the numbers of the others."""
    reference = next((one for one in traces if one.numbered), traces[0])
    return [
        trace if trace.numbered or trace is reference else _like(trace, reference)
        for trace in traces
    ]


def _like(trace: RankTrace, reference: RankTrace) -> RankTrace:
    """Return a rank with the numbers that another has at the same times."""
    if reference.numbered:  # a step of the profiler has that of the optimizer, which ends it
        moments = [(moment_ns, number - 1) for moment_ns, number in trace.marks]
    else:  # both begin with the ends of steps
        moments = [((a + b) // 2, number) for (a, number), (b, _) in pairwise(trace.marks)]
    apart: Counter[int] = Counter()
    for moment_ns, number in moments:
        if reference.marks and moment_ns > reference.marks[0][0]:
            apart[iteration_at(reference, moment_ns) - number] += 1
    by = apart.most_common(1)[0][0] if apart else 0
    if not by or (not reference.numbered and len(apart) > 1):
        return trace
    return _shifted(trace, by)


def _shifted(trace: RankTrace, by: int) -> RankTrace:
    """Return a rank with higher numbers of its iterations."""
    return trace._replace(
        marks=tuple((moment_ns, number + by) for moment_ns, number in trace.marks),
        launches=tuple(_later(one, by) for one in trace.launches),
        work=tuple(_later(one, by) for one in trace.work),
    )


def _later(one: Counted, by: int) -> Counted:
    return one if one.iteration < 0 else one._replace(iteration=max(one.iteration + by, 0))

"""Reading: a timeline from the directory of a run, a file of its own, or one file of each rank."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from syncopate.analysis.evidence.pipeline import pipelines
from syncopate.analysis.work import of_iterations
from syncopate.artifacts.artifact import A, require
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.round_trip import RoundTrip
from syncopate.errors import ArtifactError, InvalidValueError
from syncopate.output import Progress, say
from syncopate.runs.defaults import LAST, NO_TABLE, Table
from syncopate.runs.served import trips_of
from syncopate.tracing import foreign
from syncopate.tracing.run import PATTERN, Run, read_run

_MANY = 1 << 18
"""Spans of ranks that do the same, above which some of these ranks are looked at alone."""


class Recorded(NamedTuple):
    """A recording, as it was read.

    Attributes:
        timeline: of all ranks.
        run: of a directory in which ranks or nodes wrote; None: it was none.
        remarks: what is unknown of it or left out, a sentence each.
        name: the directory or the first file; a timeline's own name.
    """

    timeline: Timeline
    run: Run | None = None
    remarks: tuple[str, ...] = ()
    name: str = ""

    @property
    def trips(self) -> list[RoundTrip]:
        """Ways of slices to parameter servers and back; none without servers."""
        return trips_of(self.run)

    def of_ranks(self) -> Recorded:
        """Return itself, whose timeline has spans of ranks or workers.

        Raises:
            ArtifactError: only servers were captured.
        """
        if self.run is not None and not self.timeline.spans:
            reason = "only servers were captured here; a timeline is of ranks or workers"
            raise ArtifactError(self.name, reason)
        return self


Source = str | os.PathLike[str] | Timeline | Recorded
"""A directory, a file, or what was read from it before."""


def read(
    *sources: Source,
    last: int = LAST,
    table: Table = NO_TABLE,
    every: bool = False,
    progress: Progress | None = None,
) -> Recorded:
    """Return the timeline of the directory of a run, of a timeline, or of one file of each rank.

    A directory may also hold the traces that torch.profiler wrote, one of each rank.

    Args:
        sources: any of them.
        last: how many iterations of a run to read, the last ones.
        table: headings and kinds of tables, such as ``("rank=gpu,start=t0:us", "push=SYNC")``.
        every: of many ranks that do the same, whether to look at every one.
        progress: called with what is read and the fraction done.

    Raises:
        ArtifactError: a file that holds no timeline, and no part of one.
        InvalidValueError: no sources, or some that do not fit together.
    """
    if not sources:
        raise InvalidValueError("files", sources, "a run, a timeline, or one file of each rank")
    files: list[Path] = []
    for source in sources:
        if isinstance(source, str | os.PathLike):
            files.append(Path(source))
        elif not isinstance(source, Timeline | Recorded):
            rule = "a directory, a file, or a Timeline"
            raise InvalidValueError("files", source, rule)
        elif len(sources) > 1:
            raise InvalidValueError("files", len(sources), "one timeline, or paths alone")
        else:
            return source if isinstance(source, Recorded) else _few(source, every, source.name)
    # Of what may not be looked at it says no, and reading it says why; Path.is_dir() raises.
    folders = [path for path in files if os.path.isdir(path)]
    if folders and len(files) > 1:
        rule = "the only one, or left out: the directory of a run has all ranks"
        raise InvalidValueError("FILE", str(folders[0]), rule)
    if folders and (profiles := _profiles(folders[0])):
        files, folders = profiles, []
    if folders and not is_plain(folders[0]):
        run = read_run(folders[0], last, progress)
        return Recorded(run.timeline, run, run.remarks, str(folders[0]))
    say(progress, files[0].name, 0.0)
    if folders:
        timeline = foreign.read_directory(folders[0], last)
    else:
        timeline = foreign.read_timeline(files, foreign.mapped(*table) if any(table) else None)
    return _few(timeline, every, str(files[0]))


def _few(timeline: Timeline, every: bool, name: str) -> Recorded:
    """Return a timeline, with some of many ranks that do the same, and the remarks on it."""
    said = timeline.metadata.items()
    remarks = tuple(text for key, text in said if key.startswith(foreign.NOTE))
    if every:
        return Recorded(timeline, None, remarks, name)
    found = timeline.few(_MANY)
    if left_out := found.world_size - found.ranks_in_columns:
        remarks += (
            f"{left_out:,} of the {found.world_size:,} ranks do what others do, and are not looked "
            "at one by one",
        )
    return Recorded(found, None, remarks, name)


def opened(kind: type[A], artifact: A | str | os.PathLike[str] | None) -> A | None:
    """Return an artefact, read from its file where a path is given.

    Raises:
        ArtifactError: the file is none of that kind.
        InvalidValueError: neither an artefact of that kind nor a file.
    """
    if isinstance(artifact, str | os.PathLike):
        return kind.load(artifact)
    if artifact is not None:
        require((kind, artifact))
    return artifact


def latest(found: Recorded, last: int) -> Recorded:
    """Return the same with its last iterations alone, and remark where there were others.

    Raises:
        InvalidValueError: less than one iteration is asked for.
    """
    if last < 1:
        raise InvalidValueError("last", last, "at least 1")
    numbers = np.unique(found.timeline.kept.iteration)
    if len(numbers) <= last:
        return found
    first = int(numbers[-last])
    timeline = of_iterations(found.timeline, first, int(numbers[-1]))
    said = f"the last {last} iterations are looked at, from iteration {first} on"
    return found._replace(timeline=timeline, remarks=(*found.remarks, said))


def of_those_there(timeline: Timeline) -> tuple[Timeline, tuple[int, ...]]:
    """Return a timeline of those ranks that have spans, renumbered from 0, and their ranks.

    A few ranks of a large job say something of themselves and of each other, and nothing of the
    others. Stages of a pipeline wait for each other, so all those of theirs are there, too.
    """
    spans = timeline.columns
    there = np.unique(spans.rank)
    for stages in pipelines(timeline):
        there = np.union1d(there, stages)
    if len(there) in (0, timeline.world_size):
        return timeline, tuple(range(timeline.world_size))
    place = {rank: at for at, rank in enumerate(there.tolist())}
    groups = [
        replace(group, ranks=tuple(place[rank] for rank in group.ranks if rank in place))
        for group in timeline.groups
    ]
    own = spans.changed(rank=np.searchsorted(there, spans.rank).astype(spans.rank.dtype))
    seen = replace(timeline, world_size=len(there), spans=own, groups=tuple(groups))
    return seen, tuple(there.tolist())


def read_nodes(*files: Path, progress: Progress | None = None) -> Run:
    """Return the run of a directory, in which nodes of a parameter server wrote files.

    Raises:
        ArtifactError: none did.
        InvalidValueError: not one directory.
    """
    if len(files) != 1 or not os.path.isdir(files[0]):
        rule = "the directory of one traced run, with the messages of each node"
        raise InvalidValueError("FILE", ", ".join(map(str, files)), rule)
    run = read_run(files[0], sys.maxsize, progress)
    if run.served is None:
        reason = "no worker or server of a parameter server wrote a file (worker-0.trace and so on)"
        raise ArtifactError(files[0], reason)
    return run


def _profiles(folder: Path) -> list[Path]:
    """Return the traces of torch.profiler in a directory in which no run wrote."""
    if any(folder.glob(PATTERN)):
        return []
    profiles = foreign.profile_paths(folder)
    recorded = set(_written(foreign.recorded_paths(folder))).difference(profiles)
    return [] if recorded else profiles


def is_plain(folder: Path) -> bool:
    """Say whether the ranks that wrote last to the directory of a run trained plain torch."""
    plain, captured = foreign.recorded_paths(folder), _written(folder.glob(PATTERN))
    if not captured:
        return bool(plain)
    return max(_written(plain).values(), default=0) >= max(captured.values())


def _written(paths: Iterable[Path]) -> dict[Path, int]:
    """Return when files were written, in nanoseconds since 1970.

    What holds nothing that can be read is left out: empty ones, folders, links that lead nowhere.
    """
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            about = path.stat()
            if about.st_size and stat.S_ISREG(about.st_mode):
                found[path] = about.st_mtime_ns
    return found

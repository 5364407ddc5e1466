"""Watch: a training that goes on, looked at through the files that its ranks write.

Nothing here runs in the training's processes. A look reads what was appended since the one before,
and its figures are of the last iterations alone.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from syncopate.analysis.ranks.by_rank import RankFigures, by_rank
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError
from syncopate.metrics.prometheus import Metric, Sample
from syncopate.reports.watch import NodeFigures, Watched
from syncopate.runs.defaults import LAST_WATCHED
from syncopate.runs.explain import explain
from syncopate.runs.reading import Recorded, is_plain, read
from syncopate.tracing.follow import Follower
from syncopate.tracing.foreign import recorded_paths
from syncopate.tracing.run import Run

_QUIET_S, _QUIET_STEPS = 10.0, 5
"""A run is quiet when no iteration came for longer than this, and than so many steps."""


class Watch:
    """Looks at a run again and again.

    Args:
        directory: of the run; it need not be there yet.
        last: how many iterations to look at, the last ones.

    Raises:
        InvalidValueError: less than one iteration is asked for.
        ArtifactError: it is no directory.
    """

    def __init__(self, directory: str | os.PathLike[str], last: int = LAST_WATCHED) -> None:
        if last < 1:
            raise InvalidValueError("last", last, "at least 1")
        self.directory = Path(directory)
        try:
            if not stat.S_ISDIR(self.directory.stat().st_mode):
                reason = "no directory; a run that is recorded writes into one (SYNCOPATE_TRACE)"
                raise ArtifactError(self.directory, reason)
        except FileNotFoundError:
            pass  # a training makes it
        except OSError as error:
            raise ArtifactError(self.directory, f"cannot be read: {error.strerror}") from None
        self._last = last
        self._follower = Follower(self.directory, last)
        self._newest = -1
        self._since_s = time.monotonic()
        self._plain: tuple[tuple[int, ...], Recorded] | None = None
        self._explained: tuple[int, str] = (-1, "")

    @property
    def waits_for(self) -> str:
        """Why nothing is known of the run yet, in a sentence; empty: there is something."""
        where = self.directory
        if not where.exists():
            return f"{where} does not exist yet; a training with SYNCOPATE_TRACE={where} makes it"
        if not any(where.glob("*.trace")) and not recorded_paths(where):
            return f"{where} holds no file of a rank yet (rank-0.trace and so on)"
        return ""

    def look(self) -> Watched:
        """Return what the run is like now.

        Raises:
            ArtifactError: its files cannot be read.
        """
        name = str(self.directory)
        plain = self.directory.exists() and is_plain(self.directory)
        recorded = self._recorded_plain() if plain else self._recorded()
        if recorded is None:
            why = self.waits_for or f"{name} holds no whole iteration yet"
            return Watched(name, remarks=(why,))
        timeline, run = recorded.timeline, recorded.run
        ranks = by_rank(timeline) if len(timeline.spans) else ()
        quiet_s = self._quiet_s(ranks, run)
        return Watched(
            name=name,
            timeline=timeline,
            ranks=ranks,
            nodes=tuple(_nodes(run)) if run is not None else (),
            plan=_plan(timeline),
            cause=self._cause(recorded, ranks),
            quiet_s=quiet_s,
            quiet="" if quiet_s is None else _quiet(quiet_s, ranks),
            remarks=recorded.remarks,
        )

    def _recorded(self) -> Recorded | None:
        run = self._follower.look() if self.directory.exists() else None
        if run is None:
            return None
        return Recorded(run.timeline, run, run.remarks, str(self.directory))

    def _recorded_plain(self) -> Recorded | None:
        """Return what ranks of plain torch wrote; read again where they wrote more."""
        written = tuple(path.stat().st_mtime_ns for path in recorded_paths(self.directory))
        if self._plain is None or self._plain[0] != written:
            try:
                self._plain = written, read(self.directory, last=self._last)
            except InvalidValueError:  # nothing whole was recorded yet
                return None
        return self._plain[1]

    def _cause(self, recorded: Recorded, ranks: tuple[RankFigures, ...]) -> str:
        """Return the verdict of :func:`~syncopate.explain`; the same while no iteration comes."""
        newest = min((one.iteration for one in ranks), default=-1)
        if newest != self._explained[0]:
            self._explained = newest, _explained(recorded, self._last)
        return self._explained[1]

    def _quiet_s(self, ranks: Iterable[RankFigures], run: Run | None) -> float | None:
        """Return for how long no iteration came; None where that is no longer than usual."""
        newest = max((one.iteration for one in ranks), default=-1)
        if newest != self._newest:
            self._newest, self._since_s = newest, time.monotonic()
        since_s = max(time.monotonic() - self._since_s, self._age_s(ranks, run))
        usual_s = max((one.step_s or 0.0 for one in ranks), default=0.0)
        return since_s if since_s > max(_QUIET_S, _QUIET_STEPS * usual_s) else None

    def _age_s(self, ranks: Iterable[RankFigures], run: Run | None) -> float:
        """Return how long ago the last span ended, as far as that is known.

        Ranks on this machine have its clock. Of others it is known when their files were written,
        which goes on as long as a process lives.
        """
        if run is not None and self._follower.hosts == {socket.gethostname()}:
            ended_s = max((one.ended_s for one in ranks), default=0.0) + run.origin_s
            if (age_s := time.perf_counter() - ended_s) >= 0:
                return age_s
        paths = recorded_paths(self.directory) if run is None else self.directory.glob("*.trace")
        return time.time() - max((path.stat().st_mtime for path in paths), default=time.time())


def watch(directory: str | os.PathLike[str], *, last: int = LAST_WATCHED) -> Watched:
    """Say what a run that goes on is like now: pace, waiting and bandwidth of each rank.

    Args:
        directory: to which its ranks write (``SYNCOPATE_TRACE``, or :func:`syncopate.trace`).
        last: how many iterations to look at, the last ones.

    Raises:
        ArtifactError: no directory, or no file of a rank in it.
        InvalidValueError: less than one iteration is asked for.

    Example:
        >>> print(syncopate.watch("runs/a"))  # doctest: +SKIP
    """
    one = Watch(directory, last)
    if why := one.waits_for:
        raise ArtifactError(directory, why.removeprefix(f"{directory} "))
    return one.look()


def _explained(recorded: Recorded, last: int) -> str:
    """Return the worst cause, or why none is known."""
    try:
        found = explain(recorded, last=last)
    except SyncopateError as error:
        return f"no explanation: {error}"
    verdict = found.summary()[0].removeprefix(f"{found.timeline.name}: ")
    return f"{verdict}: {found.abstains[0]}" if found.abstains else verdict


def _plan(timeline: Timeline) -> str:
    said = timeline.metadata
    words = [said.get("policy", ""), said.get("exchange", "") or said.get("tool", "")]
    if said.get("buckets"):
        words.append(f"{said['buckets']} buckets")
    return ", ".join(filter(None, words))


def _quiet(quiet_s: float, ranks: tuple[RankFigures, ...]) -> str:
    """Say that nothing comes, and who wrote last."""
    said = f"no new iteration for {quiet_s:.0f} s"
    if not ranks:
        return said
    last = max(ranks, key=lambda one: (one.iteration, one.ended_s))
    first = min(ranks, key=lambda one: (one.iteration, one.ended_s))
    said += f": rank {last.rank} is the last that wrote, of iteration {last.iteration}"
    if first.iteration < last.iteration:
        said += f"; rank {first.rank} came to iteration {first.iteration} alone"
    return said


def _nodes(run: Run) -> Iterable[NodeFigures]:
    if run.served is None:
        return
    for node, mine in sorted(run.served.messages.items()):
        if not mine:
            continue
        begin_s, end_s = mine[0].time_s, mine[-1].time_s
        lasts_s = max(end_s - begin_s, 1e-9)
        updating_s = sum(
            work.end_s - work.start_s
            for work in run.served.work
            if work.node == node and work.kind == "update" and work.start_s >= begin_s
        )
        yield NodeFigures(
            node=node,
            pushes_per_s=sum(m.kind == "Push" for m in mine) / lasts_s,
            pulls_per_s=sum(m.kind == "Pull" for m in mine) / lasts_s,
            bytes_per_s=sum(m.nbytes for m in mine) / lasts_s,
            updating_share=min(updating_s / lasts_s, 1.0),
        )


def line_of(found: Watched) -> bytes:
    """Return all values in one line of JSON."""
    return msgspec.json.encode(found.to_dict()) + b"\n"


def metrics_of(found: Watched) -> Iterator[Metric]:
    """Yield what a look at a run found, for Prometheus."""
    for name, (metric, what) in _OF_RANKS.items():
        samples = [
            Sample(value, {"run": found.name, "rank": str(one.rank)})
            for one in found.ranks
            if (value := getattr(one, name)) is not None
        ]
        yield Metric(f"syncopate_run_{metric}", "gauge", what, samples)
    for name, (metric, what) in _OF_NODES.items():
        samples = [
            Sample(getattr(one, name), {"run": found.name, "node": one.node}) for one in found.nodes
        ]
        yield Metric(f"syncopate_run_node_{metric}", "gauge", what, samples)
    what = "For how long no iteration came, where that is long; 0: the run goes on."
    quiet = Sample(found.quiet_s or 0.0, {"run": found.name})
    yield Metric("syncopate_run_quiet_seconds", "gauge", what, [quiet])


_OF_RANKS = {
    "iteration": ("iteration", "The last iteration of a rank."),
    "step_s": (
        "step_seconds",
        "From one iteration to the next, in the median of those that are looked at.",
    ),
    "waiting_s": (
        "waiting_seconds",
        "Exposed waiting for other ranks in an iteration, in their mean.",
    ),
    "exposed_s": (
        "exposed_seconds",
        "All exposed communication in an iteration, in their mean.",
    ),
    "nbytes": ("communicated_bytes", "Bytes pushed and pulled in an iteration, in their mean."),
    "bus_bytes_per_s": ("bus_bytes_per_second", "Bus bandwidth while messages were under way."),
}
"""Attributes of :class:`RankFigures`, and what Prometheus calls them."""

_OF_NODES = {
    "pushes_per_s": (
        "pushes_per_second",
        "Pushes a second that a node of a parameter server sent or received.",
    ),
    "pulls_per_s": ("pulls_per_second", "Pulls a second, likewise."),
    "bytes_per_s": ("bytes_per_second", "Bytes a second, likewise."),
    "updating_share": ("updating_share", "Part of the time in which a server computes updates."),
}
"""Attributes of :class:`NodeFigures`, likewise."""

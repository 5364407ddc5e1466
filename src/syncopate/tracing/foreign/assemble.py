"""Assemble: what another tool tells about each rank, as one timeline.

The k-th all-reduce of an iteration is called ``bucket k``, as DDP's are, unless gradients travel by
reduce-scatters; the k-th of another collective by its name and k. A span begins when its rank came
to the collective. Where the tool does not say when it ended, the next step tells
(:mod:`syncopate.tracing.foreign.fitted`). Where there is none it ends where every rank that is
needed had come: it cannot have ended before. So waiting for a late rank is exact, up to the clocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.artifacts.timeline import HOSTS, Group, Span, Timeline
from syncopate.artifacts.timelines.gradients import BESIDE, GRADIENTS, to_text, usual
from syncopate.errors import InvalidValueError
from syncopate.tracing.foreign.alignment import offsets
from syncopate.tracing.foreign.chrome.places import places_of
from syncopate.tracing.foreign.fitted import fitted_ends
from syncopate.tracing.foreign.iterations import iteration_of, iterations
from syncopate.tracing.foreign.labels import split
from syncopate.tracing.foreign.ranktrace import BETWEEN_TWO, LANE_OF, OF_ALL_RANKS, RankTrace
from syncopate.tracing.merge import ClockOffset, merge
from syncopate.units import format_seconds

NOTE = "note: "
"""How the keys of metadata begin that say what cannot be known."""

_SAID_S = 1e-6
"""By how much clocks are off before that is worth a word."""

_MOST = 1 << 62
"""No time in nanoseconds is as far from 1970, and no message has as many bytes."""


def timeline_of(
    traces: Sequence[RankTrace], *, name: str, last: int | None = None, notes: Sequence[str] = ()
) -> Timeline:
    """Return one timeline of the ranks that another tool saw.

    Metadata whose keys begin with :data:`NOTE` say what cannot be known of it.

    Args:
        traces: one of each rank; ranks may be missing.
        name: what to call the timeline in reports.
        last: how many iterations to show, the last ones; None: all.
        notes: what else is to be said.

    Raises:
        InvalidValueError: none at all, a rank twice, ranks of trainings of different sizes,
            numbers that no training has, or nothing that any of them did.
    """
    for trace in traces:
        _require_possible(trace)
    traces = split(sorted(traces, key=lambda trace: trace.rank))
    world_size = _world_size(traces)
    clocks = offsets(traces)
    traces = [
        _moved(trace, round(clock.seconds * 1e9))
        for trace, clock in zip(traces, clocks, strict=True)
    ]
    origin_ns = _origin_ns(traces)
    traces = [_moved(trace, origin_ns) for trace in traces]
    found, how = iterations(traces)
    numbered = [_iterations(trace, found) for trace in traces]
    least = _least_ends(traces)
    exchange = _exchange(traces)
    fitted = fitted_ends(traces, numbered, least) if exchange == "allreduce" else {}
    least |= fitted
    error_ns = round(max(_errors_s(clocks)) * 1e9)
    places = places_of(traces, numbered, error_ns)
    groups = _groups(traces)
    channels = {group.key: channel for channel, group in enumerate(groups)}
    spans = [
        [*_computation(trace), *_collectives(trace, numbers, own, least, (exchange, channels))]
        for trace, numbers, own in zip(traces, numbered, places, strict=True)
    ]
    shown, cut = _shown(traces, spans, _first_whole(traces, numbered), last)
    by_rank: list[list[Span]] = [[] for _ in range(world_size)]
    for trace, own in zip(traces, spans, strict=True):
        by_rank[trace.rank] = [span for span in own if span.iteration in shown]
    theirs = dict.fromkeys(note for trace in traces for note in trace.notes)
    said = [
        *notes,
        *theirs,
        how,
        cut,
        *_notes(traces, world_size, fitted),
        *_clock_notes(traces, clocks),
    ]
    metadata = {**_metadata(traces), "clock_error_s": f"{max(_errors_s(clocks)):.9f}"}
    metadata |= {f"{NOTE}{number}": text for number, text in enumerate(filter(None, said))}
    made = merge(by_rank, name=name, metadata=metadata)
    told = len(groups) > 1 or any(group.ranks or group.description for group in groups)
    return replace(made, groups=groups) if told else made


def _metadata(traces: Sequence[RankTrace]) -> dict[str, str]:
    found = {"tool": traces[0].tool, "exchange": _exchange(traces)}
    if all(one.detail.startswith("gloo:") for trace in traces for one in trace.launches):
        found["device"] = "cpu"
    hosts = {trace.host for trace in traces}
    if not hosts & {"", traces[0].tool}:
        found[HOSTS] = str(len(hosts))
    if gradients := usual(trace.gradients for trace in traces):
        found[GRADIENTS] = to_text(gradients)
    return found


def _groups(traces: Sequence[RankTrace]) -> tuple[Group, ...]:
    """Return the groups in which ranks communicated, that of all ranks first."""
    used = {one.group.key: one.group for trace in traces for one in trace.launches}
    rows = sorted(used.values(), key=lambda g: (-len(g.ranks), len(g.name), g.name, g.ranks[:1]))
    return tuple(rows)


def _shown(
    traces: Sequence[RankTrace], spans: Sequence[Sequence[Span]], first: int, last: int | None
) -> tuple[range, str]:
    """Return the iterations to show, and why a rank's last ones are not among them.

    A process that is killed leaves what it had written; of the others there is more.
    """
    ends = {
        trace.rank: max((span.iteration for span in own), default=-1)
        for trace, own in zip(traces, spans, strict=True)
    }
    ended = min((end for end in ends.values() if end >= first), default=first)
    note = ""
    if max(ends.values()) > ended:
        ranks = [str(rank) for rank, end in ends.items() if end == ended]
        note = (
            f"what was written of ranks {', '.join(ranks)} ends with iteration {ended}: later ones "
            f"are left out, of other ranks up to {max(ends.values())}"
        )
    if last is not None:
        first = max(first, ended - last + 1)
    return range(first, ended + 1), note


def _require_possible(trace: RankTrace) -> None:
    """Refuse numbers of a damaged file before anything is as large as they say."""
    if not 0 <= trace.rank < MAX_RANKS:
        raise InvalidValueError("the rank of a file", trace.rank, f"in 0..{MAX_RANKS - 1}")
    if trace.world_size > MAX_RANKS:
        rule = f"at most {MAX_RANKS}"
        raise InvalidValueError("the world size of a file", trace.world_size, rule)
    rows = [(one.collective, one.start_ns, one.end_ns or 0, one.nbytes) for one in trace.launches]
    rows += [(one.name, one.start_ns, one.end_ns, 0) for one in trace.work]
    for name, *numbers in rows:
        if max(map(abs, numbers)) >= _MOST:
            what = f"begin, end and bytes of {name} on rank {trace.rank}"
            raise InvalidValueError(what, numbers, "numbers of 62 bits, times in nanoseconds")


def _world_size(traces: Sequence[RankTrace]) -> int:
    if not traces:
        raise InvalidValueError("the recorded files", [], "at least one")
    again = [rank for rank, times in Counter(t.rank for t in traces).items() if times > 1]
    if again:
        rule = f"one of each rank; there are several of rank {again[0]}"
        raise InvalidValueError("the ranks of the files", [t.rank for t in traces], rule)
    sizes = sorted({trace.world_size for trace in traces if trace.world_size})
    if len(sizes) > 1:
        raise InvalidValueError("the world sizes of the files", sizes, "the same in all")
    return max(*sizes, traces[-1].rank + 1, 1)


def _moved(trace: RankTrace, by_ns: int) -> RankTrace:
    """Return a rank as a clock shows it that is ``by_ns`` behind."""
    return trace._replace(
        launches=tuple(
            one._replace(
                start_ns=one.start_ns - by_ns,
                end_ns=None if one.end_ns is None else one.end_ns - by_ns,
            )
            for one in trace.launches
        ),
        work=tuple(
            one._replace(start_ns=one.start_ns - by_ns, end_ns=one.end_ns - by_ns)
            for one in trace.work
        ),
        marks=tuple((moment - by_ns, number) for moment, number in trace.marks),
    )


def _origin_ns(traces: Sequence[RankTrace]) -> int:
    starts_ns = [one.start_ns for trace in traces for one in trace.launches[:1]]
    starts_ns += [one.start_ns for trace in traces for one in trace.work]
    if not starts_ns:
        rule = "at least one collective or step of an optimizer"
        raise InvalidValueError("the ranks' recording", "empty", rule)
    return min(starts_ns)


def _iterations(trace: RankTrace, found: dict[Hashable, int]) -> list[int]:
    if trace.marks:
        return [iteration_of(trace, launch) for launch in trace.launches]
    numbers, last = [], 0
    for launch in trace.launches:
        last = found.get(launch.key, last)
        numbers.append(last)
    return numbers


def _least_ends(traces: Sequence[RankTrace]) -> dict[Hashable, int]:
    """Return when each collective ended at the earliest, where that is more than its start.

    That is when the last rank came, and, where devices say how long they ran it, the shortest of
    these times later: the last rank waited for no other.
    """
    arrived: dict[Hashable, int] = {}
    took: dict[Hashable, int] = {}
    for trace in traces:
        for launch in trace.launches:
            if launch.key is not None and launch.collective in OF_ALL_RANKS:
                key, own = launch.key, launch.took_ns or 0
                arrived[key] = max(arrived.get(key, launch.start_ns), launch.start_ns)
                took[key] = min(took.get(key, own), own)
    return {key: moment + took[key] for key, moment in arrived.items()}


def _first_whole(traces: Sequence[RankTrace], numbered: Sequence[list[int]]) -> int:
    """Return the first iteration of which no rank forgot a part."""
    cut = [own[0] + 1 for trace, own in zip(traces, numbered, strict=True) if trace.lost and own]
    return max(cut, default=0)


def _computation(trace: RankTrace) -> Iterator[Span]:
    for work in trace.work:
        yield Span(
            name=work.name,
            lane=work.lane,
            rank=trace.rank,
            start_s=work.start_ns * 1e-9,
            end_s=work.end_ns * 1e-9,
            iteration=iteration_of(trace, work),
        )


def _collectives(
    trace: RankTrace,
    numbers: Sequence[int],
    places: Sequence[int],
    least: dict[Hashable, int],
    told: tuple[str, dict[tuple[str, int, int], int]],
) -> Iterator[Span]:
    """Yield the collectives of a rank.

    Args:
        trace: the rank.
        numbers: the iteration of each.
        places: which of its kind each is in its iteration and group.
        least: when each ended at the earliest, by its key.
        told: the exchange, and group -> channel.
    """
    exchange, channels = told
    for launch, number, place in zip(trace.launches, numbers, places, strict=True):
        bucket = launch.collective == "all_reduce" and exchange == "allreduce"
        what = "bucket" if bucket else launch.collective
        end_ns = least.get(launch.key, 0) if launch.end_ns is None else launch.end_ns
        yield Span(
            name=BESIDE if bucket and launch.integers else f"{what} {place}",
            lane=LANE_OF.get(launch.collective, "push"),
            rank=trace.rank,
            start_s=launch.start_ns * 1e-9,
            end_s=max(end_ns, launch.start_ns) * 1e-9,
            iteration=number,
            channel=channels[launch.group.key],
            nbytes=launch.nbytes,
            detail=launch.detail,
        )


def _exchange(traces: Sequence[RankTrace]) -> str:
    used = {launch.collective for trace in traces for launch in trace.launches}
    if any(trace.sharded for trace in traces):
        return "fsdp"
    return "sharded" if "reduce_scatter" in used else "allreduce"


def _notes(
    traces: Sequence[RankTrace], world_size: int, fitted: Mapping[Hashable, int]
) -> list[str]:
    notes = []
    open_ended = [one for trace in traces for one in trace.launches if one.end_ns is None]
    unknown = sum(one.key not in fitted for one in open_ended)
    if len(open_ended) > unknown:
        notes.append(
            f"when {len(open_ended) - unknown} collectives ended is not recorded: the last before "
            "a step is taken to end where the first rank begins that step, and those before it to "
            "be as fast; what ranks do in between, such as clipping, counts as transfer"
        )
    if unknown:
        notes.append(
            f"when {unknown} collectives ended is not known: they end where the last rank came to "
            "them, so waiting is measured and the transfer is missing"
        )
    lanes = {work.lane for trace in traces for work in trace.work}
    if "backward" not in lanes:
        notes.append("forward and backward are not recorded: they are part of what seems idle")
    elif "forward" not in lanes:
        notes.append(
            "input, forward and backward are not told apart: what a rank does from a step to its "
            "last collective before the next counts as backward"
        )
    most = max(trace.lost for trace in traces)
    if most:
        notes.append(
            f"up to {most} earlier collectives of a rank were forgotten; `syncopate record "
            "--entries` and TORCH_FR_BUFFER_SIZE say how many are kept"
        )
    between_two = any(one.collective in BETWEEN_TWO for trace in traces for one in trace.launches)
    if between_two and "backward" in lanes:
        notes.append(
            "ranks send to each other (send, recv): they are taken to be the stages of a pipeline"
        )
    missing = sorted(set(range(world_size)) - {trace.rank for trace in traces})
    if missing:
        one = len(missing) == 1
        notes.append(
            f"rank{'' if one else 's'} {spelled(missing)} {'has' if one else 'have'} no file, and "
            "may have been later than those that are shown"
        )
    return notes


def spelled(numbers: Sequence[int]) -> str:
    """Return rising numbers in words: ``"0, 2 and 4 to 7"``."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    said = []
    for row in rows:
        said += [f"{row[0]} to {row[-1]}"] if len(row) > 2 else [str(number) for number in row]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _clock_notes(traces: Sequence[RankTrace], clocks: Sequence[ClockOffset]) -> list[str]:
    notes = []
    moved = [str(trace.rank) for trace, clock in zip(traces, clocks, strict=True) if clock.seconds]
    if moved:
        notes.append(
            f"the clocks of ranks {', '.join(moved)} were moved: no rank is done with a "
            "collective before all came to it"
        )
    known = _errors_s(clocks)
    if max(known) > _SAID_S:
        notes.append(f"clocks of hosts agree to {format_seconds(max(known))}")
    if len(known) < len(clocks):
        notes.append(
            "nothing says how far the clocks of hosts are apart; ranks of one host share one"
        )
    return notes


def _errors_s(clocks: Sequence[ClockOffset]) -> list[float]:
    """Return how far clocks may be off, where anything tells."""
    return [clock.error_s for clock in clocks if math.isfinite(clock.error_s)]

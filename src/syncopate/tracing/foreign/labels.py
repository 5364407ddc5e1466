"""Labels: one label that stands for several groups of ranks.

A table may call every tensor-parallel group ``"tp"``, and where nothing names groups, a profile has
the stream of a device instead. The k-th collective of such a label is one in each group. Ranks of
one group are done with their collectives together, ranks of two groups when these happen to be: how
much later one ends than the other varies far less within a group. Ranks of a host with a slow link
end together as well. But no rank of a group is done with a collective before another begins it. So
a label is split where ends fall into groups of equal size, and a rank of one group was often done
before one of another began; then other labels are, whose groups have a rank of each of these.
What clocks are wrong by is in none of it: the median is taken off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from syncopate.artifacts.timeline import Group
from syncopate.artifacts.timelines.linked import linked
from syncopate.artifacts.timelines.spans import Mask, Numbers, Times
from syncopate.tracing.foreign.chrome.device import ranks_of
from syncopate.tracing.foreign.iterations import iteration_of
from syncopate.tracing.foreign.profiler import keyed
from syncopate.tracing.foreign.ranktrace import BETWEEN_TWO, OF_ALL_RANKS, RankTrace

_FAR = 5.0
"""Ends of two groups vary by so many times as much as those of one."""

_LATE_NS, _OFTEN = 50_000, 0.02
"""One is done before another begins by this time, in more than this part of the collectives."""

_FEWEST = 8
"""Collectives that tell groups."""

_Label = tuple[str, int, int]


class _Split(NamedTuple):
    """The groups of a label, as places of ranks, and whether one was done before another began."""

    groups: list[tuple[int, ...]]
    sure: bool


def split(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return ranks whose groups have their ranks, where a label stands for several of them."""
    found = {label: _splits(*times) for label, times in _seen(traces)}
    theirs: dict[tuple[int, _Label], tuple[int, ...]] = {}
    groups: list[tuple[int, ...]] = []
    for label, one in _chosen(found).items():
        for group in one.groups:
            groups.append(group)
            ranks = tuple(traces[which].rank for which in group)
            theirs |= {(which, label): ranks for which in group}
    for label, pipelines in _pipelines(traces, groups):
        for group in pipelines:
            ranks = tuple(traces[which].rank for which in group)
            theirs |= {(which, label): ranks for which in group}
    return [_told(trace, which, theirs) for which, trace in enumerate(traces)]


def _chosen(found: Mapping[_Label, Sequence[_Split]]) -> dict[_Label, _Split]:
    """Return how labels are split: those that are sure, then those that cross these or each other.

    Ranks of a host may end together; those of two labels do not cross each other by that.
    """
    chosen = {
        label: sure[0] for label, every in found.items() if (sure := [o for o in every if o.sure])
    }
    left = [label for label in found if label not in chosen]
    for label in left:
        for one in found[label]:
            if any(_across(one, other) for other in chosen.values()):
                chosen[label] = one
                break
    for first, second in combinations([label for label in left if label not in chosen], 2):
        for one, other in product(found[first], found[second]):
            if first not in chosen and second not in chosen and _crossing(one, other):
                chosen |= {first: one, second: other}
    return chosen


def _pipelines(
    traces: Sequence[RankTrace], groups: Sequence[tuple[int, ...]]
) -> Iterator[tuple[_Label, list[tuple[int, ...]]]]:
    """Yield labels of messages of two ranks, and the pipelines that each stands for.

    Ranks that share a group that is no pipeline are a stage. Stages are equally large, and the n-th
    ranks of all of them are a pipeline, as launchers number them.
    """
    using: dict[_Label, set[int]] = defaultdict(set)
    for which, trace in enumerate(traces):
        for launch in trace.launches:
            if launch.collective in BETWEEN_TWO and not _known(trace, launch.group):
                using[launch.group.key].add(which)
    for label, ranks in using.items():
        together = np.zeros((len(traces), len(traces)), bool)
        for group in groups:
            together[np.ix_(group, group)] = True
        stages = [[at for at in mine if at in ranks] for mine in _joined(together)]
        stages = [mine for mine in stages if mine]
        if len(stages) > 1 and len(stages[0]) > 1 and len({len(mine) for mine in stages}) == 1:
            yield label, list(zip(*stages, strict=True))


def _told(
    trace: RankTrace, which: int, theirs: dict[tuple[int, _Label], tuple[int, ...]]
) -> RankTrace:
    if not any((which, one.group.key) in theirs for one in trace.launches):
        return trace
    launches = []
    for one in trace.launches:
        ranks = theirs.get((which, one.group.key))
        launches.append(one._replace(group=replace(one.group, ranks=ranks)) if ranks else one)
    return keyed(trace._replace(launches=tuple(launches)))


def _across(one: _Split, other: _Split) -> bool:
    """Say whether the groups of two labels have at most one rank in common."""
    return all(len(set(a) & set(b)) < 2 for a, b in product(one.groups, other.groups))


def _crossing(one: _Split, other: _Split) -> bool:
    """Say whether the groups of two labels cross: some have one rank in common, and none has two.

    All ranks are in groups of both, or it is chance.
    """
    common = [len(set(a) & set(b)) for a, b in product(one.groups, other.groups)]
    return max(common) == 1 and sum(common) == sum(map(len, one.groups)) == sum(
        map(len, other.groups)
    )


def _known(trace: RankTrace, group: Group) -> bool:
    """Say whether the ranks of a group are told: a table has those that use its label."""
    return bool(group.ranks) and (trace.host != trace.tool or bool(ranks_of(group.name)))


def _seen(traces: Sequence[RankTrace]) -> Iterator[tuple[_Label, tuple[Times, Times]]]:
    """Yield labels without ranks, and when ranks began and ended the k-th collective of each.

    A row is a collective, a column a rank; NaN: it has none such.
    """
    rows: dict[_Label, dict[tuple[int, str, int], dict[int, tuple[int, int]]]] = defaultdict(dict)
    for which, trace in enumerate(traces):
        count: Counter[tuple[_Label, int, str]] = Counter()
        for launch in trace.launches:
            label, kind = launch.group.key, launch.collective
            if launch.end_ns is None or kind not in OF_ALL_RANKS or _known(trace, launch.group):
                continue
            number = iteration_of(trace, launch)
            key = number, kind, count[label, number, kind]
            count[label, number, kind] += 1
            rows[label].setdefault(key, {})[which] = launch.start_ns, launch.end_ns
    origin_ns = min((one.start_ns for trace in traces for one in trace.launches[:1]), default=0)
    for label, found in rows.items():
        start_ns = np.full((len(found), len(traces)), np.nan)
        end_ns = start_ns.copy()
        for at, own in enumerate(found.values()):
            for which, (begun_ns, over_ns) in own.items():
                start_ns[at, which] = begun_ns - origin_ns
                end_ns[at, which] = over_ns - origin_ns
        yield label, (start_ns, end_ns)


def _splits(start_ns: Times, end_ns: Times) -> list[_Split]:
    """Return how a label may be split into groups, the likeliest first; none: it is one."""
    there = np.flatnonzero((~np.isnan(end_ns)).sum(axis=0) >= _FEWEST)
    count = len(there)
    if count < 4:
        return []
    start_ns, end_ns = (np.ascontiguousarray(of[:, there].T) for of in (start_ns, end_ns))
    median = np.nanmedian if np.isnan(end_ns).any() else np.median
    vary_ns, before = np.full((count, count), np.inf), np.zeros((count, count), bool)
    for one in range(count):
        later_ns = end_ns - end_ns[one]
        known = (~np.isnan(later_ns)).sum(axis=1)
        told = known >= _FEWEST
        later_ns[~told] = 0.0
        middle_ns = median(later_ns, axis=1, keepdims=True)
        vary_ns[one, told] = median(np.abs(later_ns - middle_ns), axis=1)[told]
        done = end_ns[one] + middle_ns + _LATE_NS < start_ns
        before[one] = told & (done.sum(axis=1) > np.maximum(_OFTEN * known, 2))
    found = []
    for alike in _alike(vary_ns):
        groups = _joined(alike)
        if len(groups) < 2 or len({len(group) for group in groups}) > 1 or len(groups[0]) < 2:
            continue
        within = np.zeros((count, count), bool)
        for group in groups:
            within[np.ix_(group, group)] = True
        if not before[within].any():
            places = [tuple(int(there[at]) for at in group) for group in groups]
            found.append(_Split(places, bool(before.any())))
    return found


def _alike(vary_ns: Times) -> Iterator[Mask]:
    """Yield whose ends vary less than those of others by far, the widest gap first."""
    every = np.sort(np.maximum(vary_ns[~np.eye(len(vary_ns), dtype=bool)], 1e3))
    with np.errstate(invalid="ignore"):  # of ranks that have nothing in common
        steps = every[1:] / every[:-1]
    for at in np.argsort(-steps, kind="stable").tolist():
        if not steps[at] >= _FAR:
            return
        yield vary_ns <= every[at]


def _joined(together: Mask) -> list[Numbers]:
    """Return the places that go together, directly or by others."""
    one, other = np.nonzero(together | np.eye(len(together), dtype=bool))
    return linked(one, other, len(together))

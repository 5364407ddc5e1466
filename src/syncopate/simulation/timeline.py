"""From played iterations to a timeline, in the same form as a recorded one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from syncopate.artifacts.artifact import require
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, Bucket, Plan
from syncopate.artifacts.timeline import Alike, Spans, Timeline, about_servers
from syncopate.artifacts.timelines.alike import shared
from syncopate.artifacts.timelines.spans import LANES
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.functions import Costs
from syncopate.costs.model.pieces import FloatArray
from syncopate.costs.model.training import beside_s, stand_ins, weight_sync_s
from syncopate.errors import InvalidValueError
from syncopate.recipe import SERVERS, Recipe, wire_share
from syncopate.simulation.fluid import Collective
from syncopate.simulation.fsdp.traffic import groups_of, unit_traffic
from syncopate.simulation.iteration import Iteration, play_several
from syncopate.simulation.layout import Closing
from syncopate.simulation.local_sgd import averages_of, play_closing
from syncopate.simulation.ranks import Variation, play_ranks
from syncopate.simulation.traffic import Traffic, bytes_by_dtype, plan_traffic


def simulate(
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    *,
    costs: Costs | None = None,
    iterations: int = 1,
    variation: Variation | None = None,
) -> Timeline:
    """Play the first iterations of a training by a plan on a cluster.

    Iterations follow one another without a gap. The very first has no weights to pull; with a delay
    or local SGD it is the first after the warm-up. Where the plan has rank 0's weights broadcast,
    or all averaged, every so many end with that.

    Ranks that do the same at the same time have their spans kept once; without a ``variation`` all
    do. With one, a collective begins when the slowest rank has come to it.

    Args:
        workload: the model's gradients and times.
        plan: what to communicate when; it must be for this workload and this many ranks.
        cluster: the machines.
        costs: by collective and bytes on the wire; by default those of the cluster in training.
        iterations: how many to play.
        variation: how ranks differ: slow ones, slow hosts, jitter.

    Returns:
        A timeline with source ``"simulated"``. Per rank and iteration: a forward span from one wait
        for weights to the next, one backward span per tensor, a push span and, where there is one,
        a pull span per bucket (named ``"bucket 0"``, ...), a wait span for each time that
        computation stands still, and an update span. A push or pull begins when the rank comes to
        it. A push span (``"flags and buffers"``) and a pull span (``"weights of rank 0"``) may end
        it, each with a wait span; with local SGD a pull span per bucket and a wait span end every
        ``period``-th, and there are no pushes.

    Raises:
        PlanError: the plan is for another model or another number of ranks.
        InvalidValueError: fewer than one iteration, over ``MAX_SPANS`` spans, no such slow rank.
        UnknownNameError: a slow host that there is not.
    """
    require((Workload, workload), (Plan, plan), (Cluster, cluster))
    if iterations < 1:
        raise InvalidValueError("iterations", iterations, "an integer >= 1")
    plan.require_fit([(t.name, t.numel, t.dtype) for t in workload.tensors], cluster.world_size)
    _require_room(workload, plan, 1, iterations)
    paces = (variation or Variation()).paces(cluster, iterations)
    servers = plan.buckets[0].push.options.get(SERVERS)
    return Timeline(
        name=f"{workload.model}, {plan.policy}",
        source="simulated",
        world_size=cluster.world_size,
        spans=_played(workload, plan, cluster, costs, paces),
        metadata={
            "cluster": cluster.name,
            "policy": plan.policy,
            "exchange": plan.exchange,
            **({} if servers is None else about_servers(int(str(servers)), synchronous=True)),
            **({"variation": str(variation)} if variation and str(variation) else {}),
        },
    )


def stood_in(plan: Plan, cluster: Cluster) -> tuple[str, ...]:
    """Return what is simulated by another algorithm's price than its own, a sentence each.

    Args:
        plan: whose algorithms count.
        cluster: on which not all of them may have a price.

    Raises:
        UnknownNameError: an algorithm that is registered nowhere.
    """
    there = cluster if plan.sharding is None else groups_of(cluster, plan.sharding.ranks).inner
    return tuple(one.told for one in stand_ins(there, plan))


def _played(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, paces: FloatArray
) -> Spans:
    """Return the spans of all ranks, whose pace in each iteration is given; alike ones once.

    Raises:
        InvalidValueError: more spans than have room.
    """
    rows, first, alike = np.unique(paces, axis=0, return_index=True, return_inverse=True)
    iterations = paces.shape[1]
    _require_room(workload, plan, len(rows), iterations)
    asked = _asked(workload, plan, cluster, costs, iterations)
    if len(rows) == 1 and (rows == 1).all():
        played = iter([[*_of_equal_ranks(asked)]])
    else:
        played = _of_ranks(asked, rows)
    parts, classes = {}, []
    for place, (rank, of_rank) in enumerate(zip(first.tolist(), played, strict=True)):
        parts[rank] = _spans(rank, of_rank)
        classes.append(Alike.of(rank, np.flatnonzero(alike.ravel() == place).tolist()))
    spans = Spans.joined([part for _, part in sorted(parts.items(), key=lambda one: one[0])])
    classes = sorted((one for one in classes if one.ranks), key=lambda one: one.rank)
    return shared(spans, classes, cluster.world_size)


def _spans(rank: int, of_rank: Iterable[tuple[_Pattern, float]]) -> Spans:
    """Return the spans of one rank, given what happens in each iteration and when it begins."""
    texts: dict[str, int] = {}
    rows = [
        (
            texts.setdefault(fields["name"], len(texts)),
            _LANE[fields["lane"]],
            origin_s + start,
            origin_s + end,
            at,
            fields.get("channel", 0),
            fields.get("nbytes", 0),
            texts.setdefault(fields.get("detail", ""), len(texts)),
        )
        for at, (pattern, origin_s) in enumerate(of_rank)
        for start, end, fields in pattern
    ]
    names = ("name", "lane", "start_s", "end_s", "iteration", "channel", "nbytes", "detail")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {"lane": ()}
    return Spans(tuple(texts), columns | {"rank": np.full(len(rows), rank)})


_LANE = {lane: place for place, lane in enumerate(LANES)}


def _require_room(workload: Workload, plan: Plan, ranks: int, iterations: int) -> None:
    """Refuse a timeline of more spans than have room, before anything is played.

    Args:
        workload: the model's gradients and times.
        plan: what is communicated.
        ranks: those that differ from each other; of others spans are not kept.
        iterations: how many.

    Raises:
        InvalidValueError: says how many iterations, or ranks, there is room for.
    """
    # A span each, and the forward, the update and what is beside them.
    of_one = len(workload.tensors) + sum(len([*bucket.recipes]) for bucket in plan.buckets)
    if plan.sharding is not None:
        of_one += 4 * len(plan.buckets)  # the other gathers, the all-reduces, and waits for them
    if of_one * ranks * iterations <= MAX_SPANS:
        return
    held = f"a rank has about {of_one} spans in an iteration, and timelines hold {MAX_SPANS}"
    if fit := MAX_SPANS // (of_one * ranks):
        where = f"on {ranks} ranks that differ" if ranks > 1 else "to be played"
        raise InvalidValueError("iterations", iterations, f"at most {fit} {where}: {held}")
    rule = (
        f"at most {MAX_SPANS // of_one}: {held}. Make some ranks slow in place of a jitter of all"
    )
    raise InvalidValueError("ranks that differ from each other", ranks, rule)


MAX_SPANS = 1 << 22
"""Of a timeline that is simulated: what writes it takes about 300 bytes of memory for each."""

_ROUNDING_S = 1e-9

_Pattern = list[tuple[float, float, dict[str, Any]]]
"""Start, end and the other fields of every span of one rank in one iteration."""


class _Asked(NamedTuple):
    """What is played.

    Attributes:
        workload: the model.
        plan: its buckets.
        cluster: the machines.
        traffic: the messages of an iteration.
        share: of the bytes of gradients, what goes on the wire.
        endings: what ends each iteration, one after the other, by its kind.
    """

    workload: Workload
    plan: Plan
    cluster: Cluster
    traffic: Traffic
    share: float
    endings: list[list[tuple[str, Closing]]]


_TOLD, _SYNC, _AVERAGE = "told", "weights of rank 0", "averages"
_APART = -1
"""A channel of what ends an iteration, beside which nothing else goes on."""


def _asked(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, count: int
) -> _Asked:
    local, every = plan.local_sgd, plan.weight_sync_period
    average: Closing = ()
    if local is not None:
        share = 1.0
        traffic, averaged = averages_of(workload, plan, cluster, costs)
        average = averaged.pushes
    else:
        share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
        if plan.sharding is not None:
            traffic = unit_traffic(workload, plan, cluster, costs)
        else:
            traffic = plan_traffic(workload, plan, cluster, costs, share)
    told = _alone(beside_s(cluster, workload, plan.exchange, share))
    endings: list[list[tuple[str, Closing]]] = []
    for number in range(1, count + 1):
        if local is not None:
            due = number % local.period == 0
            endings.append([(_AVERAGE, average), (_TOLD, told)] if due else [])
        elif every and number % every == 0:
            synced = _alone(weight_sync_s(cluster, workload.nbytes, costs))
            endings.append([(_TOLD, told), (_SYNC, synced)])
        else:
            endings.append([(_TOLD, told)])
    return _Asked(workload, plan, cluster, traffic, share, endings)


def _alone(lasts_s: float) -> Closing:
    return (Collective(0.0, lasts_s, channel=_APART),)


def _of_equal_ranks(asked: _Asked) -> Iterator[tuple[_Pattern, float]]:
    """Yield what happens in each iteration, and when it begins."""
    interference = asked.workload.interference_on(asked.cluster)
    several = play_several(
        asked.workload, asked.traffic, interference, len(asked.endings), asked.plan.delay
    )
    origin_s = 0.0
    for played, ends in zip(several, asked.endings, strict=True):
        pattern, end_s = _pattern(asked, played), played.iteration_s
        for kind, closing in ends:
            run = play_closing(closing, interference)
            spans_s = zip(run.starts_s, run.ends_s, strict=True)
            times_s = [(end_s + start_s, end_s + stop_s) for start_s, stop_s in spans_s]
            pattern += _closed(asked, kind, end_s, times_s)
            end_s += run.finishes_s[-1]
        yield pattern, origin_s
        origin_s += end_s


def _of_ranks(asked: _Asked, paces: FloatArray) -> Iterator[list[tuple[_Pattern, float]]]:
    """Yield for each row of paces what happens in each iteration, and when it begins."""
    endings = [
        [(kind, closing) for kind, closing in ends if any(one.duration_s for one in closing)]
        for ends in asked.endings
    ]
    several = play_ranks(
        asked.workload,
        asked.traffic,
        asked.workload.interference_on(asked.cluster),
        paces,
        delay=asked.plan.delay,
        closings=[[one for _, one in ends] for ends in endings],
    )
    for of_rank in several:
        found = []
        for one, ends in zip(of_rank, endings, strict=True):
            pattern, end_s = _pattern(asked, one.played), one.played.iteration_s
            for (kind, _), times_s in zip(ends, one.closings, strict=True):
                pattern += _closed(asked, kind, end_s, times_s)
                end_s = max(stop_s for _, stop_s in times_s)
            found.append((pattern, one.origin_s))
        yield found


def _closed(
    asked: _Asked, kind: str, begin_s: float, times_s: Sequence[tuple[float, float]]
) -> _Pattern:
    """Return what one rank does to end an iteration.

    Args:
        asked: what is played.
        kind: what it does.
        begin_s: when it is there.
        times_s: when it comes to each collective, and has what it wants.
    """
    if kind == _AVERAGE:
        pattern: _Pattern = [
            (*spans_s, _of_bucket(index, bucket, "pull", bucket.push))
            for index, (bucket, spans_s) in enumerate(zip(asked.plan.buckets, times_s, strict=True))
        ]
        last_s = max(end_s for _, end_s in times_s)
        return [*pattern, (begin_s, last_s, {"name": "wait for averages", "lane": "wait"})]
    ((start_s, end_s),) = times_s
    if end_s <= start_s:
        return []
    workload, name, wait = asked.workload, _SYNC, "wait for weights"
    lane, nbytes = "pull", workload.nbytes
    if kind == _TOLD:
        name, wait = "flags and buffers", "wait for flags and buffers"
        lane, nbytes = "push", workload.beside_nbytes(asked.cluster.world_size)
    return [
        (start_s, end_s, {"name": name, "lane": lane, "nbytes": nbytes}),
        (start_s, end_s, {"name": wait, "lane": "wait", "nbytes": 0}),
    ]


def _of_bucket(
    index: int, bucket: Bucket, lane: str, recipe: Recipe, share: float = 1.0
) -> dict[str, Any]:
    """Return the fields of a bucket's span, of whose bytes ``share`` go on the wire."""
    return {
        "name": f"bucket {index}",
        "lane": lane,
        "channel": recipe.channel,
        "nbytes": round(bucket.nbytes * share),
        "detail": recipe.algorithm,
    }


def _pattern(asked: _Asked, played: Iteration) -> _Pattern:
    workload, plan, share = asked.workload, asked.plan, asked.share
    backward_end, done = played.backward_end_s, played.iteration_s - played.update_s
    waits = "wait for pushes" if plan.sharding is None else _UNIT_WAIT
    pattern = [*_forward(workload, played), *_backward(workload, played, waits)]
    narrow = ("push", "pull") if EXCHANGES[plan.exchange].pulls_gradients else ("push",)
    phases = {"push": (played.starts_s, played.ends_s)} if played.ends_s else {}
    if played.pull_ends_s:
        phases = {"pull": (played.pull_starts_s, played.pull_ends_s)} | phases
    for lane, (starts, ends) in phases.items():
        carried = [(i, one, dict(one.recipes).get(lane)) for i, one in enumerate(plan.buckets)]
        there = [(i, one, recipe) for i, one, recipe in carried if recipe is not None]
        for (index, bucket, recipe), start, end in zip(there, starts, ends, strict=True):
            fields = _of_bucket(index, bucket, lane, recipe, share if lane in narrow else 1.0)
            pattern.append((start, end, fields))
    pattern += _of_units(plan, played)
    if done > backward_end:
        pattern.append((backward_end, done, {"name": "wait for communication", "lane": "wait"}))
    if played.update_s > 0:
        pattern.append((done, played.iteration_s, {"name": "update", "lane": "update"}))
    return pattern


def _of_units(plan: Plan, played: Iteration) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Yield the gathers for backward of units, and the all-reduces between groups of ranks."""
    if plan.sharding is None:
        return
    again = plan.sharding.again(len(plan.buckets))
    for index, (start_s, end_s) in zip(again, played.again_s, strict=True):
        bucket = plan.buckets[index]
        fields = _of_bucket(index, bucket, "pull", bucket.pull or bucket.push)
        yield start_s, end_s, fields | {"name": f"bucket {index} again"}
    for index, (start_s, end_s) in enumerate(played.across_s):
        nbytes = plan.buckets[index].nbytes
        fields = {"name": f"all_reduce {index}", "lane": "push", "channel": 2, "nbytes": nbytes}
        yield start_s, end_s, fields


def _forward(workload: Workload, played: Iteration) -> _Pattern:
    """Forward, and the waits and updates that cut it."""
    cuts = [(start_s, end_s, _WAIT) for start_s, end_s in played.waits_s]
    cuts += [(start_s, end_s, _UPDATE) for start_s, end_s in _updates(played)]
    pattern: _Pattern = []
    start = 0.0
    for cut_start, cut_end, fields in sorted(cuts, key=lambda cut: cut[:2]):
        if cut_start > start:
            pattern.append((start, cut_start, {"name": "forward", "lane": "forward"}))
        pattern.append((cut_start, cut_end, dict(fields)))
        start = cut_end
    end = max(float(played.wall_s(_forward_s(workload, played))), start)
    if end > start or not pattern:
        pattern.append((start, end, {"name": "forward", "lane": "forward"}))
    return pattern


_WAIT = {"name": "wait for weights", "lane": "wait"}
_UNIT_WAIT = "wait for weights or pushes"
_UPDATE = {"name": "update", "lane": "update"}


def _updates(played: Iteration) -> Iterator[tuple[float, float]]:
    """Yield when each stretch of updates in forward began and ended."""
    for begin_s, lasts_s in played.deferred:
        end_s = float(played.wall_s(begin_s + lasts_s))
        # What stood still before the update had made as much progress.
        stood_s = (b for a, b in played.waits_s if a <= played.wall_s(begin_s) + _ROUNDING_S <= b)
        yield max(float(played.wall_s(begin_s)), *stood_s, 0.0), end_s


def _forward_s(workload: Workload, played: Iteration) -> float:
    """Return the progress at which forward is over, the updates in it included."""
    return workload.forward_s + sum(update.lasts_s for update in played.deferred)


def _backward(workload: Workload, played: Iteration, waits: str) -> _Pattern:
    """Backward, tensor by tensor, and what it waits for in between."""
    pattern: _Pattern = []
    last_wait = max((end for _, end in played.waits_s), default=0.0)
    longer_s = _forward_s(workload, played) - workload.forward_s
    ready_s = [at_s + longer_s for at_s in (workload.forward_s, *workload.ready_s)]
    bounds = played.wall_s(ready_s).tolist()
    # Of weights that forward needs at its very end, it has progressed as far before the wait.
    bounds[0] = max(bounds[0], last_wait)
    for wait_start, wait_end in played.push_waits_s:
        pattern.append((wait_start, wait_end, {"name": waits, "lane": "wait"}))
    for tensor, (reached, end) in zip(workload.tensors, pairwise(bounds), strict=True):
        stood = (b for a, b in played.push_waits_s if a <= reached + _ROUNDING_S < b)
        start = next(stood, reached)
        if end > start:
            pattern.append((start, end, {"name": tensor.name, "lane": "backward"}))
    if played.backward_end_s > bounds[-1]:
        fields = {"name": "backward", "lane": "backward"}
        pattern.append((bounds[-1], played.backward_end_s, fields))
    return pattern

"""Workload: what a recorded training computes and sends, for predictions elsewhere.

Times of forward, backward and update are medians over ranks and iterations, without waits and
pauses. Gradients are those that autograd had one by one, where the recording tells them
(torch.profiler with shapes), without their names, but with those of FSDP2's units. Most recordings
know messages alone: what a bucket carries is taken for pieces of up to ``PIECE_BYTES`` that become
ready evenly between the bucket before it and its own ready time, as the share of backward that was
done by then. So a plan may cut buckets anew, and large tensors, which such a recording does not
tell, may be cut where the training could not. Where ranks share the update it is the sum of theirs;
what parameter servers do is not in it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from syncopate.analysis import sweep
from syncopate.analysis.collectives import EXCHANGE
from syncopate.analysis.overlap import recorded_overlap
from syncopate.analysis.work import Work, last_end_s, steady, works
from syncopate.artifacts.plan import FSDP, ROOTED, SHARDED
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.gradients import (
    BESIDE,
    GRADIENTS,
    UNUSED,
    Seen,
    name_of,
    of_text,
)
from syncopate.artifacts.timelines.spans import Spans, Times
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import InvalidValueError
from syncopate.units import MIB, dtype_bytes

PIECE_BYTES = MIB
"""What a piece of a bucket carries at most."""

_MOST_PIECES = 32
"""Of one bucket."""

_PADDING = 0.01
"""Of what buckets carry; more or less than that is not what was seen of gradients."""

_UNUSED = 0.5
"""Of what buckets carry, parameters that had no gradient are less than this; else it is not known
what they carry."""

_SHARING = (SHARDED, ROOTED, FSDP)
_ELEMENT_BYTES = 4
_SLACK = 1 + 1e-9


class _Bucket(NamedTuple):
    """A push of one iteration of one rank.

    Attributes:
        name: its own.
        nbytes: what it carried.
        done: which share of backward was done when all of it was there.
    """

    name: str
    nbytes: int
    done: float


def recorded_workload(timeline: Timeline) -> Workload:
    """Return the workload of a recorded training.

    Args:
        timeline: of a data-parallel training, recorded or simulated.

    Raises:
        InvalidValueError: it has no forward, no backward or no push to learn from.
    """
    found = works(timeline)
    counted = set(steady([work.iteration for work in found]))
    kept = [work for work in found if work.iteration in counted]
    forward_s, backward_s = _usual_s(kept, "forward"), _usual_s(kept, "backward")
    if backward_s <= 0:
        _refuse(timeline, "spans of backward, of which gradients come")
    buckets = _buckets(timeline, counted)
    if not buckets:
        _refuse(
            timeline,
            "pushes with their bytes (torch.profiler tells them on CPUs with record_shapes=True)",
        )
    gradients = _seen(timeline, buckets)
    tensors = tuple(_tensors(gradients, backward_s) or _pieces(buckets, backward_s))
    if gradients:
        tensors += tuple(_unused(gradients, buckets))
    model = timeline.metadata.get("model", timeline.name)
    return Workload(
        model=model,
        tensors=tensors,
        forward_s=forward_s,
        backward_s=max(backward_s, sum(tensor.backward_s for tensor in tensors)) * _SLACK,
        update_s=_update_s(timeline, kept),
        interference=recorded_overlap(
            timeline.columns.take(np.isin(timeline.columns.iteration, sorted(counted)))
        ),
        metadata={
            "recorded": timeline.name,
            "ranks": str(timeline.world_size),
            **{key: timeline.metadata[key] for key in _COPIED if key in timeline.metadata},
        },
    )


def assumed(timeline: Timeline, found: Workload) -> str:
    """Return the assumptions of ``found``, the workload of a recording, in words."""
    counted = set(steady([work.iteration for work in works(timeline)]))
    single = _seen(timeline, _buckets(timeline, counted))
    sizes = (
        "each as large and as early as autograd had it, without its name"
        if single
        else "what a bucket carried is taken for pieces of up to a mebibyte that are ready one "
        "after the other"
    )
    beside = ""
    if found.interference is not None and not found.interference.is_ideal:
        stretch = found.interference.collective_stretch
        beside = f", and messages beside it take {stretch:.2f} times as long"
    return (
        f"gradients and times are those of {timeline.name}: {sizes}; computation lasts as long as "
        f"it did beside that run's communication{beside}"
    )


def recorded_iteration_s(timeline: Timeline) -> float | None:
    """Return the median time from one iteration's end to the next's; None for a single one."""
    ends_s = sorted(last_end_s(works(timeline)).items())
    lasts_s = [
        after_s - before_s
        for (one, before_s), (other, after_s) in pairwise(ends_s)
        if other == one + 1
    ]
    return statistics.median(lasts_s) if lasts_s else None


_COPIED = ("device", "batch", "torch")


def _refuse(timeline: Timeline, lacking: str) -> None:
    rule = f"one of a data-parallel training, with {lacking}; a workload of `syncopate profile` "
    raise InvalidValueError("timeline", timeline.name, rule + "says the same")


def _usual_s(found: Sequence[Work], lane: str) -> float:
    """Return the median over ranks and iterations; 0 where most have none."""
    return statistics.median(work.computing_s.get(lane, 0.0) for work in found) if found else 0.0


def _update_s(timeline: Timeline, found: Sequence[Work]) -> float:
    """Return the time of a whole update: of all ranks together, where they share it."""
    if timeline.metadata.get(EXCHANGE) not in _SHARING:
        return _usual_s(found, "update")
    ranks = {work.rank for work in found}
    return sum(_usual_s([work for work in found if work.rank == rank], "update") for rank in ranks)


def _buckets(timeline: Timeline, counted: set[int]) -> list[_Bucket]:
    """Return the buckets of the layout that most iterations of ranks have, by readiness."""
    spans = timeline.columns
    if timeline.metadata.get(EXCHANGE) == FSDP:
        # Between groups of ranks shards are all-reduced once more.
        again = [text for text in spans.texts if text.startswith("all_reduce ")]
        spans = spans.take(~spans.named(again))
    layouts: dict[tuple[tuple[str, int], ...], list[tuple[float, ...]]] = defaultdict(list)
    for _, mine in sweep.groups(spans.rank):
        of_rank = spans.take(mine)
        for iteration, rows in sweep.groups(of_rank.iteration):
            if iteration in counted and (found := _of_iteration(of_rank.take(rows))):
                key = tuple((one.name, one.nbytes) for one in found)
                layouts[key].append(tuple(one.done for one in found))
    if not layouts:
        return []
    usual = max(layouts, key=lambda layout: len(layouts[layout]))
    done = np.median(np.array(layouts[usual]), axis=0)
    made = [
        _Bucket(name, nbytes, float(share))
        for (name, nbytes), share in zip(usual, done, strict=True)
    ]
    return sorted(made, key=lambda one: one.done)


def _of_iteration(spans: Spans) -> list[_Bucket]:
    """Return the pushes of a rank in an iteration, in the order of their names' first ready time.

    A bucket travels as one message for each dtype; each is one here.
    """
    back = spans.take(spans.in_lanes("backward"))
    pushes = spans.take(spans.in_lanes("push") & (spans.nbytes > 0) & ~spans.named((BESIDE,)))
    whole_s = float((back.end_s - back.start_s).sum())
    if not len(pushes) or whole_s <= 0:
        return []
    ready_s = np.where(np.isfinite(pushes.ready_s), pushes.ready_s, pushes.launched_s)
    ready_s = np.where(np.isfinite(ready_s), ready_s, pushes.start_s)
    done = _done_s(back, ready_s) / whole_s
    names = [pushes.texts[place] for place in pushes.name.tolist()]
    counts: Counter[str] = Counter()
    found = []
    for name, nbytes, share in zip(names, pushes.nbytes.tolist(), done.tolist(), strict=True):
        counts[name] += 1
        label = name if counts[name] == 1 else f"{name} ({counts[name]})"
        found.append(_Bucket(label, nbytes, share))
    return sorted(found, key=lambda one: one.name)


def _done_s(back: Spans, moments_s: Times) -> Times:
    """Return how many seconds of backward spans were over at each moment."""
    over = np.minimum(back.end_s[None], moments_s[:, None]) - back.start_s[None]
    return np.asarray(np.maximum(over, 0.0).sum(axis=1))


def _seen(timeline: Timeline, buckets: Sequence[_Bucket]) -> tuple[Seen, ...]:
    """Return the gradients that were seen one by one, if the buckets carried them and no others.

    One that no bucket carried is left out.
    """
    seen = of_text(timeline.metadata[GRADIENTS]) if GRADIENTS in timeline.metadata else ()
    sizes = [math.prod(one.shape) * dtype_bytes(one.dtype) for one in seen]
    carried = sum(bucket.nbytes for bucket in buckets)
    more = sum(sizes) - carried
    if more > 0 and more in sizes:  # of an input, say, which is the last to have one
        place = len(sizes) - 1 - sizes[::-1].index(more)
        return (*seen[:place], *seen[place + 1 :])
    return seen if -_UNUSED * carried <= more <= _PADDING * carried else ()


def _unused(gradients: Sequence[Seen], buckets: Sequence[_Bucket]) -> Iterator[GradientTensor]:
    """Yield what buckets carried beside gradients that were seen: zeros of unused parameters."""
    seen = sum(math.prod(one.shape) * dtype_bytes(one.dtype) for one in gradients)
    carried = sum(bucket.nbytes for bucket in buckets)
    if carried - seen > _PADDING * carried:
        dtype = Counter(one.dtype for one in gradients).most_common(1)[0][0]
        numel = (carried - seen) // dtype_bytes(dtype)
        yield GradientTensor(name=UNUSED, numel=numel, dtype=dtype)


def _tensors(gradients: Sequence[Seen], backward_s: float) -> list[GradientTensor]:
    """Return gradients that were seen, in ready order."""
    edges = [0.0, *(one.done * backward_s for one in gradients)]
    return [
        GradientTensor(
            name=name_of(number, one.shape, one.unit),
            numel=math.prod(one.shape),
            dtype=one.dtype,
            backward_s=max(end_s - begin_s, 0.0),
        )
        for number, (one, (begin_s, end_s)) in enumerate(
            zip(gradients, pairwise(edges), strict=True)
        )
    ]


def _pieces(buckets: Sequence[_Bucket], backward_s: float) -> Iterator[GradientTensor]:
    """Yield the pieces of buckets in ready order; the last bucket may end before backward does."""
    edges = [0.0, *(one.done * backward_s for one in buckets)]
    for bucket, (begin_s, end_s) in zip(buckets, pairwise(edges), strict=True):
        count = min(max(-(-bucket.nbytes // PIECE_BYTES), 1), _MOST_PIECES)
        elements = -(-bucket.nbytes // _ELEMENT_BYTES)
        cuts = [elements * part // count for part in range(count + 1)]
        for part, (start, stop) in enumerate(pairwise(cuts)):
            yield GradientTensor(
                name=bucket.name if count == 1 else f"{bucket.name} part {part}",
                numel=stop - start,
                backward_s=max(end_s - begin_s, 0.0) / count,
            )

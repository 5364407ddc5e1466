"""Trainings with several things wrong at once, played exactly, and then noted untidily.

What each fault costs is known: the same training is played without it, with the same jitter.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from syncopate.artifacts.timeline import Span, Timeline

MS = 1e-3


@dataclass
class Doing:
    """What one rank does in one iteration, in milliseconds; a pause is at the end of backward."""

    input_ms: float = 0.5
    forward_ms: float = 20.0
    backward_ms: float = 40.0
    update_ms: float = 3.0
    transfers_ms: tuple[float, ...] = (6.0, 8.0)
    tail_ms: float = 0.0
    pauses: list[tuple[str, float]] = field(default_factory=list)
    unmarked_ms: float = 0.0


Fault = Callable[[Doing, int, int, random.Random], None]
"""Changes what a rank does in an iteration; random numbers are of that iteration."""


def late_input(rank: int, by_ms: float = 40.0) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.input_ms += by_ms * (rank in (r, -1))

    return change


def slow_forward(rank: int, by_ms: float = 40.0) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.forward_ms += by_ms * (r == rank)

    return change


def slow_backward(rank: int, by_ms: float = 40.0) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.backward_ms += by_ms * (r == rank)

    return change


def slow_link(rank: int, by_ms: float = 20.0) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.tail_ms += by_ms * (r == rank)

    return change


def handles_late(rank: int, by_ms: float = 20.0) -> Fault:
    """One of the messages: that of the bucket that is ready at the end of backward."""

    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        first_ms, second_ms = doing.transfers_ms
        doing.transfers_ms = (first_ms, second_ms + by_ms * (r == rank))

    return change


def checkpoints(rank: int, by_ms: float = 120.0, every: int = 4) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        if rank in (r, -1) and i % every == 2:
            doing.pauses.append(("checkpoint", by_ms))

    return change


def stands(rank: int, by_ms: float = 120.0, every: int = 4) -> Fault:
    """The same, of which the script says nothing."""

    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.unmarked_ms += by_ms * (r == rank and i % every == 1)

    return change


def unequal_batches(by: float = 0.35) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        factor = 1 + by * luck.uniform(-1, 1)
        doing.forward_ms *= factor
        doing.backward_ms *= factor

    return change


def bad_plan(by_ms: float = 25.0) -> Fault:
    def change(doing: Doing, r: int, i: int, luck: random.Random) -> None:
        doing.transfers_ms = (doing.transfers_ms[0], doing.transfers_ms[1] + by_ms)

    return change


def trained(
    faults: Sequence[Fault] = (),
    *,
    ranks: int = 4,
    iterations: int = 24,
    exchange: str = "allreduce",
    jitter: float = 0.01,
    updates: bool = True,
    seed: int = 0,
) -> Timeline:
    """Play a training: two buckets, ready in the middle and at the end of backward, one channel.

    Of ``"decoupled"`` and ``"sharded"`` pulls follow, for which the two halves of the next forward
    wait.
    """
    spans: list[Span] = []
    ends_s, channel_s = [0.0] * ranks, [0.0] * ranks
    there_s = [[0.0, 0.0] for _ in range(ranks)]
    for i in range(iterations):
        doings = [_doing(faults, r, i, jitter, seed) for r in range(ranks)]
        ready_s: list[list[float]] = []
        for r, doing in enumerate(doings):
            at_s = ends_s[r] + doing.input_ms * MS
            for half in range(2):
                at_s = max(at_s, there_s[r][half])
                until_s = at_s + doing.forward_ms / 2 * MS
                spans.append(_span("forward", r, i, at_s, until_s))
                at_s = until_s
            half_s = at_s + doing.backward_ms / 2 * MS
            end_s = half_s + (doing.backward_ms / 2 + doing.unmarked_ms) * MS
            for name, lasts_ms in doing.pauses:
                spans.append(_span(name, r, i, end_s, end_s + lasts_ms * MS))
                end_s += lasts_ms * MS
            spans.append(_span("backward", r, i, at_s, end_s))
            ready_s.append([half_s, end_s])
        over_s = [_moved(spans, "push", b, i, doings, [of[b] for of in ready_s], channel_s)
                  for b in range(2)]  # fmt: skip
        for r, doing in enumerate(doings):
            begin_s = max(ready_s[r][1], *(of[r] for of in over_s))
            ends_s[r] = begin_s + doing.update_ms * MS
            if exchange == "decoupled":
                ends_s[r] = ready_s[r][1]
            elif updates:
                spans.append(_span("update", r, i, begin_s, ends_s[r]))
            else:
                ends_s[r] = begin_s
        if exchange != "allreduce":
            pulled = [_moved(spans, "pull", b, i, doings, list(ends_s), channel_s)
                      for b in range(2)]  # fmt: skip
            there_s = [list(of) for of in zip(*pulled, strict=True)]
    return Timeline(
        name="troubled",
        source="measured",
        world_size=ranks,
        spans=tuple(spans),
        metadata={"exchange": exchange},
    )


def cost_s(faults: Sequence[Fault], left: Sequence[Fault] = (), **options: object) -> float:
    """Return what faults cost an iteration, in the mean."""
    with_s, without_s = (lasts_s(trained(some, **options)) for some in (faults, left))  # type: ignore[arg-type]
    return with_s - without_s


def lasts_s(timeline: Timeline) -> float:
    """Return how long an iteration takes, without the first."""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        if span.lane != "pull":
            ends[span.iteration] = max(ends.get(span.iteration, 0.0), span.end_s)
    first, last = min(ends), max(ends)
    return (ends[last] - ends[first]) / (last - first)


# -- noted untidily --------------------------------------------------------------------------------


def ends_late(timeline: Timeline, by_s: float, lanes: Iterable[str] = ("push",)) -> Timeline:
    """Note the end of messages so long after what waited for them had begun, where anything did."""
    begins: dict[int, list[float]] = {}
    for span in timeline.spans:
        if span.lane in ("forward", "backward", "update"):
            begins.setdefault(span.rank, []).append(span.start_s)
    for mine in begins.values():
        mine.sort()
    wanted = tuple(lanes)

    def waited_for(span: Span) -> bool:
        if span.lane not in wanted:
            return False
        mine = begins[span.rank]
        place = bisect_left(mine, span.end_s - 1e-9)
        return place < len(mine) and mine[place] < span.end_s + 1e-9

    spans = (replace(s, end_s=s.end_s + by_s) if waited_for(s) else s for s in timeline.spans)
    return replace(timeline, spans=tuple(spans))


def with_wrong_clocks(timeline: Timeline, by_s: float, seed: int = 0) -> Timeline:
    """Note every begin and end wrongly, by up to so much."""
    luck = random.Random(seed)
    spans = []
    for span in timeline.spans:
        start_s = span.start_s + luck.uniform(-by_s, by_s)
        end_s = max(span.end_s + luck.uniform(-by_s, by_s), start_s)
        spans.append(replace(span, start_s=start_s, end_s=end_s))
    return replace(timeline, spans=tuple(spans))


def with_small_spans(timeline: Timeline, lasts_s: float = 20e-6) -> Timeline:
    """Note short computation while ranks wait for their pushes, as profilers do."""
    ends: dict[tuple[int, int], float] = {}
    begins: dict[tuple[int, int], float] = {}
    for span in timeline.spans:
        key = (span.rank, span.iteration)
        if span.lane == "backward":
            ends[key] = span.end_s
        elif span.lane == "update":
            begins[key] = span.start_s
    spans = list(timeline.spans)
    for (rank, number), end_s in ends.items():
        gap_s = begins.get((rank, number), end_s) - end_s
        for share, lane in ((0.3, "backward"), (0.6, "update")):
            if gap_s * 0.3 > lasts_s:
                at_s = end_s + share * gap_s
                spans.append(_span(lane, rank, number, at_s, at_s + lasts_s))
    return replace(timeline, spans=tuple(spans))


def _doing(faults: Sequence[Fault], r: int, i: int, jitter: float, seed: int) -> Doing:
    doing, luck = Doing(), random.Random(f"{seed} {r} {i}")
    doing.forward_ms *= 1 + jitter * luck.gauss(0, 1)
    doing.backward_ms *= 1 + jitter * luck.gauss(0, 1)
    for fault in faults:
        fault(doing, r, i, luck)
    return doing


def _moved(  # noqa: PLR0917
    spans: list[Span],
    lane: str,
    bucket: int,
    iteration: int,
    doings: Sequence[Doing],
    ready_s: Sequence[float],
    channel_s: list[float],
) -> list[float]:
    """Play one message, which starts on a rank when it is ready and the channel is free."""
    share = 0.4 if lane == "pull" else 1.0
    starts_s = [max(both) for both in zip(ready_s, channel_s, strict=True)]
    for r, doing in enumerate(doings):
        channel_s[r] = max(starts_s) + (share * doing.transfers_ms[bucket] + doing.tail_ms) * MS
        spans.append(
            Span(
                name=f"bucket {bucket}",
                lane=lane,
                rank=r,
                start_s=starts_s[r],
                end_s=channel_s[r],
                iteration=iteration,
                nbytes=1 << 20,
            )
        )
    return list(channel_s)


def _span(name: str, rank: int, iteration: int, start_s: float, end_s: float) -> Span:
    lane = name if name in ("forward", "backward", "update") else "wait"
    return Span(name=name, lane=lane, rank=rank, start_s=start_s, end_s=end_s, iteration=iteration)

"""Trainings by pipelines, played exactly: all forwards of an iteration, then all backwards."""

from __future__ import annotations

import random
from collections.abc import Sequence

from syncopate.timeline import Group, Span, Timeline

MS = 1e-3


def piped(
    forward_ms: Sequence[float] = (10.0, 10.0, 10.0),
    *,
    replicas: int = 2,
    micro_batches: int = 4,
    iterations: int = 10,
    slow: tuple[int, float] = (-1, 1.0),
    message_ms: float = 0.2,
    reduce_ms: float = 1.0,
    jitter: float = 0.01,
) -> Timeline:
    """Return what pipelines do that hold the same model; rank = replica x stages + stage.

    Backward takes twice as long as forward. Each stage then adds its gradients to those of the
    other replicas, and updates.

    Args:
        forward_ms: of a micro-batch, by stage.
        replicas: pipelines.
        micro_batches: of each iteration.
        iterations: how many.
        slow: a rank, and how many times as long it computes.
        message_ms: what a message takes once both ends are there.
        reduce_ms: what an all-reduce takes once all are there.
        jitter: the standard deviation of computation, relative to it.
    """
    count = len(forward_ms)
    groups = [
        Group(name="pp", ranks=tuple(range(r * count, (r + 1) * count))) for r in range(replicas)
    ]
    groups += [
        Group(name="dp", ranks=tuple(range(s, replicas * count, count))) for s in range(count)
    ]
    spans: list[Span] = []
    free_s = [0.0] * (replicas * count)
    luck = random.Random(0)

    def compute(lane: str, rank: int, i: int, from_s: float, lasts_ms: float) -> float:
        more = slow[1] if rank == slow[0] else 1.0
        end_s = from_s + lasts_ms * more * (1 + jitter * luck.gauss(0, 1)) * MS
        spans.append(_span(lane, lane, rank, i, from_s, end_s))
        free_s[rank] = end_s
        return end_s

    for i in range(iterations):
        numbers: dict[tuple[int, str], int] = {}
        for lane, times in (("forward", 1.0), ("backward", 2.0)):
            sent_s: dict[tuple[int, int], float] = {}
            for batch in range(micro_batches):
                for at in range(count):
                    stage = at if lane == "forward" else count - 1 - at
                    for replica in range(replicas):
                        rank = replica * count + stage
                        begin_s = free_s[rank]
                        if at:  # what the stage before has sent
                            ready_s = sent_s[rank, batch]
                            there_s = max(begin_s, ready_s) + message_ms * MS
                            where = _numbered(numbers, rank, "recv")
                            spans.append(_span(where, "pull", rank, i, begin_s, there_s, replica))
                            begin_s = there_s
                        end_s = compute(lane, rank, i, begin_s, times * forward_ms[stage])
                        if at + 1 < count:
                            other = rank + (1 if lane == "forward" else -1)
                            where = _numbered(numbers, rank, "send")
                            over_s = end_s + message_ms * MS
                            spans.append(_span(where, "push", rank, i, end_s, over_s, replica))
                            sent_s[other, batch] = end_s
        for stage in range(count):
            ranks = range(stage, replicas * count, count)
            over_s = max(free_s[rank] for rank in ranks) + reduce_ms * MS
            for rank in ranks:
                name, channel = "all_reduce 0", replicas + stage
                spans.append(_span(name, "push", rank, i, free_s[rank], over_s, channel))
                compute("update", rank, i, over_s, 1.0)
    return Timeline(
        name="piped",
        source="measured",
        world_size=replicas * count,
        spans=tuple(spans),
        groups=tuple(groups),
    )


def _numbered(numbers: dict[tuple[int, str], int], rank: int, kind: str) -> str:
    number = numbers.get((rank, kind), 0)
    numbers[rank, kind] = number + 1
    return f"{kind} {number}"


def _span(  # noqa: PLR0917
    name: str, lane: str, rank: int, i: int, start_s: float, end_s: float, channel: int = 0
) -> Span:
    return Span(
        name=name,
        lane=lane,
        rank=rank,
        start_s=start_s,
        end_s=end_s,
        iteration=i,
        channel=channel,
        nbytes=0 if lane in ("forward", "backward", "update") else 1 << 16,
    )

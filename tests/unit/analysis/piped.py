"""Trainings by pipelines, played exactly: all forwards of an iteration, then all backwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from syncopate.artifacts.timeline import Group, Span, Timeline

MS = 1e-3
REDUCE_MS = 1.0
"""What an all-reduce takes once all ranks are there."""


def piped(
    forward_ms: Sequence[float] = (10.0, 10.0, 10.0),
    *,
    replicas: int = 2,
    micro_batches: int = 4,
    iterations: int = 10,
    slow: tuple[int, float] = (-1, 1.0),
    message_ms: float = 0.2,
    jitter: float = 0.01,
    uneven: float = 0.0,
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
        jitter: the standard deviation of computation, relative to it.
        uneven: that of micro-batches, in forward and backward on all stages.
    """
    lengths = random.Random(1)
    count = len(forward_ms)
    pipes = [tuple(range(r * count, (r + 1) * count)) for r in range(replicas)]
    same = [tuple(range(s, replicas * count, count)) for s in range(count)]
    player = _Player(replicas * count, count, slow, message_ms, jitter)
    for i in range(iterations):
        player.numbers.clear()
        long = [[1 + uneven * lengths.gauss(0, 1) for _ in pipes] for _ in range(micro_batches)]
        for lane, times in (("forward", 1.0), ("backward", 2.0)):
            for each in long:
                for replica, ranks in enumerate(pipes):
                    lasts_ms = [times * each[replica] * one_ms for one_ms in forward_ms]
                    player.passes(lane, i, ranks, lasts_ms, replica)
        for stage, ranks in enumerate(same):
            player.reduces(i, ranks, replicas + stage)
    return Timeline(
        name="piped",
        source="measured",
        world_size=replicas * count,
        spans=tuple(player.spans),
        groups=(
            *(Group(name="pp", ranks=ranks) for ranks in pipes),
            *(Group(name="dp", ranks=ranks) for ranks in same),
        ),
    )


class _Player:
    """Plays one thing after the other, each rank by its own clock."""

    def __init__(
        self, ranks: int, stages: int, slow: tuple[int, float], message_ms: float, jitter: float
    ) -> None:
        self.spans: list[Span] = []
        self.numbers: Counter[tuple[int, str]] = Counter()
        self._free_s, self._stages = [0.0] * ranks, stages
        self._slow, self._message_s, self._jitter = slow, message_ms * MS, jitter
        self._luck = random.Random(0)

    def passes(
        self, lane: str, i: int, ranks: Sequence[int], lasts_ms: Sequence[float], channel: int
    ) -> None:
        """Let a micro-batch go through all stages, of a backward from the last one on."""
        way = ranks if lane == "forward" else ranks[::-1]
        sent_s = 0.0
        for at, rank in enumerate(way):
            if at:  # what the stage before has sent
                self._message("recv", rank, i, max(self._free_s[rank], sent_s), channel)
            self._compute(lane, rank, i, lasts_ms[rank % self._stages])
            sent_s = self._free_s[rank]
            if at + 1 < len(way):
                self._message("send", rank, i, sent_s, channel)
                self._free_s[rank] = sent_s  # it goes on meanwhile

    def reduces(self, i: int, ranks: Sequence[int], channel: int) -> None:
        """Let a stage of all replicas add its gradients, and update."""
        over_s = max(self._free_s[rank] for rank in ranks) + REDUCE_MS * MS
        for rank in ranks:
            self._note("all_reduce 0", "push", rank, i, (self._free_s[rank], over_s), channel)
            self._free_s[rank] = over_s
            self._compute("update", rank, i, 1.0)

    def _compute(self, lane: str, rank: int, i: int, lasts_ms: float) -> None:
        more = self._slow[1] if rank == self._slow[0] else 1.0
        lasts_s = lasts_ms * more * (1 + self._jitter * self._luck.gauss(0, 1)) * MS
        begin_s = self._free_s[rank]
        self._free_s[rank] = begin_s + lasts_s
        self._note(lane, lane, rank, i, (begin_s, begin_s + lasts_s))

    def _message(self, kind: str, rank: int, i: int, moves_s: float, channel: int) -> None:
        name = f"{kind} {self.numbers[rank, kind]}"
        self.numbers[rank, kind] += 1
        over_s = moves_s + self._message_s
        lane = "push" if kind == "send" else "pull"
        self._note(name, lane, rank, i, (self._free_s[rank], over_s), channel)
        self._free_s[rank] = over_s

    def _note(  # noqa: PLR0917
        self, name: str, lane: str, rank: int, i: int, at_s: tuple[float, float], channel: int = 0
    ) -> None:
        self.spans.append(
            Span(
                name=name,
                lane=lane,
                rank=rank,
                start_s=at_s[0],
                end_s=at_s[1],
                iteration=i,
                channel=channel,
                nbytes=0 if name == lane else 1 << 16,
            )
        )

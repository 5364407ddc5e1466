"""Three levels of groups: ranks that share layers wait for each other within forward and backward.

Eight ranks; pairs share the layers, and two levels of pairs add their gradients one after the
other.
"""

from __future__ import annotations

import random

import pytest

from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.analysis.replay import Replay
from syncopate.artifacts.timeline import Group, Span, Timeline
from tests.unit.analysis.troubled import MS, lasts_s

RANKS = 8
LEVELS = tuple(
    tuple((rank, rank ^ apart) for rank in range(RANKS) if not rank & apart) for apart in (1, 2, 4)
)


class _Player:
    def __init__(self, slow: tuple[int, float]) -> None:
        self.spans: list[Span] = []
        self.free_s = [0.0] * RANKS
        self._slow, self._luck = slow, random.Random(0)

    def compute(self, lane: str, i: int, lasts_ms: float) -> None:
        for rank in range(RANKS):
            more = self._slow[1] if rank == self._slow[0] else 1.0
            end_s = self.free_s[rank] + lasts_ms * more * (1 + 0.01 * self._luck.gauss(0, 1)) * MS
            where = {"start_s": self.free_s[rank], "end_s": end_s, "iteration": i}
            self.spans.append(Span(name=lane, lane=lane, rank=rank, **where))
            self.free_s[rank] = end_s

    def reduce(self, number: int, level: int, i: int, lasts_ms: float) -> None:
        for at, group in enumerate(LEVELS[level]):
            over_s = max(self.free_s[rank] for rank in group) + lasts_ms * MS
            channel = level * len(LEVELS[0]) + at
            for rank in group:
                what = {"name": f"all_reduce {number}", "channel": channel, "nbytes": 1 << 20}
                where = {"start_s": self.free_s[rank], "end_s": over_s, "iteration": i}
                self.spans.append(Span(lane="push", rank=rank, **what, **where))
                self.free_s[rank] = over_s


def trained(
    *, slow: tuple[int, float] = (-1, 1.0), late: tuple[int, float] = (-1, 0.0)
) -> Timeline:
    """Play a training in which one rank is slow, or late by so many milliseconds."""
    player = _Player(slow)
    for i in range(12):
        for rank in range(RANKS):
            player.free_s[rank] += (0.5 + late[1] * (rank == late[0])) * MS
        for number, (lane, lasts_ms) in enumerate((("forward", 10.0), ("backward", 20.0)) * 1):
            player.compute(lane, i, lasts_ms)
            player.reduce(number, 0, i, 1.0)
            player.compute(lane, i, lasts_ms)
            player.reduce(number + 2, 0, i, 1.0)
        player.reduce(0, 1, i, 3.0)
        player.reduce(0, 2, i, 2.0)
        player.compute("update", i, 2.0)
    return Timeline(
        name="levels",
        source="measured",
        world_size=RANKS,
        spans=tuple(player.spans),
        groups=tuple(Group(name=str(n), ranks=g) for n, level in enumerate(LEVELS) for g in level),
    )


def test_ranks_that_share_layers_are_played_again_as_they_were():
    replay = Replay(trained())
    assert replay.iteration_s() == pytest.approx(replay.recorded_s, rel=1e-3)
    found = explanation(trained())
    assert (found.abstains, [one.kind for one in found.causes]) == ((), ["transfers"])
    # Four messages of layers, and one of each other level, all of them exposed.
    assert found.causes[0].gain_s == pytest.approx(9 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("fault", "kind", "rank"),
    [
        ({"slow": (3, 1.5)}, "compute", 3),
        ({"slow": (0, 2.0)}, "compute", 0),
        ({"late": (5, 15.0)}, "input", 5),
    ],
)
def test_who_is_late_in_three_levels_of_groups_is_named_with_what_it_costs(fault, kind, rank):
    timeline = trained(**fault)
    found = explanation(timeline)
    assert found.abstains == ()
    assert [(one.kind, one.ranks) for one in found.causes] == [(kind, (rank,)), ("transfers", ())]
    cost_s = lasts_s(timeline) - lasts_s(trained())
    assert found.together_s == pytest.approx(cost_s, rel=0.05)
    first = stragglers(timeline)[0]
    assert (first.rank, first.cause) == (rank, kind)
    assert first.caused_s == pytest.approx(cost_s, rel=0.1)

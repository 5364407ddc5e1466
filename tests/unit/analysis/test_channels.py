"""Many buckets on few channels, of which a timeline does not say when their gradients were there.

While all wait for a late rank, pushes of the others stand in a queue: when they were ready is told
by the late rank, which finds its channel free. Also trainings that push in some iterations only.
"""

from __future__ import annotations

import random

import pytest

from syncopate.analysis.causes.explanation import explanation
from syncopate.artifacts.timeline import Span, Timeline
from tests.unit.analysis.troubled import MS, lasts_s

RANKS, BUCKETS, TRANSFER_S = 4, 6, 6 * MS


class _Rank:
    """Plays one rank; the last of six buckets is ready at the end of backward."""

    def __init__(self, rank: int, late_ms: float, slower: float, seed: int) -> None:
        self.rank, self._late_ms, self._slower = rank, late_ms, slower
        self._luck = random.Random(seed)
        self.free_s = 0.0
        self.channels_s = [0.0] * BUCKETS
        self.spans: list[Span] = []

    def note(self, name: str, i: int, start_s: float, end_s: float, channel: int = 0) -> None:
        lane = "push" if name.startswith("bucket") else name
        times = {"start_s": start_s, "end_s": end_s, "iteration": i, "channel": channel}
        self.spans.append(Span(name=name, lane=lane, rank=self.rank, **times))

    def compute(self, lane: str, i: int, lasts_ms: float) -> tuple[float, float]:
        more = self._slower * (1 + 0.01 * self._luck.gauss(0, 1))
        begun_s, self.free_s = self.free_s, self.free_s + lasts_ms * more * MS
        self.note(lane, i, begun_s, self.free_s)
        return begun_s, self.free_s

    def passes(self, i: int) -> list[float]:
        """Go forward and backward; return when each bucket is ready."""
        self.free_s += (0.5 + self._late_ms) * MS
        self.compute("forward", i, 20.0)
        begun_s, end_s = self.compute("backward", i, 40.0)
        return [begun_s + (end_s - begun_s) * (k + 1) / BUCKETS for k in range(BUCKETS)]


def trained(
    *,
    channels: int = 1,
    every: int = 1,
    late: dict[int, float] | None = None,
    slow: dict[int, float] | None = None,
) -> Timeline:
    """Play a training: gradients are pushed in each ``every``-th iteration."""
    late, slow = late or {}, slow or {}
    ranks = [_Rank(r, late.get(r, 0.0), slow.get(r, 1.0), seed=r) for r in range(RANKS)]
    for i in range(24):
        ready_s = [rank.passes(i) for rank in ranks]
        if i % every != every - 1:
            continue
        over_s = [0.0] * BUCKETS
        for bucket in range(BUCKETS):
            channel = bucket % channels
            starts_s = [max(ready_s[r][bucket], ranks[r].channels_s[channel]) for r in range(RANKS)]
            over_s[bucket] = max(starts_s) + TRANSFER_S
            for rank, start_s in zip(ranks, starts_s, strict=True):
                rank.note(f"bucket {bucket}", i, start_s, over_s[bucket], channel)
                rank.channels_s[channel] = over_s[bucket]
        for rank in ranks:
            rank.free_s = max(rank.free_s, *over_s)
            rank.compute("update", i, 3.0)
    spans = tuple(span for rank in ranks for span in rank.spans)
    return Timeline(name="channels", source="measured", world_size=RANKS, spans=spans)


FAULTS = {
    "late": ({"late": {1: 40.0}}, {("input", (1,))}),
    "slow": ({"slow": {2: 1.7}}, {("compute", (2,))}),
    "late and slow": (
        {"late": {0: 40.0}, "slow": {2: 1.7}},
        {("input", (0,)), ("compute", (2,))},
    ),
}


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_who_is_late_costs_what_it_costs_and_comes_before_transfers(fault, channels, every):
    changes, blamed = FAULTS[fault]
    options = {"channels": channels, "every": every}
    timeline = trained(**options, **changes)
    found = explanation(timeline)
    assert found.abstains == ()
    assert {(one.kind, one.ranks) for one in found.causes[: len(blamed)]} == blamed
    cost_s = lasts_s(timeline) - lasts_s(trained(**options))
    assert found.together_s == pytest.approx(cost_s, rel=0.03)
    # Only the last bucket is exposed.
    exposed_s = [one.gain_s for one in found.causes if one.kind == "transfers"]
    assert sum(exposed_s) == pytest.approx(TRANSFER_S / every, abs=2 * MS)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_in_healthy_ones_nobody_is_blamed(channels, every):
    found = explanation(trained(channels=channels, every=every))
    assert (found.abstains, [one.kind for one in found.causes]) == ((), ["transfers"])

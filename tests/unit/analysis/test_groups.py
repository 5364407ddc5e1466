"""Timelines of ranks in groups: what is of a group is measured by its ranks, not by all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from syncopate.analysis.collectives import bandwidths, members
from syncopate.analysis.ranks.arrivals import arrivals, lateness
from syncopate.analysis.ranks.stragglers import stragglers
from syncopate.artifacts.timeline import Group, Timeline
from tests.unit.analysis.made import made

PAIRS = ((0, 2), (1, 3))
"""Ranks that hold the same part of a model."""


def grouped(change=lambda rank, iteration: {}, groups=PAIRS, iterations: int = 6) -> Timeline:
    """Return trainings of groups of ranks, side by side, each group on a channel of its own."""
    spans = []
    for channel, ranks in enumerate(groups):
        alone = made(len(ranks), iterations, lambda r, i, ranks=ranks: change(ranks[r], i))
        spans += [
            replace(span, rank=ranks[span.rank], channel=channel if span.lane == "push" else 0)
            for span in alone.spans
        ]
    return Timeline(
        name="grouped",
        source="measured",
        world_size=sum(map(len, groups)),
        spans=tuple(spans),
        groups=tuple(Group(name="dp", ranks=ranks) for ranks in groups),
    )


def test_bandwidth_on_the_bus_is_that_of_the_group():
    """Of two ranks the factor of an all-reduce is 1, of four it would be 1.5."""
    (found,) = bandwidths(grouped())
    assert found.bytes_per_s == pytest.approx(100.0)
    assert found.bus_bytes_per_s == pytest.approx(100.0)
    (found,) = bandwidths(made(4, 6))
    assert found.bus_bytes_per_s == pytest.approx(150.0)


def test_bandwidths_of_groups_of_several_sizes_count_each_by_its_own():
    (found,) = bandwidths(grouped(groups=((0, 1), (2, 3, 4, 5))))
    assert found.bus_bytes_per_s == pytest.approx(100.0 * (2 * 1.0 + 4 * 1.5) / 6)


def test_ranks_without_a_file_take_part_as_well():
    some = made(4, 6)
    some = replace(some, spans=tuple(s for s in some.spans if s.rank < 2))
    assert set(members(some).tolist()) == {4}
    pairs = grouped()
    pairs = replace(pairs, spans=tuple(s for s in pairs.spans if s.rank < 2))
    assert set(members(pairs).tolist()) == {2}


def test_a_straggler_keeps_the_others_of_its_group_waiting():
    """Of the 5 s that rank 2 is late the other rank computes in 1, and no other rank waits."""
    (found,) = stragglers(grouped(lambda r, i: {"input_s": 5.0} if r == 2 else {}))
    assert (found.rank, found.cause) == (2, "input")
    assert found.caused_s == pytest.approx(4.0)


def test_who_is_late_is_so_to_its_group():
    timeline = grouped(lambda r, i: {"input_s": 5.0} if r == 2 else {})
    found = lateness(timeline)
    assert found[2]["bucket 0"] == pytest.approx(5.0)
    assert found[0]["bucket 0"] == pytest.approx(-5.0)
    assert found[1]["bucket 0"] == pytest.approx(0.0)
    assert arrivals(timeline).collectives == 2 * 2 * 6

"""Slow links: who is accused on what the kernels counted, and who is not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from syncopate.analysis.evidence.links import (
    Carried,
    Entry,
    Finding,
    Link,
    conclusive,
    links_between,
    slow_links,
)
from syncopate.artifacts.cluster import Cluster, Level
from syncopate.collectives.health.slow_links import Comparison, describe

FAST = 117e6
SLOW = FAST / 10
CALLS = 20
CALL_BYTES = 6 << 20

Pair = tuple[int, int]


def ring(p: int) -> list[Pair]:
    return [(rank, (rank + 1) % p) for rank in range(p)]


def rates_of(pairs: list[Pair], *slow: int) -> dict[Pair, float]:
    """Return rates where all links of some ranks are slow."""
    return {pair: SLOW if set(pair) & set(slow) else FAST for pair in pairs}


def entries(
    rates: Mapping[Pair, float],
    *,
    times: int = 1,
    calls: int = CALLS,
    call_bytes: int = CALL_BYTES,
    ranks_per_host: int = 1,
    latency_s: float = 0.0,
) -> dict[int, Entry]:
    """Return what every rank says once every link has carried some collectives."""
    ranks = sorted(set(itertools.chain(*rates)))
    nbytes = times * calls * call_bytes
    return {
        rank: Entry(
            f"host{rank // ranks_per_host}",
            {0: times * calls - 1},
            tuple(
                Carried(0, dst, nbytes, nbytes / rate + times * calls * latency_s)
                for (src, dst), rate in rates.items()
                if src == rank
            ),
        )
        for rank in ranks
    }


def judged(found: dict[int, Entry], cluster: Cluster | None = None) -> Finding | None:
    links = links_between({}, found)
    return slow_links(links, {rank: entry.host for rank, entry in found.items()}, cluster)


def accused(finding: Finding | None) -> list[Pair]:
    return [] if finding is None else [(link.src, link.dst) for link in finding.links]


@pytest.mark.parametrize("p", [3, 4, 8])
def test_the_slow_host_of_a_ring_is_named(p: int) -> None:
    finding = judged(entries(rates_of(ring(p), 2)))
    assert finding is not None
    assert finding.hosts == ("host2",)
    assert accused(finding) == [(1, 2), (2, (2 + 1) % p)]
    assert finding.expected_bytes_per_s == pytest.approx(FAST)


def test_by_short_messages_only_a_trace_is_judged() -> None:
    """A warning doubts them; all connections of a trace carried the same short messages."""
    found = entries(rates_of(ring(4), 2), calls=400, call_bytes=64 << 10)
    hosts = {rank: entry.host for rank, entry in found.items()}
    assert judged(found) is None
    finding = slow_links(links_between({}, found, doubts=False), hosts)
    assert finding is not None
    assert finding.hosts == ("host2",)
    even = entries(rates_of(ring(4)), calls=400, call_bytes=64 << 10)
    assert slow_links(links_between({}, even, doubts=False), hosts) is None


def test_two_slow_hosts_side_by_side_are_named() -> None:
    finding = judged(entries(rates_of(ring(8), 2, 3)))
    assert finding is not None
    assert finding.hosts == ("host2", "host3")


def test_a_link_that_is_slow_in_one_direction_is_nobodys() -> None:
    finding = judged(entries({**rates_of(ring(4)), (2, 3): SLOW}))
    assert finding is not None
    assert accused(finding) == [(2, 3)]
    assert finding.hosts == ()


def test_the_leaf_of_a_tree_is_named_but_not_its_parent() -> None:
    pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 3), (3, 1)]
    finding = judged(entries(rates_of(pairs, 3)))
    assert finding is not None
    assert finding.hosts == ("host3",)


def test_noise_is_no_slow_link() -> None:
    noisy = {pair: FAST / (1 + rank % 2) for rank, pair in enumerate(ring(8))}
    assert judged(entries(noisy)) is None


def test_the_share_decides() -> None:
    assert judged(entries({**rates_of(ring(4)), (2, 3): FAST / 3})) is None
    assert accused(judged(entries({**rates_of(ring(4)), (2, 3): FAST / 5}))) == [(2, 3)]


def test_a_link_shared_with_other_messages_is_not_accused() -> None:
    """The root of a star exchanges messages with seven at once, each at a seventh of its link."""
    sending = {(0, leaf): FAST / 7 for leaf in range(1, 8)} | {(1, 2): FAST}
    assert judged(entries(sending)) is None
    assert accused(judged(entries({(0, 1): FAST / 7, (1, 2): FAST}))) == [(0, 1)]
    receiving = {(leaf, 0): FAST / 7 for leaf in range(1, 8)} | {(1, 2): FAST}
    assert judged(entries(receiving)) is None
    assert accused(judged(entries({(3, 0): FAST / 7, (1, 2): FAST}))) == [(3, 0)]


def test_channels_that_share_a_link_are_not_accused() -> None:
    def on_channels(count: int) -> dict[int, Entry]:
        each = entries(dict.fromkeys(ring(4), FAST / count))[3].carried[0]
        found = entries(rates_of(ring(4)))
        many = tuple(Carried(channel, 0, each.nbytes, each.busy_s) for channel in range(count))
        found[3] = Entry("host3", dict.fromkeys(range(count), CALLS - 1), many)
        return found

    assert judged(on_channels(8)) is None
    one_of_eight = on_channels(8)
    one_of_eight[3] = Entry("host3", {0: CALLS - 1}, one_of_eight[3].carried[:1])
    assert accused(judged(one_of_eight)) == [(3, 0)]


def test_a_link_of_which_one_channel_is_fast_is_not_slow() -> None:
    """What waits for it is not the network."""
    found = entries(rates_of(ring(4)))
    (fast,) = found[3].carried
    stuck = Carried(1, 0, fast.nbytes, fast.busy_s * 20)
    found[3] = Entry("host3", {0: CALLS - 1, 1: CALLS - 1}, (fast, stuck))
    assert judged(found) is None


def test_short_messages_accuse_nobody() -> None:
    """Their rate is that of acknowledgements that the kernel holds back."""
    calls, call_bytes, held_back_s = 4000, 16 << 10, 0.04
    short = entries({(1, 2): FAST}, calls=calls, call_bytes=call_bytes, latency_s=held_back_s)
    found = entries(rates_of(ring(4)))
    found[1] = Entry("host1", short[1].entered, short[1].carried)
    assert judged(found) is None
    found[1] = Entry("host1", {0: CALLS - 1}, short[1].carried)
    assert accused(judged(found)) == [(1, 2)]


def test_bursts_of_short_messages_are_no_standard() -> None:
    """A token bucket lets them through at any rate; the others keep the line rate."""
    bursts = entries({(0, 1): 50 * FAST}, calls=1000, call_bytes=256 << 10)
    found = entries(rates_of(ring(4)), times=3)
    found[0] = bursts[0]
    assert judged(found) is None
    found[0] = Entry("host0", {0: CALLS - 1}, bursts[0].carried)
    assert accused(judged(found)) == [(1, 2), (2, 3), (3, 0)]


def racks(uplink_bytes_per_s: float) -> Cluster:
    levels = (
        Level(name="host", size=4, latency_s=3e-5, bandwidth_bytes_per_s=FAST),
        Level(name="rack", size=2, latency_s=5e-5, bandwidth_bytes_per_s=uplink_bytes_per_s),
    )
    return Cluster(name="two racks", levels=levels)


def test_racks_are_not_accused_of_the_uplinks_that_their_cluster_knows() -> None:
    uplinks = {(3, 4): SLOW, (7, 0): SLOW}
    found = entries({**rates_of(ring(8)), **uplinks})
    assert judged(found, racks(SLOW)) is None
    assert accused(judged(found)) == sorted(uplinks)
    assert accused(judged(found, racks(FAST))) == sorted(uplinks)


def test_ranks_that_share_an_uplink_are_not_accused() -> None:
    """Four pairs at a time between two racks, whose uplink is half as wide as a host's link."""
    across = {(rank, rank + 4): FAST / 2 / 4 for rank in range(4)}
    assert judged(entries(across), racks(FAST / 2)) is None
    assert accused(judged(entries(across), racks(4 * FAST))) == sorted(across)


def test_a_slow_host_in_a_rack_is_named() -> None:
    rates = {**rates_of(ring(8), 2), (3, 4): SLOW, (7, 0): SLOW}
    finding = judged(entries(rates), racks(SLOW))
    assert finding is not None
    assert (finding.hosts, accused(finding)) == (("host2",), [(1, 2), (2, 3)])
    assert finding.expected_bytes_per_s == FAST


@pytest.mark.parametrize("name", ["", "flat"])
def test_of_two_hosts_only_a_cluster_knows_that_both_are_slow(name: str) -> None:
    found = entries({(0, 1): SLOW, (1, 0): SLOW})
    cluster = Cluster.flat(2, latency_s=3e-5, bandwidth_bytes_per_s=FAST, name=name)
    finding = judged(found, cluster if name else None)
    assert accused(finding) == ([(0, 1), (1, 0)] if name else [])
    assert finding is None or finding.hosts == ()


def test_what_calibration_found_slow_is_expected() -> None:
    """Its bandwidth is the slowest host's, and it has warned already."""
    calibrated = Cluster.flat(4, latency_s=3e-5, bandwidth_bytes_per_s=SLOW)
    assert judged(entries(rates_of(ring(4), 2)), calibrated) is None


def test_between_ranks_of_one_host_there_is_no_link() -> None:
    found = entries(rates_of(ring(4), 2), ranks_per_host=4)
    assert links_between({}, found) == ()
    assert judged(found) is None
    two_hosts = entries(rates_of(ring(4), 2), ranks_per_host=2)
    assert [(link.src, link.dst) for link in links_between({}, two_hosts)] == [(1, 2), (3, 0)]


def test_little_proves_nothing() -> None:
    little = entries(rates_of(ring(4), 2), calls=1, call_bytes=1 << 20)
    assert not conclusive(links_between({}, little))
    assert conclusive(links_between({}, entries(rates_of(ring(4), 2))))


def test_what_was_carried_before_does_not_count() -> None:
    fast, more = entries(rates_of(ring(4)), times=9), entries(rates_of(ring(4)), times=10)
    links = links_between(fast, more)
    assert [link.nbytes for link in links] == [CALLS * CALL_BYTES] * 4
    slow = more[1].carried[0]
    more[1] = Entry("host1", more[1].entered, (Carried(0, 2, slow.nbytes, 10 * slow.busy_s),))
    hosts = {rank: entry.host for rank, entry in more.items()}
    assert accused(slow_links(links_between(fast, more), hosts)) == [(1, 2)]


SLOW_RING = [entries(rates_of(ring(4), 2), times=times) for times in range(1, 6)]


def test_a_comparison_warns_the_second_time_and_only_then() -> None:
    comparison = Comparison()
    said = [comparison.warning(found) for found in SLOW_RING]
    assert [text is not None for text in said] == [False, True, False, False, False]
    assert said[1] is not None
    assert said[1].startswith(
        "host2 (rank 2) has a slow link: rank 1 -> 2 at 93.60 Mbit/s, 2 -> 3 at 93.60 Mbit/s, "
        "where the others reach 936.00 Mbit/s;"
    )


def then(before: Mapping[int, Entry], rates: Mapping[Pair, float]) -> dict[int, Entry]:
    """Return what every rank says once its links carried as much again, at other rates."""
    after = {}
    for rank, entry in before.items():
        carried = tuple(
            Carried(
                channel,
                peer,
                nbytes + CALLS * CALL_BYTES,
                busy_s + CALLS * CALL_BYTES / rates[rank, peer],
            )
            for channel, peer, nbytes, busy_s in (
                (one.channel, one.peer, one.nbytes, one.busy_s) for one in entry.carried
            )
        )
        after[rank] = Entry(entry.host, {0: entry.entered[0] + CALLS}, carried)
    return after


def test_a_comparison_warns_again_of_another_host() -> None:
    comparison = Comparison()
    found = SLOW_RING[1]
    for earlier in SLOW_RING[:2]:
        comparison.warning(earlier)
    said = []
    for _ in range(3):
        found = then(found, rates_of(ring(4), 2, 3))
        said.append(comparison.warning(found))
    assert [text is not None for text in said] == [False, True, False]
    assert said[1] is not None
    assert said[1].startswith("host2 (rank 2), host3 (rank 3) have slow links: ")


def test_a_link_that_turns_out_to_be_a_hosts_is_told_at_once() -> None:
    comparison = Comparison()
    found = entries({**rates_of(ring(4)), (2, 3): SLOW})
    assert comparison.warning(found) is None
    text = comparison.warning(then(found, rates_of(ring(4), 2)))
    assert text is not None
    assert text.startswith("host2 (rank 2) has a slow link")


def test_a_disturbance_is_not_worth_a_warning() -> None:
    comparison = Comparison()
    assert comparison.warning(SLOW_RING[0]) is None
    recovered = then(SLOW_RING[0], rates_of(ring(4)))
    assert comparison.warning(recovered) is None
    assert comparison.warning(then(recovered, rates_of(ring(4), 2))) is None


def test_a_comparison_waits_until_enough_was_carried() -> None:
    comparison = Comparison()
    parts = [entries(rates_of(ring(4), 2), calls=1, times=times) for times in range(1, 13)]
    said = [comparison.warning(found) for found in parts]
    assert [index for index, text in enumerate(said) if text is not None] == [3]


def test_messages_outside_collectives_are_left_out() -> None:
    def amid(found: dict[int, Entry], blocks: int) -> dict[int, Entry]:
        return {r: Entry(e.host, e.entered, e.carried, blocks) for r, e in found.items()}

    comparison = Comparison()
    assert links_between({}, amid(SLOW_RING[0], 1)) == ()
    assert links_between(amid(SLOW_RING[0], 1), amid(SLOW_RING[1], 1)) == ()
    assert links_between(amid(SLOW_RING[0], 0), amid(SLOW_RING[1], 2)) == ()
    assert comparison.warning(amid(SLOW_RING[0], 2)) is None
    assert comparison.warning(amid(SLOW_RING[1], 2)) is None
    assert comparison.warning(amid(SLOW_RING[2], 2)) is not None


def test_links_of_nobody_are_named_with_both_ends() -> None:
    links = tuple(Link(rank, rank + 1, 1_000_000, 1.0, 1.0, 0.0) for rank in range(6))
    hosts = {rank: f"host{rank}" for rank in range(7)}
    text = describe(Finding(links, (), FAST, "x"), hosts)
    assert text.startswith("slow network: rank 0 (host0) -> 1 (host1) at 8.00 Mbit/s, ")
    assert "2 more such links, where the cluster 'x' has 936.00 Mbit/s" in text
    alone = describe(Finding(links[:1], (), FAST), hosts)
    assert alone.startswith(
        "slow link: rank 0 (host0) -> 1 (host1) at 8.00 Mbit/s, where the others"
    )

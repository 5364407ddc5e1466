"""Cluster: ranks and coordinates, levels, curves, presets, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from syncopate.artifacts.cluster import (
    NETWORKS,
    Cluster,
    CollectiveCurve,
    CurvePoint,
    Interference,
    Level,
    LinearFit,
    robust_mean,
    standard_error,
)
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from tests.unit import strategies


def _level(name="host", size=2, latency_s=1e-5, bandwidth=1e9):
    return Level(name=name, size=size, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)


def _three_levels(placement=()):
    levels = (_level("device", 4), _level("host", 3), _level("rack", 2))
    return Cluster(name="c", levels=levels, placement=placement)


@given(strategies.clusters())
def test_round_trip(cluster):
    assert Cluster.from_json(cluster.to_json()) == cluster


@given(strategies.clusters())
def test_ranks_and_coordinates_are_inverse(cluster):
    coordinates = [cluster.coordinates(rank) for rank in range(cluster.world_size)]
    assert len(set(coordinates)) == cluster.world_size
    assert [cluster.rank_at(c) for c in coordinates] == list(range(cluster.world_size))


@given(strategies.clusters())
def test_the_level_between_two_ranks_is_the_same_from_both_sides(cluster):
    last = cluster.world_size - 1
    for rank in range(cluster.world_size):
        assert cluster.level_between(rank, last) is cluster.level_between(last, rank)


def test_coordinates_count_the_innermost_level_fastest():
    cluster = _three_levels()
    assert cluster.world_size == 24
    assert cluster.coordinates(0) == (0, 0, 0)
    assert cluster.coordinates(5) == (1, 1, 0)
    assert cluster.coordinates(23) == (3, 2, 1)
    assert cluster.rank_at((3, 0, 1)) == 15


def test_the_outermost_differing_level_is_crossed():
    cluster = _three_levels()
    assert cluster.level_between(0, 0).name == "device"
    assert cluster.level_between(0, 3).name == "device"
    assert cluster.level_between(3, 4).name == "host"
    assert cluster.level_between(0, 12).name == "rack"
    assert cluster.level_between(1, 13).name == "rack"


def test_placement_moves_ranks():
    cluster = Cluster(name="c", levels=(_level(size=2), _level("rack", 2)), placement=(0, 2, 1, 3))
    assert [cluster.position(rank) for rank in range(4)] == [0, 2, 1, 3]
    assert cluster.level_between(0, 2).name == "host"
    assert cluster.level_between(0, 1).name == "rack"
    assert cluster.rank_at((1, 0)) == 2


@pytest.mark.parametrize("rank", [-1, 24])
def test_ranks_outside_are_refused(rank):
    with pytest.raises(InvalidValueError, match=r"in 0\.\.23"):
        _three_levels().coordinates(rank)


@pytest.mark.parametrize("coordinates", [(0, 0), (4, 0, 0), (0, 0, -1)])
def test_coordinates_outside_are_refused(coordinates):
    with pytest.raises(InvalidValueError, match="one index for each level of 4 x 3 x 2, below"):
        _three_levels().rank_at(coordinates)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: _level(size=0), "size is 0"),
        (lambda: _level(latency_s=-1.0), "latency_s is -1.0"),
        (lambda: _level(latency_s=math.nan), "latency_s is nan"),
        (lambda: _level(bandwidth=0.0), "bandwidth_bytes_per_s is 0.0"),
        (lambda: _level(bandwidth=math.inf), "a finite number > 0"),
        (lambda: LinearFit(a_s=0.0, b_s_per_byte=-1.0), "b_s_per_byte is -1.0"),
        (lambda: CurvePoint(nbytes=-1, samples_s=(1.0,)), "nbytes is -1"),
        (lambda: CurvePoint(nbytes=2**63 - 1, samples_s=(1.0,)), r"an integer in \[0, 11258\d+\]$"),
        (lambda: CurvePoint(nbytes=1, samples_s=()), "at least one duration"),
        (lambda: CurvePoint(nbytes=1, samples_s=(math.inf,)), "samples_s is inf"),
        (
            lambda: CurvePoint(nbytes=1, samples_s=(1.0,), options={"blocks": -3}),
            "option blocks is -3; it must be an integer >= 1",
        ),
        (lambda: Interference(compute_rate=1.1), r"a number in \[0, 1\]"),
        (lambda: Interference(compute_rate=math.nan), "compute_rate is nan"),
        (lambda: Interference(collective_stretch=0.9), "a finite number >= 1"),
        (lambda: Cluster(name="c", levels=()), "at least one level"),
        (
            lambda: Cluster(name="c", levels=(_level(size=(3, 5)), _level("rack", 3))),
            r"size of level 'host' is '3\+5'; it must be one size for each unit of it, of which "
            "the levels above hold 3",
        ),
        (lambda: _three_levels(placement=(0, 1)), r"a permutation of the ranks 0\.\.23"),
        (
            lambda: Cluster(name="c", levels=(_level(),), hosts=("a",)),
            "one host name for each of 2 ranks",
        ),
        (
            lambda: Cluster(name="c", levels=(_level(),), reduction_s_per_byte=math.inf),
            "reduction_s_per_byte is inf",
        ),
    ],
)
def test_nonsense_is_refused(build, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        build()


@pytest.mark.parametrize("sizes", [(), (2, 1), (1, 1)])
def test_a_curve_ascends(sizes):
    points = tuple(CurvePoint(nbytes=size, samples_s=(1.0,)) for size in sizes)
    with pytest.raises(InvalidValueError, match="strictly ascending"):
        CollectiveCurve(
            collective="all_reduce",
            algorithm="ring",
            points=points,
            fit=LinearFit(a_s=0.0, b_s_per_byte=0.0),
        )


def test_racks_of_3_and_5_hosts_are_levels_like_others():
    racks = (_level("device", 2), _level("host", (3, 5)), _level("rack", 2))
    cluster = Cluster(name="c", levels=racks)
    assert json.loads(cluster.to_json())["levels"][1]["size"] == [3, 5]
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert (cluster.world_size, cluster.host_count, cluster.ranks_per_host) == (16, 8, 2)
    # The third host of the first rack, and the last of the second one.
    assert (cluster.coordinates(5), cluster.coordinates(15)) == ((1, 2, 0), (1, 4, 1))
    assert cluster.rank_at((0, 4, 1)) == 14
    assert cluster.level_between(4, 6).name == "rack"
    with pytest.raises(InvalidValueError, match=r"each level of 2 x 3\+5 x 2, below the size"):
        cluster.rank_at((0, 3, 0))


def test_a_host_of_fewer_devices_counts_what_it_has():
    cluster = Cluster(name="c", levels=(_level("device", (4, 1)), _level("host", 2)))
    assert (cluster.world_size, cluster.host_count, cluster.ranks_per_host) == (5, 2, 4)
    assert cluster.joining == cluster.levels
    assert cluster.level_between(3, 4).name == "host"


def test_hosts_are_put_into_racks():
    flat = Cluster.flat(8, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    cluster = flat.in_racks((3, 5), 2e9)
    assert [(level.name, level.size) for level in cluster.levels] == [
        ("host", (3, 5)),
        ("rack", 2),
    ]
    assert [level.bandwidth_bytes_per_s for level in cluster.levels] == [1e9, 2e9]
    assert [level.size for level in flat.in_racks((4, 4)).levels] == [4, 2]
    # An uplink that slows down no rack.
    assert flat.in_racks((3, 5)).levels[1].bandwidth_bytes_per_s == 5e9
    with pytest.raises(InvalidValueError, match=r"racks is \(3, 4\); .* of 8 in all"):
        flat.in_racks((3, 4))


def test_files_from_before_there_were_unequal_units_are_read():
    cluster = _three_levels()
    text = cluster.to_json().decode().replace('"schema_version": 2', '"schema_version": 1')
    assert '"schema_version": 1' in text
    assert Cluster.from_json(text) == cluster


def test_a_curve_is_found_by_collective_and_algorithm():
    curve = CollectiveCurve(
        collective="all_reduce",
        algorithm="ring",
        points=(CurvePoint(nbytes=1, samples_s=(1.0,)),),
        fit=LinearFit(a_s=0.0, b_s_per_byte=0.0),
    )
    cluster = Cluster(name="c", levels=(_level(),), curves=(curve,))
    assert cluster.curve("all_reduce", "ring") is curve
    assert cluster.curve("all_reduce", "native") is None
    assert cluster.curve("all_gather", "ring") is None


def test_options_and_order_are_written_where_there_are_some():
    plain, told = (
        CurvePoint(nbytes=n, samples_s=(1.0,), options=options)
        for n, options in ((1, {}), (2, {"blocks": 2}))
    )
    fit = LinearFit(a_s=0.0, b_s_per_byte=0.0)
    curve = CollectiveCurve(collective="reduce", algorithm="lp", points=(plain, told), fit=fit)
    cluster = Cluster(name="c", levels=(_level(),), curves=(curve, replace(curve, order=(1, 0))))
    written = json.loads(cluster.to_json())["curves"]
    # Files from before there were options have neither.
    assert [sorted(c) for c in written] == [
        ["algorithm", "collective", "fit", "points"],
        ["algorithm", "collective", "fit", "order", "points"],
    ]
    assert written[0]["points"] == [
        {"nbytes": 1, "samples_s": [1.0]},
        {"nbytes": 2, "samples_s": [1.0], "options": {"blocks": 2}},
    ]
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_the_cluster_that_the_documents_write_by_hand():
    text = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    cluster = Cluster.from_json(text.split("```json\n")[1].split("```")[0])
    assert [(level.name, level.size) for level in cluster.levels] == [("host", 4), ("rack", 2)]
    assert {cluster.coordinates(rank)[1] for rank in (0, 2, 4, 6)} == {0}
    assert (cluster.world_size, cluster.host_count) == (8, 8)


@pytest.mark.parametrize(
    ("names", "hosts", "count"),
    [
        (("host",), (), 2),
        (("device", "host"), (), 3),
        (("device", "host", "rack"), (), 12),
        (("host", "rack"), (), 6),
        (("a", "b"), (), 3),
        (("host", "rack"), tuple("aabbcc"), 3),
    ],
)
def test_hosts_are_counted_by_name_or_else_by_level(names, hosts, count):
    levels = tuple(_level(name, size) for name, size in zip(names, (2, 3, 4), strict=False))
    cluster = Cluster(name="c", levels=levels, hosts=hosts)
    assert cluster.host_count == count
    assert cluster.ranks_per_host == cluster.world_size // count


def test_the_fullest_host_counts():
    cluster = Cluster(name="c", levels=(_level(size=4),), hosts=("a", "b", "a", "a"))
    assert (cluster.host_count, cluster.ranks_per_host) == (2, 3)


def test_a_cluster_of_more_ranks_than_have_room_is_refused():
    with pytest.raises(InvalidValueError, match="at most 1048576 ranks; these are levels of 8 x "):
        Cluster(name="c", levels=(_level(size=8), _level(name="rack", size=10**15)))
    with pytest.raises(InvalidValueError, match="nodes is 1000000000; it must be at most 1048576"):
        Cluster.preset("10gbe", 10**9)


def test_files_from_before_there_were_warnings_have_none():
    cluster = Cluster(name="c", levels=(_level(),), warnings=("host1 is slow",))
    assert Cluster.from_json(cluster.to_json()) == cluster
    written = json.loads(cluster.to_json())
    del written["warnings"]
    assert Cluster.from_json(json.dumps(written)) == replace(cluster, warnings=())


def test_the_uncertainty_of_an_expected_duration():
    def error_s(*samples_s):
        return standard_error(samples_s)

    assert error_s(1.0) == 0.0
    assert error_s(1.0, 3.0) == pytest.approx(1.0)
    assert error_s(*[1.0, 3.0] * 8) == pytest.approx(0.2582, abs=1e-4)
    # A far outlier counts as much as the fence.
    assert error_s(1.0, 1.0, 1.1, 1.1, 900.0) < 0.2


@pytest.mark.parametrize("network", NETWORKS)
def test_presets(network):
    cluster = Cluster.preset(network, 8)
    assert cluster.world_size == 8
    assert cluster.name == f"8 nodes, {network}"
    line_rate = float(network.removesuffix("gbe")) * 1e9 / 8
    assert 0.9 * line_rate < cluster.levels[0].bandwidth_bytes_per_s < line_rate
    assert cluster.levels[0].byte_time_s == 1 / cluster.levels[0].bandwidth_bytes_per_s


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown network '5gbe'; known: 1gbe, 10gbe"):
        Cluster.preset("5gbe", 8)


def test_a_wrong_value_in_a_file_is_refused_by_field():
    text = _three_levels().to_json().replace(b'"size": 3', b'"size": 0')
    with pytest.raises(ArtifactError, match=r"c\.json at \$\.levels\[1\]\.size: size is 0"):
        Cluster.from_json(text, source="c.json")


@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=40))
def test_a_robust_mean_lies_within_the_samples(samples):
    assert min(samples) - 1e-9 <= robust_mean(samples) <= max(samples) + 1e-9


def test_a_robust_mean_counts_a_slow_share_and_ignores_a_stray():
    usual = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0]
    assert robust_mean([1.0] * 6 + [4.0] * 4) == pytest.approx(2.2)
    assert robust_mean([*usual, 100.0]) < 1.1
    assert robust_mean([1.0, 50.0, 1.2]) == 1.2


def test_only_samples_beyond_the_outer_fence_are_drawn_in():
    """Quartiles 2 and 4: the inner fence is at 7, and the outer one at 10."""
    assert robust_mean([1.0, 2.0, 3.0, 4.0, 9.5]) == pytest.approx(3.9)
    assert robust_mean([1.0, 2.0, 3.0, 4.0, 10.0]) == pytest.approx(4.0)
    assert robust_mean([1.0, 2.0, 3.0, 4.0, 50.0]) == pytest.approx(4.0)
    assert robust_mean([-4.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0)
    assert robust_mean([-40.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0)


def test_thousands_of_levels_that_join_nothing_are_refused_at_once():
    level = Level(name="none", size=1, latency_s=1e-6, bandwidth_bytes_per_s=1e9)
    with pytest.raises(InvalidValueError, match="number of levels is 5000; it must be at most 64"):
        Cluster(name="deep", levels=(level,) * 5000)

"""Which rank sits where, by the names of hosts."""

from __future__ import annotations

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration import links
from syncopate.topology import topology


class TestTopology:
    def test_one_host(self) -> None:
        where = topology(["a"] * 4)
        assert (where.names, where.sizes, where.placement) == (("host",), (4,), ())
        assert where.pairs == (((0, 1), (1, 2), (2, 3), (3, 0)),)

    def test_one_rank_and_two(self) -> None:
        assert topology(["a"]).pairs == ((),)
        assert topology(["a", "b"]).pairs == (((0, 1),),)

    def test_one_rank_per_host_is_flat(self) -> None:
        where = topology(["a", "b", "c"])
        assert (where.names, where.sizes) == (("host",), (3,))

    def test_two_levels(self) -> None:
        where = topology(["a", "a", "b", "b", "c", "c"])
        assert (where.names, where.sizes) == (("device", "host"), (2, 3))
        assert where.placement == ()
        assert where.pairs == (((0, 1), (2, 3), (4, 5)), ((0, 2), (2, 4), (4, 0)))

    def test_ranks_dealt_over_hosts(self) -> None:
        where = topology(["a", "b", "a", "b"])
        assert where.placement == (0, 2, 1, 3)
        assert where.pairs == (((0, 2), (1, 3)), ((0, 1),))
        cluster = Cluster(
            name="c",
            levels=tuple(
                links._level(name, size, [])
                for name, size in zip(where.names, where.sizes, strict=True)
            ),
            placement=where.placement,
            hosts=where.hosts,
        )
        assert cluster.level_between(0, 2).name == "device"
        assert cluster.level_between(0, 3).name == "host"

    def test_unequal_hosts_are_a_level(self) -> None:
        where = topology(["a", "a", "b"])
        assert (where.names, where.sizes) == (("device", "host"), ((2, 1), 2))
        assert where.pairs == (((0, 1),), ((0, 2),))

    def test_pairs_are_limited(self) -> None:
        pairs = topology(["a"] * 1000).pairs[0]
        assert len(pairs) == len(set(pairs)) == 16


class TestRacks:
    def test_racks_are_a_level_above_hosts(self) -> None:
        where = topology(["a", "b", "c", "d"], [["a", "c"], ["b", "d"]])
        assert (where.names, where.sizes) == (("host", "rack"), (2, 2))
        assert where.placement == (0, 2, 1, 3)
        assert where.pairs == (((0, 2), (1, 3)), ((0, 1),))

    def test_devices_hosts_and_racks(self) -> None:
        hosts = ["a", "b", "c", "d"] * 2
        where = topology(hosts, [["a", "c"], ["b", "d"]])
        assert (where.names, where.sizes) == (("device", "host", "rack"), (2, 2, 2))
        assert where.placement == (0, 4, 2, 6, 1, 5, 3, 7)
        assert where.pairs == (((0, 4), (2, 6), (1, 5), (3, 7)), ((0, 2), (1, 3)), ((0, 1),))

    def test_unequal_racks_are_a_level_too(self) -> None:
        where = topology(["a", "a", "b", "b", "c", "c"], [["a", "c"], ["b"]])
        assert (where.names, where.sizes) == (("device", "host", "rack"), (2, (2, 1), 2))
        assert where.placement == (0, 1, 4, 5, 2, 3)
        assert where.pairs == (((0, 1), (4, 5), (2, 3)), ((0, 4),), ((0, 2),))

    def test_unequal_hosts_in_racks_stay_together(self) -> None:
        where = topology(["a", "b", "c", "a"], [["a", "c"], ["b"]])
        sizes = ((2, 1, 1), (2, 1), 2)
        assert (where.names, where.sizes) == (("device", "host", "rack"), sizes)
        assert where.placement == (0, 3, 2, 1)
        assert where.pairs == (((0, 3),), ((0, 2),), ((0, 1),))

    def test_one_rack_is_none(self) -> None:
        assert topology(["a", "b"], [["a", "b"]]) == topology(["a", "b"])

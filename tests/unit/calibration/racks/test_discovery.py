"""A topology is discovered in simulated networks: levels, order, uplinks, and what is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.calibration import timing
from syncopate.calibration.racks import discovery
from syncopate.calibration.racks.levels import Matching, Round
from syncopate.calibration.racks.matchings import alone, alone_with_two, opening
from syncopate.calibration.racks.search import Racks
from syncopate.calibration.racks.table import groups_of
from syncopate.topology import Topology
from tests.unit.calibration.networks import Network

UNIT = 1e8
"""What a host's link carries in bytes per second, in a simulated network."""


class Alone:
    """A communicator of which rank 0 speaks for all."""

    rank = 0

    def broadcast_object(self, obj: Any) -> Any:
        return obj


def discovered(
    monkeypatch: pytest.MonkeyPatch, network: Network, ranks_per_host: int = 1
) -> tuple[Topology, list[Matching]]:
    """Return what is discovered in a network, and the matchings that were run."""
    hosts, ran = simulated(monkeypatch, network, ranks_per_host)
    return discovery.discover(Alone(), hosts, 60.0), ran  # type: ignore[arg-type]


def measured(
    monkeypatch: pytest.MonkeyPatch, network: Network, ranks_per_host: int = 1
) -> tuple[Topology, list[Matching]]:
    """Return what is measured of a network whose racks are known, and the matchings that ran."""
    hosts, ran = simulated(monkeypatch, network, ranks_per_host)
    monkeypatch.setattr(discovery, "RackSearch", None)
    groups = groups_of({f"h{i}": f"r{rack}" for i, rack in enumerate(network.racks)}, hosts, "f")
    return discovery.measure_racks(Alone(), hosts, groups, 60.0), ran  # type: ignore[arg-type]


def simulated(
    monkeypatch: pytest.MonkeyPatch, network: Network, ranks_per_host: int
) -> tuple[list[str], list[Matching]]:
    """Put a network in the place of flows; return the host of each rank and what will be run."""
    randomness = random.Random(1)
    ran: list[Matching] = []

    class Simulated:
        def __init__(self, communicator: object, leads: Sequence[int], seconds: float) -> None:
            assert list(leads) == [i * ranks_per_host for i in range(len(network.racks))]

        def run(self, matching: Matching, report: Callable[[], None]) -> Round:
            report()
            ran.append(matching)
            return network.measure(matching, randomness)

    monkeypatch.setattr(discovery, "Flows", Simulated)
    return [f"h{i}" for i in range(len(network.racks)) for _ in range(ranks_per_host)], ran


def unequal(uplink: float) -> Network:
    """Racks of 3 and of 5 hosts."""
    return Network([0, 1, 0, 1, 1, 0, 1, 1], [uplink, uplink], noise=0.03)


def require_racks(where: Topology, uplink: float) -> None:
    """Ask that the racks of :func:`unequal` are a level, with what an uplink carries."""
    assert (where.names, where.sizes) == (("host", "rack"), ((3, 5), 2))
    assert where.placement == (0, 2, 5, 1, 3, 4, 6, 7)
    assert where.rates_bytes_per_s == (0.0, pytest.approx(uplink * UNIT, rel=0.05))


class TestRacks:
    def test_hosts_in_turn_are_put_rack_by_rack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network = Network.regular(2, 4, 4.0, "alternating", noise=0.05)
        where, _ = discovered(monkeypatch, network)
        assert (where.names, where.sizes) == (("host", "rack"), (4, 2))
        assert where.placement == (0, 2, 4, 6, 1, 3, 5, 7)
        host, uplink = where.rates_bytes_per_s
        assert host == 0.0
        # Four hosts behind an uplink as wide as one.
        assert uplink == pytest.approx(UNIT, rel=0.05)
        assert where.warnings == ()

    def test_an_uplink_may_be_wider_than_a_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        where, _ = discovered(monkeypatch, Network.regular(2, 6, 2.0, "alternating", noise=0.03))
        assert where.rates_bytes_per_s == (0.0, pytest.approx(3 * UNIT, rel=0.05))

    def test_several_ranks_per_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network = Network.regular(2, 4, 4.0, "alternating", noise=0.05)
        where, _ = discovered(monkeypatch, network, ranks_per_host=2)
        assert (where.names, where.sizes) == (("device", "host", "rack"), (2, 4, 2))
        assert where.placement == (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)
        assert where.rates_bytes_per_s[:2] == (0.0, 0.0)

    @pytest.mark.parametrize("uplink", [2.0, 0.5])
    def test_unequal_racks_are_a_level(
        self, monkeypatch: pytest.MonkeyPatch, uplink: float
    ) -> None:
        where, _ = discovered(monkeypatch, unequal(uplink))
        require_racks(where, uplink)

    @pytest.mark.parametrize("hosts", [3, 4, 8])
    def test_flat(self, monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
        where, _ = discovered(monkeypatch, Network([0] * hosts, [1e9], noise=0.05))
        assert (where.names, where.sizes, where.placement) == (("host",), (hosts,), ())
        assert (where.rates_bytes_per_s, where.warnings) == ((), ())

    def test_two_hosts_exchange_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        where, ran = discovered(monkeypatch, Network([0, 0], [1e9]))
        assert where.sizes == (2,)
        assert ran == []

    @pytest.mark.parametrize("hosts", [16, 64])
    def test_traffic_is_p_log_p(self, monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
        network = Network.regular(4, hosts // 4, 4.0, "alternating", noise=0.05)
        _, ran = discovered(monkeypatch, network)
        assert sum(map(len, ran)) <= 4 * hosts * (hosts.bit_length() - 1)


class TestKnownRacks:
    """Nothing is searched for: what uplinks carry and who is slow is measured, in a few rounds."""

    @pytest.mark.parametrize("ratio", [4.0, 2.0, 1.0])
    def test_levels_placement_and_what_uplinks_carry(
        self, monkeypatch: pytest.MonkeyPatch, ratio: float
    ) -> None:
        network = Network.regular(2, 4, ratio, "alternating", noise=0.03)
        where, ran = measured(monkeypatch, network, ranks_per_host=2)
        assert (where.names, where.sizes) == (("device", "host", "rack"), (2, 4, 2))
        assert where.placement == (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)
        # One as wide as its hosts together slows no host down, and is a level all the same.
        assert where.rates_bytes_per_s == (0.0, 0.0, pytest.approx(4 / ratio * UNIT, rel=0.1))
        assert where.warnings == ()
        assert len(ran) == len(alone_with_two(8)) + 3 == 11

    @pytest.mark.parametrize("hosts", [3, 16, 200])
    def test_rounds_do_not_grow_with_the_hosts(
        self, monkeypatch: pytest.MonkeyPatch, hosts: int
    ) -> None:
        racks = [host % 2 for host in range(hosts)]
        where, ran = measured(monkeypatch, Network(racks, [1.0, 1.0]))
        assert len(ran) <= 21
        assert where.placement == (*range(0, hosts, 2), *range(1, hosts, 2))

    @pytest.mark.parametrize(("uplink", "carried"), [(2.0, 2.0), (0.5, 0.5), (5.0, 3.0)])
    def test_unequal_racks_are_as_if_they_had_been_found(
        self, monkeypatch: pytest.MonkeyPatch, uplink: float, carried: float
    ) -> None:
        """The three hosts of the smaller rack fill no uplink as wide as five."""
        where, _ = measured(monkeypatch, unequal(uplink))
        require_racks(where, carried)

    @pytest.mark.parametrize("racks", [[0] * 6, list(range(6))])
    def test_one_rack_and_racks_of_one_host_are_no_level(
        self, monkeypatch: pytest.MonkeyPatch, racks: list[int]
    ) -> None:
        rates = [1.0] * 5 + [0.1]
        where, ran = measured(monkeypatch, Network(racks, [1.0] * 6, rates))
        assert (where.names, where.sizes, where.placement) == (("host",), (6,), ())
        once = len(alone_with_two(6))
        assert tuple(ran[:once]) == alone_with_two(6)
        # A host that seems slow exchanges data again, every time with another host.
        assert ran[once:] == [((5, host),) for host in range(4)]
        # Slow hosts are named also without a search for racks.
        (warning,) = where.warnings
        assert warning.startswith("h5 exchanges data at ")

    @pytest.mark.parametrize("racks", [[0, 0], [0, 1]])
    def test_two_hosts_exchange_nothing(
        self, monkeypatch: pytest.MonkeyPatch, racks: list[int]
    ) -> None:
        where, ran = measured(monkeypatch, Network(racks, [1.0, 1.0]))
        assert (where.names, where.sizes) == (("host",), (2,))
        assert ran == []


class TestWarnings:
    @pytest.mark.parametrize("hosts", [3, 4, 8])
    def test_a_slow_host_is_named(self, monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
        rates = [1.0] * (hosts - 1) + [0.1]
        where, _ = discovered(monkeypatch, Network([0] * hosts, [1e9], rates, noise=0.03))
        assert where.sizes == (hosts,)
        (warning,) = where.warnings
        assert warning.startswith(f"h{hosts - 1} exchanges data at ")
        assert ", where the others reach " in warning
        # All wait for the slowest.
        assert where.rates_bytes_per_s == pytest.approx([0.1 * UNIT], rel=0.1)

    @pytest.mark.parametrize("find", [discovered, measured])
    @pytest.mark.parametrize("looks", [1, 4])
    def test_a_host_that_was_busy_for_a_while_is_not_named(
        self, monkeypatch: pytest.MonkeyPatch, find: Any, looks: int
    ) -> None:
        """Host 5 is slow for good, host 2 until both were looked at again so many times."""
        network = Network([0] * 6, [1e9], [1.0] * 5 + [0.1], noise=0.03)
        honest, seen = network.rates, []

        def rates(pairs: Matching) -> list[float]:
            # Two pairs at once are a second look: no other round of six hosts has two.
            seen.extend([pairs] if len(pairs) == 2 else [])
            busy = {2} if len(seen) < looks else set()
            return [
                rate * (0.3 if busy & set(pair) else 1.0)
                for pair, rate in zip(pairs, honest(pairs), strict=True)
            ]

        monkeypatch.setattr(network, "rates", rates)
        where, _ = find(monkeypatch, network)
        (warning,) = [one for one in where.warnings if "exchanges data at" in one]
        assert warning.startswith("h5 exchanges data at ")
        assert "h2" not in warning
        assert len(seen) == looks

    def test_many_slow_hosts_are_counted(self) -> None:
        best = (1.0,) * 20 + (0.1,) * 10
        found = Racks((tuple(range(30)),), tuple(range(20, 30)), best, resolved=True, rounds=9)
        where = discovery.topology_of([f"h{i}" for i in range(30)], found, [])
        assert where.warnings[0].count("exchanges data at") == 8
        assert "and 2 more hosts" in where.warnings[0]

    def test_rates_without_rhyme_or_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        randomness = random.Random(3)
        network = Network([0] * 8, [1e9])
        monkeypatch.setattr(
            network, "rates", lambda pairs: [randomness.uniform(0.1, 1.0) for _ in pairs]
        )
        where, _ = discovered(monkeypatch, network)
        assert (where.names, where.sizes, where.placement) == (("host",), (8,), ())
        assert any("could not be told" in warning for warning in where.warnings)

    def test_a_pause_of_the_search_does_not_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now_s = 0.0

        def pause(_: str, __: float) -> None:
            nonlocal now_s
            now_s += 1e6

        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s))
        hosts, _ = simulated(monkeypatch, Network.regular(2, 4, 4.0, "alternating"), 1)
        where = discovery.discover(Alone(), hosts, 1.0, pause)  # type: ignore[arg-type]
        assert where.names == ("host", "rack")

    def test_a_search_that_takes_too_long_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_PATIENCE", "_LEAST_PATIENCE_S"):
            monkeypatch.setattr(discovery, name, 0.0)
        where, ran = discovered(monkeypatch, Network.regular(2, 4, 4.0, "alternating"))
        assert tuple(ran) == (*alone(8), *opening(8))
        assert where.sizes == (8,)
        assert "could not be told" in where.warnings[0]

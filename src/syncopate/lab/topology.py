"""Topology: which hosts, links and racks a lab emulates, and which rank sits where."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from syncopate.artifacts.artifact import Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import format_count, format_rate

PLACEMENTS = ("blocked", "alternating")
"""How hosts fill racks: ``blocked`` one rack after the other, ``alternating`` in turn."""

MAX_HOSTS = 250
MAX_RANKS = 256
MIN_RATE_BYTES_PER_S = 1e6 / 8
MAX_RATE_BYTES_PER_S = 32e9 / 8

TCP_GOODPUT = 1448 / 1514
"""TCP payload over Ethernet frame: what an application gets of a shaped rate, at an MTU of 1500."""

LOCAL_LATENCY_S = 30e-6
LOCAL_BYTES_PER_S = 2e9
HOST_LATENCY_S = 60e-6
RACK_LATENCY_S = 75e-6
REDUCTION_S_PER_BYTE = 2.5e-10
"""Guesses for :meth:`Topology.cluster`: a small Gloo message one way, and memory-bound addition.

A lab shapes bandwidth and adds no latency, so what a message costs to start is this machine's own
network stack. ``syncopate calibrate`` inside the lab measures all of them.
"""


def require_rate(what: str, rate_bytes_per_s: float) -> None:
    """Refuse a rate that no link of a lab can have.

    Raises:
        InvalidValueError: not a finite number between 1 Mbit/s and 32 Gbit/s.
    """
    if (
        not math.isfinite(rate_bytes_per_s)
        or not MIN_RATE_BYTES_PER_S <= rate_bytes_per_s <= MAX_RATE_BYTES_PER_S
    ):
        raise InvalidValueError(
            what,
            rate_bytes_per_s,
            f"between {format_rate(MIN_RATE_BYTES_PER_S)} and {format_rate(MAX_RATE_BYTES_PER_S)},"
            " in bytes per second",
        )


class Topology(Record, frozen=True, kw_only=True):
    """An emulated cluster: hosts with one link each to the switch of their rack.

    Attributes:
        hosts: number of hosts, 1 to 250.
        ranks_per_host: ranks on each host; rank r is on host ``r // ranks_per_host``, as torchrun
            numbers them.
        rate_bytes_per_s: line rate of each host's link, each direction, in bytes of Ethernet
            frames; TCP gets 95.6% of it.
        host_rates_bytes_per_s: a rate per host instead; empty when all have the same.
        racks: number of racks; divides ``hosts``. Racks meet in one core switch.
        uplink_bytes_per_s: rate between a rack and the core, each direction; ``None`` for as much
            as the rack's hosts have together.
        placement: one of ``PLACEMENTS``.
    """

    hosts: int = 2
    ranks_per_host: int = 1
    rate_bytes_per_s: float = 1e9 / 8
    host_rates_bytes_per_s: tuple[float, ...] = ()
    racks: int = 1
    uplink_bytes_per_s: float | None = None
    placement: str = "blocked"

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise InvalidValueError("hosts", self.hosts, f"an integer in 1..{MAX_HOSTS}")
        most = MAX_RANKS // self.hosts
        if not 1 <= self.ranks_per_host <= most:
            raise InvalidValueError(
                "ranks per host", self.ranks_per_host, f"an integer in 1..{most} on {self.hosts} "
                f"hosts: a lab starts at most {MAX_RANKS} ranks"
            )  # fmt: skip
        if not 1 <= self.racks <= self.hosts or self.hosts % self.racks:
            fitting = [str(n) for n in range(1, self.hosts + 1) if self.hosts % n == 0]
            raise InvalidValueError(
                "racks", self.racks, f"a divisor of the {self.hosts} hosts: {', '.join(fitting)}"
            )
        if self.placement not in PLACEMENTS:
            raise UnknownNameError("placement", self.placement, PLACEMENTS)
        self._require_rates()

    def _require_rates(self) -> None:
        require_rate("rate", self.rate_bytes_per_s)
        for host, rate in enumerate(self.host_rates_bytes_per_s):
            require_rate(f"rate of host {host}", rate)
        if self.host_rates_bytes_per_s and len(self.host_rates_bytes_per_s) != self.hosts:
            raise InvalidValueError(
                "host rates", self.host_rates_bytes_per_s, f"one for each of {self.hosts} hosts"
            )
        if self.uplink_bytes_per_s is not None:
            if self.racks == 1:
                raise InvalidValueError(
                    "uplink", self.uplink_bytes_per_s, "left out with one rack, which has no uplink"
                )
            require_rate("uplink", self.uplink_bytes_per_s)

    def with_host_rates(self, rates_bytes_per_s: Mapping[int, float]) -> Topology:
        """Return this topology with other rates on some hosts.

        Args:
            rates_bytes_per_s: host -> rate of its link.

        Raises:
            InvalidValueError: no such host, or no such rate.
        """
        for host in rates_bytes_per_s:
            self._require("host", host, self.hosts)
        rates = tuple(rates_bytes_per_s.get(h, self.rate_of(h)) for h in range(self.hosts))
        return msgspec.structs.replace(self, host_rates_bytes_per_s=rates)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    @property
    def hosts_per_rack(self) -> int:
        """Number of hosts in each rack."""
        return self.hosts // self.racks

    def rate_of(self, host: int) -> float:
        """Return the line rate of a host's link, in bytes per second."""
        self._require("host", host, self.hosts)
        rates = self.host_rates_bytes_per_s
        return rates[host] if rates else self.rate_bytes_per_s

    def rack_of(self, host: int) -> int:
        """Return the rack that a host is in."""
        self._require("host", host, self.hosts)
        alternating = self.placement == "alternating"
        return host % self.racks if alternating else host // self.hosts_per_rack

    def hosts_of(self, rack: int) -> tuple[int, ...]:
        """Return the hosts of a rack, ascending."""
        self._require("rack", rack, self.racks)
        return tuple(host for host in range(self.hosts) if self.rack_of(host) == rack)

    def uplink_of(self, rack: int) -> float:
        """Return the rate between a rack and the core, in bytes per second."""
        hosts = self.hosts_of(rack)
        if self.uplink_bytes_per_s is not None:
            return self.uplink_bytes_per_s
        return min(sum(self.rate_of(host) for host in hosts), MAX_RATE_BYTES_PER_S)

    def host_of(self, rank: int) -> int:
        """Return the host that a rank runs on."""
        self._require("rank", rank, self.world_size)
        return rank // self.ranks_per_host

    def address(self, host: int) -> str:
        """Return the IPv4 address of a host; all labs use the same, each in its own namespaces."""
        self._require("host", host, self.hosts)
        return f"10.0.0.{host + 1}"

    def hostname(self, host: int) -> str:
        """Return the name of a host: ``host0``, ``host1``, ..."""
        self._require("host", host, self.hosts)
        return f"host{host}"

    def describe(self) -> str:
        """Return one line for people: ``"4 hosts x 2 ranks at 1.00 Gbit/s in 2 racks ..."``."""
        rates = {self.rate_of(host) for host in range(self.hosts)}
        slowest, fastest = format_rate(min(rates)), format_rate(max(rates))
        rate = slowest if len(rates) == 1 else f"{slowest} to {fastest}"
        ranks = format_count(self.ranks_per_host, "rank")
        text = f"{format_count(self.hosts, 'host')} x {ranks} at {rate}"
        if self.racks > 1:
            text += f" in {self.racks} racks ({self.placement})"
        if self.uplink_bytes_per_s is not None:
            text += f" with uplinks of {format_rate(self.uplink_bytes_per_s)}"
        return text

    def cluster(self) -> Cluster:
        """Return this topology as a cluster with nominal figures: rates given, latency guessed.

        A level's bandwidth is what one of its units sends, as calibration measures it: TCP's share
        of the slowest host's rate, and between racks, of the narrowest uplink.
        """
        slowest = min(self.rate_of(host) for host in range(self.hosts))
        levels = []
        if self.ranks_per_host > 1:
            levels.append(_level("device", self.ranks_per_host, LOCAL_LATENCY_S, LOCAL_BYTES_PER_S))
        if self.hosts_per_rack > 1 or self.racks == 1:
            rate = slowest * TCP_GOODPUT
            levels.append(_level("host", self.hosts_per_rack, HOST_LATENCY_S, rate))
        if self.racks > 1:
            rate = min(self.uplink_of(rack) for rack in range(self.racks))
            if self.hosts_per_rack == 1:
                # No level below says what a host can do.
                rate = min(rate, slowest)
            levels.append(_level("rack", self.racks, RACK_LATENCY_S, rate * TCP_GOODPUT))
        local = range(self.ranks_per_host)
        by_position = [h * self.ranks_per_host + i for r in range(self.racks)
                       for h in self.hosts_of(r) for i in local]  # fmt: skip
        placement = tuple(by_position) if by_position != sorted(by_position) else ()
        return Cluster(
            name=f"lab: {self.describe()}",
            levels=tuple(levels),
            placement=placement,
            hosts=tuple(self.hostname(self.host_of(rank)) for rank in range(self.world_size)),
            reduction_s_per_byte=REDUCTION_S_PER_BYTE,
            metadata={"source": "nominal figures of a lab topology; nothing was measured"},
        )

    def _require(self, what: str, value: int, count: int) -> None:
        if not 0 <= value < count:
            raise InvalidValueError(what, value, f"in 0..{count - 1}")


def _level(name: str, size: int, latency_s: float, bandwidth_bytes_per_s: float) -> Level:
    return Level(
        name=name, size=size, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s
    )

"""Network: namespaces, switches, links and their rates, made and counted through netlink.

Every host is a network namespace with one link, ``eth0``. Switches are bridges in namespaces of
their own, one per rack and one core between racks, so the machine's own network is never touched:

    host0 eth0 ---- h0 [rack0: bridge] up ---- r0 [core: bridge] r1 ---- up [rack1: bridge] ...

[Note: shaping] Both ends of every link carry a token bucket (tbf), so each direction has its own
rate, and two senders to one host share its link, as at the port of a real switch. Three figures
follow from the rate:

* *burst*, what may pass at once after silence, is a millisecond of the rate, at least 16 KiB. A
  deeper bucket would let small messages through as if the link had no rate; a shallower one loses
  throughput whenever the timer is late: with half of it, eight hosts on two cores kept plain
  streams at 95% of the rate.
* *segmentation*: the largest segment that TCP hands to the link is half a burst, at most 64 KiB.
  A segment larger than the bucket is cut in software and out of order: a ring of four hosts ran
  at 57% of its rate.
* *queue* is ten milliseconds of the rate, about a switch port's share of its packet buffer: deep
  enough that several senders to one receiver rarely lose packets, not so deep that it hides them.

No latency is added: that takes netem, which many kernels leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from syncopate.artifacts.artifact import Record
from syncopate.lab.kernel import add_namespace, explained, netlink
from syncopate.lab.names import core_namespace, host_namespace, rack_namespace
from syncopate.lab.topology import Topology
from syncopate.units import KIB

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_BURST_S = 1e-3
_FEWEST_BURST_BYTES = 16 * KIB
_MOST_SEGMENT_BYTES = 64 * KIB - 1
_QUEUE_S = 10e-3
_FEWEST_QUEUE_BYTES = 256 * KIB

_LOOPBACK_INDEX = 1
_PREFIX_LENGTH = 24
_BRIDGE = "br0"
# Without it every interface gets an IPv6 address, announces it, and adds its own bytes.
_NO_IPV6 = {"attrs": [("AF_INET6", {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", 1)]})]}


class LinkCounter(Record, frozen=True, kw_only=True):
    """The traffic of one link since it was made, in bytes of Ethernet frames.

    Headers count once per segment that TCP handed over, up to 64 KiB, so the figure is at most
    0.5% above the payload for large messages.

    Attributes:
        name: ``"host0"``, or ``"rack0"`` for the uplink of a rack.
        tx_bytes: bytes that the host, or the hosts of the rack, sent.
        rx_bytes: bytes that they received.
    """

    name: str
    tx_bytes: int
    rx_bytes: int


class Shape(NamedTuple):
    """How a rate is enforced; see [Note: shaping]."""

    rate_bytes_per_s: int
    burst_bytes: int
    segment_bytes: int
    queue_bytes: int


def shape_of(rate_bytes_per_s: float) -> Shape:
    """Return the token bucket, largest segment and queue that make a link of this rate."""
    burst = max(round(rate_bytes_per_s * _BURST_S), _FEWEST_BURST_BYTES)
    return Shape(
        rate_bytes_per_s=round(rate_bytes_per_s),
        burst_bytes=burst,
        segment_bytes=min(burst // 2, _MOST_SEGMENT_BYTES),
        queue_bytes=max(round(rate_bytes_per_s * _QUEUE_S), _FEWEST_QUEUE_BYTES),
    )


def namespaces(run_id: str, topology: Topology) -> tuple[str, ...]:
    """Return every namespace of a lab, hosts first."""
    switches = [rack_namespace(run_id, rack) for rack in range(topology.racks)]
    if topology.racks > 1:
        switches.append(core_namespace(run_id))
    return (*(host_namespace(run_id, host) for host in range(topology.hosts)), *switches)


def build(run_id: str, topology: Topology, checkpoint: Callable[[], None]) -> None:
    """Make the namespaces, switches and links of a lab.

    What was made before a refusal stays: the caller removes :func:`namespaces` either way.

    Args:
        run_id: the lab.
        topology: what to make.
        checkpoint: called between steps; what it raises ends the making.

    Raises:
        SyncopateError: the kernel refused; the message says what was being made, and why.
    """
    for name in namespaces(run_id, topology):
        checkpoint()
        with explained(f"make the network namespace {name}"):
            add_namespace(name)
    for rack in range(topology.racks):
        checkpoint()
        _build_rack(run_id, topology, rack)
    if topology.racks > 1:
        checkpoint()
        _build_core(run_id, topology)


def _build_rack(run_id: str, topology: Topology, rack: int) -> None:
    with (
        explained(f"make the switch of rack {rack}"),
        netlink(rack_namespace(run_id, rack)) as here,
    ):
        bridge = _add_bridge(here)
        for host in topology.hosts_of(rack):
            shape = shape_of(topology.rate_of(host))
            there = host_namespace(run_id, host)
            with explained(f"make the link of {topology.hostname(host)}"):
                _add_port(here, bridge, f"h{host}", there, "eth0")
                _shape(here, f"h{host}", shape)
                _set_up_host(there, topology.address(host), shape)


def _set_up_host(namespace: str, address: str, shape: Shape) -> None:
    with netlink(namespace) as host:
        host.link("set", index=_LOOPBACK_INDEX, state="up")
        (index,) = host.link_lookup(ifname="eth0")
        host.addr("add", index=index, address=address, prefixlen=_PREFIX_LENGTH)
        _shape(host, "eth0", shape)
        _set_up(host, index)


def _build_core(run_id: str, topology: Topology) -> None:
    with explained("make the core switch"), netlink(core_namespace(run_id)) as core:
        bridge = _add_bridge(core)
        for rack in range(topology.racks):
            shape = shape_of(topology.uplink_of(rack))
            there = rack_namespace(run_id, rack)
            with explained(f"make the uplink of rack {rack}"), netlink(there) as switch:
                _add_port(core, bridge, f"r{rack}", there, "up")
                _shape(core, f"r{rack}", shape)
                (index,) = switch.link_lookup(ifname="up")
                (rack_bridge,) = switch.link_lookup(ifname=_BRIDGE)
                _shape(switch, "up", shape)
                _set_up(switch, index, master=rack_bridge)


def _add_bridge(switch: IPRoute) -> int:
    # A snooping bridge queries its ports for listeners: bytes that no host has sent.
    switch.link("add", ifname=_BRIDGE, kind="bridge", br_mcast_snooping=0)
    (index,) = switch.link_lookup(ifname=_BRIDGE)
    _set_up(switch, index)
    return int(index)


def _add_port(switch: IPRoute, bridge: int, port: str, namespace: str, interface: str) -> None:
    """Make a link from ``port`` of this switch to ``interface`` in another namespace."""
    peer = {"ifname": interface, "net_ns_fd": namespace}
    switch.link("add", ifname=port, kind="veth", peer=peer)
    (index,) = switch.link_lookup(ifname=port)
    _set_up(switch, index, master=bridge)


def _set_up(where: IPRoute, index: int, **settings: Any) -> None:
    where.link("set", index=index, IFLA_AF_SPEC=_NO_IPV6)
    where.link("set", index=index, state="up", **settings)


def _shape(where: IPRoute, interface: str, shape: Shape, command: str = "add") -> None:
    (index,) = where.link_lookup(ifname=interface)
    largest = shape.segment_bytes
    where.link("set", index=index, gso_max_size=largest, gso_ipv4_max_size=largest)
    where.tc(
        command,
        "tbf",
        index=index,
        rate=shape.rate_bytes_per_s,  # pyroute2 takes a number for bytes, a text for bits
        burst=shape.burst_bytes,
        limit=shape.queue_bytes,
    )


def reshape(
    run_id: str, topology: Topology, host: int, rate_bytes_per_s: float, *, sent_only: bool = False
) -> None:
    """Give both ends of a host's link another rate, or only the end at the host, which sends.

    Raises:
        SyncopateError: the lab is gone.
    """
    shape = shape_of(rate_bytes_per_s)
    with (
        explained(f"reshape the link of {topology.hostname(host)}"),
        netlink(host_namespace(run_id, host)) as end,
        netlink(rack_namespace(run_id, topology.rack_of(host))) as switch,
    ):
        _shape(end, "eth0", shape, "replace")
        if not sent_only:
            _shape(switch, f"h{host}", shape, "replace")


def counters(run_id: str, topology: Topology) -> tuple[LinkCounter, ...]:
    """Return what each host's link has carried, then each uplink's.

    Read at the switch: what a port received, its host sent.

    Raises:
        SyncopateError: the lab is gone.
    """
    found: dict[str, LinkCounter] = {}
    for rack in range(topology.racks):
        with (
            explained(f"read the counters of rack {rack}"),
            netlink(rack_namespace(run_id, rack)) as switch,
        ):
            for link in switch.get_links():
                name, stats = link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_STATS64")
                if name == "up":
                    found[f"rack{rack}"] = _counter(
                        f"rack{rack}", stats["tx_bytes"], stats["rx_bytes"]
                    )
                elif name.startswith("h"):
                    host = topology.hostname(int(name[1:]))
                    found[host] = _counter(host, stats["rx_bytes"], stats["tx_bytes"])
    hosts = [topology.hostname(host) for host in range(topology.hosts)]
    racks = [f"rack{rack}" for rack in range(topology.racks) if topology.racks > 1]
    return tuple(found[name] for name in (*hosts, *racks))


def _counter(name: str, tx_bytes: int, rx_bytes: int) -> LinkCounter:
    return LinkCounter(name=name, tx_bytes=tx_bytes, rx_bytes=rx_bytes)


def since(before: tuple[LinkCounter, ...], now: tuple[LinkCounter, ...]) -> tuple[LinkCounter, ...]:
    """Return what each link carried between two readings."""
    return tuple(
        _counter(b.name, b.tx_bytes - a.tx_bytes, b.rx_bytes - a.rx_bytes)
        for a, b in zip(before, now, strict=True)
    )

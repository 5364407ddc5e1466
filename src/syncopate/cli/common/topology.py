"""The options that describe a lab's topology, shared by every command that makes one."""

from __future__ import annotations

from typing import Annotated

import typer

from syncopate.errors import InvalidValueError
from syncopate.lab.topology import PLACEMENTS, Topology, require_rate
from syncopate.units import parse_rate


def topology_options(
    *,
    hosts: Annotated[int, typer.Option("--hosts", "-n", help="Number of hosts.")] = 2,
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", "-r", help="Ranks on each host.")
    ] = 1,
    rate: Annotated[
        str, typer.Option(help="Line rate of each host's link, each direction.")
    ] = "1gbit",
    slow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another rate for one host, such as 2=100mbit; may be repeated."),
    ] = None,
    racks: Annotated[int, typer.Option(help="Racks; divides the hosts evenly.")] = 1,
    uplink: Annotated[
        str | None,
        typer.Option(help="Rate between a rack and the core; as much as its hosts' otherwise."),
    ] = None,
    placement: Annotated[
        str, typer.Option(help=f"How hosts fill racks: {' or '.join(PLACEMENTS)} between racks.")
    ] = "blocked",
) -> Topology:
    """Return the topology that the options describe."""
    topology = Topology(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        rate_bytes_per_s=_rate("--rate", rate),
        racks=racks,
        uplink_bytes_per_s=None if uplink is None else _rate("--uplink", uplink),
        placement=placement,
    )
    slow = dict(_host_rate(item) for item in slow_host or ())
    return topology.with_host_rates(slow) if slow else topology


def _rate(option: str, text: str) -> float:
    rate = parse_rate(text)
    require_rate(option, rate)
    return rate


def _host_rate(text: str) -> tuple[int, float]:
    host, equals, rate = text.partition("=")
    if not equals or not host.strip().isdecimal():
        raise InvalidValueError("--slow-host", text, "HOST=RATE, such as 2=100mbit")
    return int(host), _rate("--slow-host", rate)

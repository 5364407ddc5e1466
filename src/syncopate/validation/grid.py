"""Grid: the trainings of the lab that are predicted and measured, and in which order.

A cell is a number of hosts, a rate of their links, flat or in two racks, an exchange and a work.
Racks have an uplink half as fast as their hosts together. Parameter servers have hosts of their
own, half as many as there are workers, and no racks.

Cells come in an order in which the first two dozen have every host count, rate, shape, exchange and
work. So the first few are an even sample of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from msgspec import structs

from syncopate.artifacts.artifact import Record
from syncopate.artifacts.plan import SERVED, SERVERLESS
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.lab.topology import Topology
from syncopate.units import parse_rate

POINTS = 24
"""Cells that the command line measures unless told otherwise."""

HOSTS = (2, 4, 8)
RATES = ("250mbit", "500mbit", "1gbit", "2gbit", "4gbit")
RACKS = (1, 2)
AVERAGED = "averaged"
"""Local SGD: ranks step by themselves, and average weights every ``PERIOD`` steps."""

PERIOD = 4
WAYS = (*SERVERLESS, SERVED, AVERAGED)
REPLAYED, COMPUTING = "replayed", "computing"
WORKS = (REPLAYED, COMPUTING)
"""ResNet-50's gradients at a quarter of their size, whose computation is slept; and ResNet-20,
which computes."""

HOME_RATE = "700mbit"
"""Where clusters are calibrated and works profiled: a rate that no cell has."""

NO_LIMIT = "32gbit"
"""A rate at which processors, and not links, are what iterations wait for."""

_STRIDE = 0.6180339887498949


class Cell(Record, frozen=True, kw_only=True):
    """One training in the lab.

    Attributes:
        hosts: that train, one rank each.
        rate: of each host's link, such as ``"1gbit"``.
        racks: 1 or 2.
        exchange: one of ``WAYS``.
        work: one of ``WORKS``.
    """

    hosts: int
    rate: str
    racks: int
    exchange: str
    work: str

    def __post_init__(self) -> None:
        if self.exchange not in WAYS:
            raise UnknownNameError("exchange", self.exchange, WAYS)
        if self.work not in WORKS:
            raise UnknownNameError("work", self.work, WORKS)
        if self.racks > 1 and self.exchange == SERVED:
            raise InvalidValueError("racks", self.racks, f"1 with the {SERVED} exchange")

    @property
    def name(self) -> str:
        """Its name among the points of the lab."""
        return f"{self.hosts} hosts, {self.network}, {self.exchange}, {self.work}"

    @property
    def network(self) -> str:
        """Its links, for tables."""
        return f"{self.rate} {'flat' if self.racks == 1 else f'{self.racks} racks'}"

    @property
    def servers(self) -> int:
        """How many parameter servers there are; 0 with any other exchange."""
        return max(self.hosts // 2, 1) if self.exchange == SERVED else 0

    @property
    def workers(self) -> Topology:
        """The hosts that train, and their links."""
        return _topology(self.hosts, self.rate, self.racks)

    @property
    def topology(self) -> Topology:
        """The lab: workers, and where there are servers, these and a scheduler."""
        if not self.servers:
            return self.workers
        return _topology(self.hosts + self.servers + 1, self.rate, 1)

    @property
    def unlimited(self) -> Cell:
        """The same training where links are no limit."""
        found: Cell = structs.replace(self, rate=NO_LIMIT, racks=1)
        return found


def home_of(hosts: int) -> Topology:
    """Return where some hosts are calibrated: flat, at a rate that no cell has."""
    return _topology(hosts, HOME_RATE, 1)


def cells() -> tuple[Cell, ...]:
    """Return all cells, in the order in which they are measured; see the module."""
    every = list(_every())
    step = round(len(every) * _STRIDE)
    while math.gcd(step, len(every)) != 1:
        step += 1
    return tuple(every[index * step % len(every)] for index in range(len(every)))


def _every() -> Iterator[Cell]:
    for hosts, racks, work, rate, exchange in product(HOSTS, RACKS, WORKS, RATES, WAYS):
        if racks == 1 or (hosts // racks > 1 and exchange != SERVED):
            yield Cell(hosts=hosts, rate=rate, racks=racks, exchange=exchange, work=work)


def _topology(hosts: int, rate: str, racks: int) -> Topology:
    link = parse_rate(rate)
    uplink = link * hosts / racks / 2 if racks > 1 else None
    return Topology(hosts=hosts, rate_bytes_per_s=link, racks=racks, uplink_bytes_per_s=uplink)

"""Parts: what the campaign consists of, each with its lab and the module that measures it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncopate.errors import UnknownNameError
from syncopate.lab import Topology

GBIT = 1e9 / 8


@dataclass(frozen=True)
class Part:
    """One part of the campaign.

    Attributes:
        name: what ``--part`` calls it.
        title: one line for people.
        topology: the lab it runs in.
        body: module of this package that measures it.
        ends_ranks: whether it makes labs of its own, whose ranks it ends.
    """

    name: str
    title: str
    topology: Topology
    body: str
    ends_ranks: bool = False


_EIGHT = Topology(hosts=8)
# Two cores cannot drive sixteen links at 1 Gbit/s, nor at a quarter of it.
_SIXTEEN = Topology(hosts=16, rate_bytes_per_s=GBIT / 10)
_RACKS = Topology(hosts=8, racks=2, uplink_bytes_per_s=GBIT, placement="alternating")

PARTS = (
    Part("flat4", "Every collective on 4 hosts at 1 Gbit/s", Topology(hosts=4), "flat"),
    Part("flat8", "Every collective on 8 hosts at 1 Gbit/s", _EIGHT, "flat"),
    Part("pipeline8", "The linear pipeline on 2, 4 and 8 hosts at 1 Gbit/s", _EIGHT, "pipeline"),
    Part("pipeline16", "The linear pipeline on 2 to 16 hosts at 100 Mbit/s", _SIXTEEN, "pipeline"),
    Part("racks", "An all-reduce between two racks", _RACKS, "racks"),
    Part("nodes", "4 hosts of 2 ranks", Topology(hosts=4, ranks_per_host=2), "nodes"),
    Part("failures", "What the user sees when hosts fail", Topology(hosts=4), "failures", True),
)


def chosen(names: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts called ``names``, all when there are none, in the order of ``PARTS``.

    A name stands for every part that begins with it: ``flat`` for ``flat4`` and ``flat8``.

    Raises:
        UnknownNameError: a name that no part begins with.
    """
    for name in names:
        if not any(part.name.startswith(name) for part in PARTS):
            raise UnknownNameError("part", name, [part.name for part in PARTS])
    return tuple(
        part for part in PARTS if not names or any(part.name.startswith(name) for name in names)
    )


def by_lab(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Return the parts in groups that share the ranks of a lab, which are started once.

    Parts that end their ranks share them with no other part.
    """
    groups: dict[tuple[str, bool], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.topology.describe(), part.ends_ranks), []).append(part)
    return [tuple(group) for group in groups.values()]

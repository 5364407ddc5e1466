"""Targets: what the campaign is to show, computed from results; each met or not.

"Faster than Gloo's own" is the ratio of the medians, Gloo's over ours. "Of the bound" is the
line-rate bound (:mod:`.bounds`) over the median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.schedules.registry import NATIVE
from syncopate.units import KIB, MIB, format_bytes

from .bounds import bound_s
from .results import Cell, PartResult

SHARDED = ("all_reduce", "reduce_scatter", "all_gather")
ROOTED = ("broadcast", "reduce")

LISTED = "native, of a list"
"""Gloo's reduce-scatter of a list of shards; ``"native"`` is that of one tensor."""

GLOO = (NATIVE, LISTED)

NEVER_S = 1e9
"""Stands for never: JSON has no infinity."""

_UNITS: dict[str, Callable[[float], str]] = {
    "%": lambda value: f"{value:.1%}",
    "x": lambda value: f"{value:.2f}x",
    "s": lambda value: f"{value:.1f} s" if value < NEVER_S else "never",
    "": lambda value: f"{value:g}",
}


class Target(Record, frozen=True, kw_only=True):
    """One figure and what it should be.

    Attributes:
        part: where it was measured.
        what: what it is.
        value: as measured.
        limit: as wanted.
        at_least: whether it should be at least the limit, or at most.
        unit: ``"%"`` for a share, ``"x"`` for a factor, ``"s"`` for seconds, empty for a
            number.
        note: what explains it; may be empty.
        met: whether the figure is what it should be; worked out, whatever is given.
    """

    part: str
    what: str
    value: float
    limit: float
    at_least: bool = True
    unit: str = "%"
    note: str = ""
    met: bool = False

    def __post_init__(self) -> None:
        met = self.value >= self.limit if self.at_least else self.value <= self.limit
        msgspec.structs.force_setattr(self, "met", met)

    @property
    def figures(self) -> tuple[str, str]:
        """Measured and wanted, for people."""
        show = _UNITS[self.unit]
        return show(self.value), f"{'>=' if self.at_least else '<='} {show(self.limit)}"


class Verdicts(Artifact, frozen=True, kw_only=True):
    """Every target of a report, for programs."""

    KIND = "collectives-lab-targets"

    targets: tuple[Target, ...]


def targets(result: PartResult) -> tuple[Target, ...]:
    """Return the targets of a part, in the order of the report."""
    for prefix, found in _BY_PART.items():
        if result.part.startswith(prefix):
            return tuple(found(result))
    return ()


def share_of_bound(result: PartResult, cell: Cell, contender: str) -> float:
    """Return the line-rate bound over the median."""
    hosts = cell.world_size // result.topology.ranks_per_host
    bound = bound_s(result.topology, cell.collective, cell.nbytes, hosts=hosts)
    return bound / cell.contenders[contender].median_s


def _flat(result: PartResult) -> Iterator[Target]:
    for cell in result.cells:
        wanted = _wanted_share(cell)
        if wanted:
            what = f"{cell.collective} of {format_bytes(cell.nbytes)}: of the line-rate bound"
            yield Target(
                part=result.part,
                what=what,
                value=share_of_bound(result, cell, "auto"),
                limit=wanted,
            )
    slower = [cell for cell in result.cells if cell.slower("auto", "native")]
    yield Target(
        part=result.part,
        what=f"collectives and sizes, of {len(result.cells)}, slower than Gloo's own beyond noise",
        value=len(slower),
        limit=0,
        at_least=False,
        unit="",
        note=", ".join(_slower(cell) for cell in slower),
    )
    for cell in result.cells:
        wanted = _wanted_ratio(cell)
        for peer in (name for name in GLOO if wanted and name in cell.contenders):
            what = f"{cell.collective} of {format_bytes(cell.nbytes)}: faster than Gloo's own"
            share = share_of_bound(result, cell, peer)
            note = (
                f"auto took {cell.contenders['auto'].ran}; {peer} reached {share:.1%} of the bound"
            )
            if share * wanted > 1:
                note += f"; at the bound itself it would be {1 / share:.2f}x"
            yield Target(
                part=result.part,
                what=what + (", of a list of shards" if peer == LISTED else ""),
                value=cell.ratio(peer, "auto"),
                limit=wanted,
                unit="x",
                note=note,
            )


def _slower(cell: Cell) -> str:
    ran = cell.contenders["auto"].ran
    return f"{cell.collective} {format_bytes(cell.nbytes)} by {ran}"


def _wanted_share(cell: Cell) -> float:
    if cell.collective in SHARDED and cell.nbytes >= 4 * MIB:
        return 0.97 if cell.nbytes >= 16 * MIB else 0.92
    return 0.95 if cell.collective in ROOTED and cell.nbytes >= 64 * MIB else 0.0


def _wanted_ratio(cell: Cell) -> float:
    if cell.collective == "all_reduce" and cell.nbytes <= 64 * KIB and cell.world_size == 8:
        return 3.0
    return 2.5 if cell.collective == "reduce_scatter" and cell.nbytes == 16 * MIB else 0.0


def _pipeline(result: PartResult) -> Iterator[Target]:
    if result.topology.hosts > 8:
        return  # shown without a target: so many hosts want more processors than links
    for collective, few in (("broadcast", 2), ("reduce", 2), ("all_reduce", 4)):
        cells = {cell.world_size: cell for cell in _compared(result, collective)}
        if few not in cells:
            continue
        size = format_bytes(cells[few].nbytes)
        lp = {p: cells[p].contenders["lp"].median_s for p in (few, 8)}
        yield Target(
            part=result.part,
            what=f"LP {collective} of {size} on 8 hosts over that on {few}",
            value=lp[8] / lp[few],
            limit=1.06,
            at_least=False,
            unit="x",
            note="of two ranks neither passes on what it gets" if few == 4 else "",
        )
        if collective == "broadcast":
            yield Target(
                part=result.part,
                what=f"LP broadcast of {size} on 8 hosts: faster than Gloo's own",
                value=cells[8].ratio("native", "lp"),
                limit=5.0,
                unit="x",
            )


def _compared(result: PartResult, collective: str) -> tuple[Cell, ...]:
    return tuple(cell for cell in result.of(collective) if "lp" in cell.contenders)


def _racks(result: PartResult) -> Iterator[Target]:
    yield Target(
        part=result.part,
        what="ranks that calibration put into their own rack",
        value=_in_their_rack(result),
        limit=1.0,
    )
    for cell in (cell for cell in result.cells if cell.nbytes == 32 * MIB):
        for name in ("auto", "auto, nominal"):
            what = f"{cell.collective} of {format_bytes(cell.nbytes)} ({name})"
            ran = f"it took {cell.contenders[name].ran}"
            yield Target(
                part=result.part,
                what=f"{what}: faster than Gloo's own",
                value=cell.ratio("native", name),
                limit=3.0,
                unit="x",
                note=ran,
            )
            yield Target(
                part=result.part,
                what=f"{what}: over the bound",
                value=1 / share_of_bound(result, cell, name),
                limit=1.1,
                at_least=False,
                unit="x",
            )


def _in_their_rack(result: PartResult) -> float:
    """Return the share of ranks whose neighbours, by calibration, are those of their rack."""
    topology = result.topology
    ranks = topology.world_size
    if len(result.levels) < 2 or result.levels[-1].size != topology.racks:
        return 0.0
    placement = result.placement or tuple(range(ranks))
    length = ranks // topology.racks
    found = 0
    for begin in range(0, ranks, length):
        racks = [topology.rack_of(topology.host_of(r)) for r in placement[begin : begin + length]]
        found += max(racks.count(rack) for rack in racks)
    return found / ranks


def _nodes(result: PartResult) -> Iterator[Target]:
    for cell in result.cells:
        for name, sampled in cell.contenders.items():
            sent = sum(sampled.link_bytes.values())
            scheduled = sum(sampled.scheduled_bytes.values())
            if scheduled and cell.nbytes >= MIB:
                yield Target(
                    part=result.part,
                    what=f"{name}, {format_bytes(cell.nbytes)}: sent over what the schedule says",
                    value=sent / scheduled,
                    limit=1.05,
                    at_least=False,
                    unit="x",
                )


def _failures(result: PartResult) -> Iterator[Target]:
    for scene in result.scenes:
        named_s = scene.named_s
        yield Target(
            part=result.part,
            what=f"{scene.title}: until it was named",
            value=NEVER_S if named_s is None else named_s,
            limit=scene.limit_s,
            at_least=False,
            unit="s",
            note="it was not named" if named_s is None else "",
        )


_BY_PART: dict[str, Callable[[PartResult], Iterator[Target]]] = {
    "flat": _flat,
    "pipeline": _pipeline,
    "racks": _racks,
    "nodes": _nodes,
    "failures": _failures,
}

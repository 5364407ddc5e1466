"""SketchDLC's rows: Tables 5 to 7, Figs. 9 to 18, Section 5.3, and what its traces are for.

Measured are real processes of two cores, so that ratios and counts can agree and times cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sketchdlc
import sketchdlc_networks as networks
from sketchdlc_paper import TABLE_5, sizes_by_formula
from sketchdlc_paper import Paper as Printed
from sketchdlc_paper import paper as printed
from sketchdlc_runs import OPERATIONS, Place, Study, Trained
from sketchdlc_worker import LENET5, RESNET50

from .rows import Drawn, Figure, Given, Paper

TITLES = sketchdlc.TITLES
OVERHEADS = ("synchronization", "update", "search")
_MS = 1e3


class Sides(NamedTuple):
    """A network on the paper's side and on ours."""

    theirs: Printed
    ours: Trained


def figures(study: Study) -> Iterator[Figure]:
    """Yield all rows."""
    sides = {name: Sides(printed(name), ours) for name, ours in study.networks.items()}
    for name, both in sides.items():
        yield from table_5(name, both)
    for name, both in sides.items():
        yield lengths(name, both)
    for name, both in sides.items():
        yield from phases(name, both)
    for name, both in sides.items():
        yield from overheads(name, both)
    yield from proportions(sides)
    yield from aggregation()


def table_5(name: str, both: Sides) -> Iterator[Figure]:
    """Yield the bytes of an iteration, under what they are and not under the printed headings."""
    formula = sizes_by_formula(name)
    for heading, operation in TABLE_5.items():
        right = sketchdlc.NAMES[operation]
        wrong = "" if heading == right else f"; printed under {heading}"
        short = operation not in sketchdlc.OF_TENSORS
        header = "; our messages are shorter" if short else "; our headers are shorter"
        yield Figure(
            "Table 5",
            f"{TITLES[name]}, {right}: data of an iteration",
            both.theirs.text[f"Table 5 {heading}"],
            simulated=sum(sizes[operation] for sizes in formula) / 1e6,
            measured=both.ours.bytes_per_iteration[operation] / 1e6,
            form="{:.5g} MB",
            why=f"simulated: by formula{wrong}{header}",
        )


def lengths(name: str, both: Sides) -> Figure:
    """Return how many of the message lengths of Table 6 or 7 the formula gives, and ours carry."""
    formula, sizes = sizes_by_formula(name), both.theirs.sizes
    count = sum(
        formula[key][operation] == row[operation]
        for key, row in sizes.items()
        for operation in OPERATIONS
    )
    return Figure(
        "Table 6" if name == LENET5 else "Table 7",
        f"{TITLES[name]}: lengths of messages that 4 x elements and a constant give",
        len(sizes) * len(OPERATIONS),
        simulated=count,
        form="{:.0f}",
        why="33, 35 or 36 bytes around a push; ours carry the same tensors in shorter headers",
    )


def phases(name: str, both: Sides) -> Iterator[Figure]:
    """Yield the means of Figs. 9, 10, 15 and 16."""
    theirs, found = both.theirs, both.ours.found()

    def mean(quantity: str) -> float:
        return (found[Place(quantity, "w0")].mean + found[Place(quantity, "w1")].mean) / 2

    why = {
        LENET5: "a core computes 13 to 16 times as long as a K80",
        RESNET50: "copies of 102 MB each way on the cores that add them up",
    }[name]
    for where, what, quantity in (
        ("Fig. 9, text", "computation", "computation"),
        ("Fig. 9, text", "communication", "phase 3"),
    ):
        yield Figure(
            where,
            f"{TITLES[name]}: {what}",
            theirs.text[what] * _MS,
            simulated=theirs.points[Place(quantity, "w0")].mean * _MS,
            measured=mean(quantity) * _MS,
            form="{:.4g} ms",
            why=f"simulated: our analysis of Fig. 9's points; {why}",
        )
    yield Figure(
        "Fig. 10, text",
        f"{TITLES[name]}: overlap",
        100 * theirs.text["overlap"],
        simulated=100 * theirs.points[Place("overlap", "w0")].mean,
        measured=100 * mean("overlap"),
        form="{:.1f}%",
        points=True,
        why="simulated: our analysis of Fig. 9's points, phase 2 over phases 1 and 3",
    )
    drawn = [theirs.normals[Place("computation", node)].mean for node in ("w0", "w1")]
    yield Figure(
        "Figs. 15, 16",
        f"{TITLES[name]}: computation of Fig. 15 over the mean that Fig. 16 draws of it",
        1.0,
        simulated=theirs.text["computation"] / (sum(drawn) / 2),
        why="Fig. 16 draws phase 1 alone",
    )


def overheads(name: str, both: Sides) -> Iterator[Figure]:
    """Yield the averages of Section 5.3: means over keys and workers."""
    found = both.ours.found()
    for quantity in OVERHEADS:
        ours = sketchdlc.over_keys(found, quantity)
        bars = [bar.mean for at, bar in both.theirs.bars.items() if at.quantity == quantity]
        known = [value for value in bars if value is not None]
        yield Figure(
            f"{sketchdlc.PER_KEY[quantity]}, text",
            f"{TITLES[name]}: {quantity}",
            both.theirs.text[quantity] * _MS,
            simulated=sum(known) / len(known) * _MS,
            measured=None if ours is None else ours * _MS,
            form="{:.3g} ms",
            why="simulated: the mean of the bars. " + _WHY[quantity],
        )


_WHY = {
    "synchronization": "four processes share two cores here",
    "update": "our server answers before it updates",
    "search": "here it holds the wait for the other worker's push",
}


def proportions(sides: dict[str, Sides]) -> Iterator[Figure]:
    """Yield what Section 5.3 says of the larger network over the smaller one."""
    large, small = sides.get(RESNET50), sides.get(LENET5)
    if large is None or small is None:
        return
    for what, said, quantity in (
        ("data", 60, ""),
        ("communication", 56, "phase 3"),
        ("computation", 143, "computation"),
        ("update", 11, "update"),
        ("search", 3, "search"),
        ("synchronization", 26, "synchronization"),
    ):
        ratios = []
        for side in (large, small):
            found = side.ours.found()
            values = [one.mean for at, one in found.items() if at.quantity == quantity]
            if not quantity:
                values = [side.ours.bytes_per_iteration["push_sent"]]
            text = side.theirs.text.get(what, side.theirs.text["Table 5 Push_Send"])
            ratios.append((text, sum(values) / len(values)))
        (text, ours), (less_text, less) = ratios
        yield Figure(
            "Section 5.3",
            f"ResNet-50's {what} over LeNet-5's",
            said,
            simulated=text / less_text,
            measured=ours / less,
            form="{:.1f}x",
            why="simulated: from the averages that it prints",
        )


def aggregation() -> Iterator[Figure]:
    """Yield what adding up in the switch gives, which the paper leaves for later."""
    for name in TITLES:
        for workers, rate in ((2, 56e9), (2, 10e9), (32, 56e9), (32, 10e9)):
            row = networks.played(name, workers, rate)
            yield Figure(
                "Sections 2.3, 7",
                f"{TITLES[name]}, {workers} workers, {rate / 1e9:.0f} Gbit/s: gain by aggregation "
                "in the switch",
                "announced",
                simulated=100 * row.gain,
                form="{:+.0f}%",
                why=f"{row.server_bytes[0] / 1e6:,.1f} MB into the server an iteration, "
                f"{row.server_bytes[1] / 1e6:,.1f} MB with it",
            )


def other_networks(name: str) -> Drawn:
    """Return the network on other links and with more workers."""
    rows = networks.grid(name)
    lines = [
        (str(workers), *(networks.shown(row) for row in rows if row.workers == workers))
        for workers in networks.TEAMS
    ]
    headings = ("workers", *(f"{rate / 1e9:.0f} Gbit/s" for rate in networks.RATES_BITS_PER_S))
    title = f"{TITLES[name]}'s iteration on other networks in ms: plain, aggregated (gain)"
    return Drawn(title, headings, tuple(lines))


def given() -> Iterator[Given]:
    """Yield what goes into the played networks."""
    yield Given("phases 1 and 2", "means by network", "the points of Fig. 9")
    for name in TITLES:
        yield Given(
            f"{TITLES[name]}: phase 3 beside computation and the wire",
            f"{networks.held_s(name) * _MS:.1f} ms",
            "Fig. 9's phase 3 less what 56 Gbit/s and two workers take; held on other networks",
        )
    yield Given("latency", "5 us", "assumed")


def paper(*, quick: bool = False) -> Paper:
    """Return all of the paper; nothing of it takes long."""
    study = Study.load(sketchdlc.CAPTURED)
    drawn = tuple(other_networks(name) for name in TITLES)
    return Paper("sketchdlc", "SketchDLC", tuple(given()), tuple(figures(study)), drawn)

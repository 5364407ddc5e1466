"""What SketchDLC prints and draws: its Tables 5 to 7, Section 5.3 and Figs. 9 to 18.

The tables in ``data/sketchdlc`` say where they come from. The points of Fig. 9 become messages with
these phases, and go through the same analysis as traces do.

What the paper gets wrong:

* Table 5 has the last three of its headings in another order than its values: by Tables 6 and 7
  what stands under Pull_Send is Push_Recv's, under Pull_Recv Pull_Send's, and under Push_Recv
  Pull_Recv's. Of ResNet-50 it prints 102.21 and 0.00331 MB where these lengths add up to 102.20
  and 0.00330.
* Fig. 16, "computation overheads", draws phase 1: its means are those of phase 1 in Fig. 9, and not
  those of Fig. 15 and of the text, which are of phases 1 and 2.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sketchdlc_runs import FIRST, OPERATIONS, Place, analysed
from sketchdlc_worker import LENET5, PARAMETERS, RESNET50
from syncopate.analysis.serving import Distribution, Message

DATA = Path(__file__).parent / "data" / "sketchdlc"
TABLE_5 = {
    "Push_Send": "push_sent",
    "Pull_Send": "push_received",
    "Pull_Recv": "pull_sent",
    "Push_Recv": "pull_received",
}
"""Heading of Table 5 as printed -> what a worker did with the bytes under it."""

_FRAME = {LENET5: 33, RESNET50: 35}
_MICROSECOND = 1e-6


class Bar(NamedTuple):
    """A bar of Figs. 11, 13 and 17 in seconds; None where the plot cannot be read."""

    least: float | None
    mean: float | None
    most: float | None


class Normal(NamedTuple):
    """A normal distribution of Figs. 10, 12, 14, 16 and 18, in seconds; an overlap is a ratio."""

    mean: float
    deviation: float


class Paper(NamedTuple):
    """What the paper says of a network.

    Attributes:
        sizes: key -> bytes of a worker's messages, by what it did: Tables 6 and 7.
        bars: Figs. 11, 13 and 17.
        normals: Figs. 10, 12, 14, 16 and 18.
        text: what -> what Table 5 (MB) and Section 5.3 (seconds; an overlap is a ratio) print.
        points: the distributions over the points of Fig. 9.
    """

    sizes: dict[int, dict[str, int]]
    bars: dict[Place, Bar]
    normals: dict[Place, Normal]
    text: dict[str, float]
    points: dict[Place, Distribution]


def paper(network: str) -> Paper:
    """Return what the paper says of ``"lenet5"`` or ``"resnet50"``."""
    sizes = {
        int(row["key"]): {name: int(row[name]) for name in OPERATIONS}
        for row in rows_of("lengths", network)
    }
    bars: dict[Place, Bar] = {}
    normals: dict[Place, Normal] = {}
    for row in rows_of("figures", network):
        place = Place(row["quantity"], row["node"], int(row["key"] or -1))
        unit = 1.0 if place.quantity == "overlap" else _MICROSECOND
        bar = Bar(*(float(row[name]) * unit if row[name] else None for name in Bar._fields))
        if any(bar):
            bars[place] = bar
        if row["fit_mean"]:
            fit = (float(row[f"fit_{name}"]) * unit for name in Normal._fields)
            normals[place] = Normal(*fit)
    text = {
        row["what"]: float(row[network]) * (_MICROSECOND if row["unit"] == "us" else 1.0)
        for row in rows_of("text")
    }
    points = analysed(messages_of_points(network))
    # When the first weights come Fig. 9 does not say.
    del points[Place("wait", "w0")]
    return Paper(sizes, bars, normals, text, points)


def rows_of(name: str, network: str = "") -> Iterator[dict[str, str]]:
    """Yield the rows of one of the paper's tables; of one network where one is named."""
    with (DATA / f"{name}.csv").open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if not network or row["network"] == network:
                yield row


def messages_of_points(network: str) -> Iterator[Message]:
    """Yield a worker's messages of two keys, whose phases are the points of Fig. 9."""
    at_s = 0.0

    def message(iteration: int, key: int, time_s: float, *, push: bool) -> Message:
        return Message("w0", push, push, key, iteration, "s0", time_s)

    for key in (0, 1):
        yield message(FIRST - 1, key, at_s, push=False)
    for iteration, row in enumerate(rows_of("phases", network), start=FIRST):
        one_s, two_s, three_s = (float(row[f"phase{n}"]) * _MICROSECOND for n in (1, 2, 3))
        pushed_s = at_s + one_s
        yield message(iteration, 0, pushed_s, push=True)
        yield message(iteration, 1, pushed_s + two_s, push=True)
        at_s = pushed_s + three_s
        for key in (0, 1):
            yield message(iteration, key, at_s, push=False)


def sizes_by_formula(network: str) -> list[dict[str, int]]:
    """Return bytes of the paper's messages by key and what a worker does, as Tables 6 and 7.

    A push is ``4 x numel`` and what stands around it: 33 bytes with LeNet-5, 35 with ResNet-50,
    whose numbers are longer, and one more where the key takes two bytes, from 128 on. Weights have
    three bytes more.
    """
    frame = _FRAME[network]
    found = []
    for key, parameter in enumerate(PARAMETERS[network]()):
        pushed = 4 * parameter.numel + frame + (key >= 128)
        sizes = (pushed, frame - 14, frame - 5, pushed + 3)
        found.append(dict(zip(OPERATIONS, sizes, strict=True)))
    return found

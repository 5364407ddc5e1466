"""ResNet-50's layers, from the table with which ``syncopate validate`` predicts."""

from __future__ import annotations

from importlib.resources import as_file, files
from itertools import groupby

from mg_wfbp import lines

TABLE = files("syncopate.validation") / "data" / "resnet50.csv"


def layers() -> tuple[tuple[int, float], ...]:
    """Return bytes and seconds of backward of each layer, the last layer of the network first."""
    with as_file(TABLE) as path:
        rows = list(lines(path))
    return tuple(
        (
            sum(4 * int(row["numel"]) for row in layer),
            sum(float(row["backward_ms"]) for row in layer) * 1e-3,
        )
        for layer in (
            list(of) for _, of in groupby(rows, key=lambda row: row["name"].partition(".")[0])
        )
    )

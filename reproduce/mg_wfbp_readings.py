"""Fig. 9 of MG-WFBP from its authors' logs, read as their script reads them.

    python reproduce/mg_wfbp_readings.py logdata/tmp*comm.log

``read_log`` of their ``scripts/utils.py`` takes every line of a log that has a backward time and an
all-reduce of its own, of all tables in the file: GoogLeNet twice, so to say, where a log has two.
``mg_wfbp.py`` takes the last table, once. The lines that this prints are kept in
``data/mg_wfbp_readings.csv``; the logs are not.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mg_wfbp_inputs as inputs
from mg_wfbp import ALPHA_S, BETA_S_PER_BYTE, DATA, GAMMA_S_PER_BYTE, lines
from syncopate.errors import ArtifactError, SyncopateError

READINGS = DATA.parent / "mg_wfbp_readings.csv"
NODES = 64


class Reading(NamedTuple):
    """What a log comes to on 64 nodes.

    Attributes:
        log: its name.
        layers: lines that count.
        backward_ms: of them all.
        buckets: of Algorithm 1.
        over_wfbp: of MG-WFBP.
        over_single: of MG-WFBP over SyncEASGD.
    """

    log: str
    layers: int
    backward_ms: float
    buckets: int
    over_wfbp: float
    over_single: float


def ring_setting(
    layers: Sequence[tuple[int, float]],
    nodes: int,
    forward_s: float | None = None,
    *,
    startups: float = 1.0,
) -> inputs.Setting:
    """Return a training on ``nodes`` by the ring of Table II.

    Args:
        layers: bytes and seconds of backward, in backward order.
        nodes: N.
        forward_s: t_f; half of backward otherwise, as the authors' script has it.
        startups: times 2 (N - 1) α.
    """
    backward_s = tuple(seconds for _, seconds in layers)
    share = (nodes - 1) / nodes
    return inputs.Setting(
        forward_s=sum(backward_s) / 2 if forward_s is None else forward_s,
        backward_s=backward_s,
        nbytes=tuple(nbytes for nbytes, _ in layers),
        startup_s=2 * (nodes - 1) * ALPHA_S * startups,
        byte_time_s=share * (2 * BETA_S_PER_BYTE + GAMMA_S_PER_BYTE),
    )


def read(path: Path) -> Reading:
    """Return what a log comes to, every table of it in one.

    Raises:
        ArtifactError: it cannot be read, or has no such lines.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(path, f"cannot be read as text: {error}") from error
    found = re.findall(r"\[\d+, (\d+), ([\d.e+]+), ([\d.]+)(?:, [\d.]+)*\]$", text, re.M)
    layers = [
        (4 * int(parameters), float(backward_us) * 1e-6)
        for parameters, backward_us, reduced_us in found
        if int(float(backward_us)) and int(float(reduced_us))
    ]
    if not layers:
        raise ArtifactError(path, "no lines that end in [id, parameters, backward us, reduce us]")
    setting = ring_setting(layers[::-1], NODES)
    outcome = inputs.outcome(setting)
    return Reading(
        log=path.stem,
        layers=len(layers),
        backward_ms=sum(setting.backward_s) * 1e3,
        buckets=len(outcome.merged),
        over_wfbp=outcome.over_wfbp,
        over_single=outcome.over_single,
    )


def readings() -> list[Reading]:
    """Return what the authors' logs came to."""
    return [
        Reading(
            log=row["log"],
            layers=int(row["layers"]),
            backward_ms=float(row["backward_ms"]),
            buckets=int(row["buckets"]),
            over_wfbp=float(row["over_wfbp"]),
            over_single=float(row["over_single"]),
        )
        for row in lines(READINGS)
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each log; see the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="FILE", help="that B-Caffe wrote")
    options = parser.parse_args(words)
    try:
        found = [read(path) for path in options.logs]
    except SyncopateError as error:
        parser.error(str(error))
    print(",".join(Reading._fields))
    for row in found:
        print(
            f"{row.log},{row.layers},{row.backward_ms:.3f},{row.buckets},"
            f"{row.over_wfbp:.4f},{row.over_single:.4f}"
        )


if __name__ == "__main__":
    main()

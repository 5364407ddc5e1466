"""Published what-if gains: explain beside what others found in the same trace.

"Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025)
comes with three traces of pipeline-parallel trainings, a row for each operation, and with what an
iteration takes without stragglers (github.com/ByteDance-Seed/StragglerAnalysis, ``data``). This
reads ``trace-AR.parquet`` and the like from a copy of that folder; nothing of it is kept here.

Each stage of each pipeline is a rank. It comes to its reduce-scatter when its last forward,
backward or send is over: the traces do not have what it waits for from there on, and with the
reduce-scatter as it was recorded explain abstains for that reason. Steps are samples of a long
training, and are put one behind the other. For the published gain without all stragglers every
operation lasts as long as those of its kind do in the mean. Beside it stands what all causes give
together, and noise, but not the network and the waits of even stages.

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis
    python benchmarks/published.py StragglerAnalysis/data --json published.json
    python benchmarks/published.py --quick       # rows made here, to see that it runs
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.artifacts.timeline import Group, Span, Timeline
from syncopate.output import write_output

TRACES = {
    "AR": "one worker made slow",
    "SE": "sequences of unequal length",
    "ST": "a long last stage",
}
"""Trace -> what its authors found."""
OPERATIONS = {
    "forward-compute": ("forward", "forward"),
    "backward-compute": ("backward", "backward"),
    "forward-send": ("push", "send 0"),
    "forward-recv": ("pull", "recv 0"),
    "backward-send": ("push", "send 1"),
    "backward-recv": ("pull", "recv 1"),
    "grads-reduce-scatter": ("push", "reduce_scatter 0"),
    "params-all-gather": ("pull", "all_gather 0"),
    "optimizer-clip-main-grad": ("update", "optimizer"),
    "optimizer": ("update", "optimizer"),
}
"""Kind of an operation -> lane and name."""
COMPUTED = ("forward-compute", "backward-compute", "forward-send", "backward-send", "gc")
"""What a stage does before it exchanges gradients."""
APART_S = 1e-4
"""Between two steps."""

Row = Mapping[str, Any]


def timeline_of(rows: Sequence[Row], name: str) -> Timeline:
    """Return a trace as a timeline; rank = pipeline x stages + stage."""
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_step[row["step"]].append(row)
    stages = 1 + max(row["stage"] for row in rows)
    pipelines = 1 + max(row["dp_rank"] for row in rows)
    pipes = [tuple(range(d * stages, (d + 1) * stages)) for d in range(pipelines)]
    same = [tuple(range(s, stages * pipelines, stages)) for s in range(stages)]
    spans: list[Span] = []
    at_s = 0.0
    for number, step in enumerate(sorted(by_step)):
        mine = by_step[step]
        begin_s, end_s = min(row["start_ts"] for row in mine), max(map(_end_s, mine))
        by_rank: dict[int, list[Row]] = defaultdict(list)
        for row in mine:
            by_rank[row["dp_rank"] * stages + row["stage"]].append(row)
        for rank, own in by_rank.items():
            channels = rank // stages, pipelines + rank % stages
            spans += _spans(rank, number, own, at_s - begin_s, channels)
        at_s += end_s - begin_s + APART_S
    return Timeline(
        name=name,
        source="measured",
        world_size=stages * pipelines,
        spans=tuple(spans),
        groups=(
            *(Group(name="pipeline", ranks=ranks) for ranks in pipes),
            *(Group(name="data parallel", ranks=ranks) for ranks in same),
        ),
    )


def _end_s(row: Row) -> float:
    return float(row["start_ts"] + row["duration"])


def _spans(
    rank: int, iteration: int, rows: Sequence[Row], by_s: float, channels: tuple[int, int]
) -> Iterator[Span]:
    """Yield the spans of a rank in an iteration; its pipeline's channel and that of its stage."""
    between, alike = channels
    over_s = max(_end_s(row) for row in rows if row["optype"] in COMPUTED)
    for row in rows:
        kind, begun_s = row["optype"], row["start_ts"]
        if kind not in OPERATIONS:
            continue
        lane, name = OPERATIONS[kind]
        if kind == "grads-reduce-scatter":
            begun_s = min(begun_s, over_s)
        yield Span(
            name=name,
            lane=lane,
            rank=rank,
            iteration=iteration,
            start_s=begun_s + by_s,
            end_s=_end_s(row) + by_s,
            channel=between if name.startswith(("send", "recv")) else alike,
        )


def made() -> Iterator[Row]:
    """Yield rows of two pipelines of two stages, of which one stage is slow."""
    for step, pipeline in product(range(8), range(2)):
        long = 2.0 if pipeline == 1 else 1.0
        first = {"step": step, "dp_rank": pipeline, "stage": 0}
        second = first | {"stage": 1}
        for mine, optype, at_s, lasts_s in (
            (first, "params-all-gather", 0.0, 0.01),
            (second, "params-all-gather", 0.0, 0.01),
            (first, "forward-compute", 0.01, 0.1 * long),
            (first, "forward-send", 0.01 + 0.1 * long, 0.001),
            (second, "forward-recv", 0.01, 0.001 + 0.1 * long),
            (second, "forward-compute", 0.011 + 0.1 * long, 0.1),
            (second, "backward-compute", 0.111 + 0.1 * long, 0.2),
            (second, "backward-send", 0.311 + 0.1 * long, 0.001),
            (first, "backward-recv", 0.011 + 0.1 * long, 0.301),
            (first, "backward-compute", 0.312 + 0.1 * long, 0.2 * long),
            (first, "grads-reduce-scatter", 0.312 + 0.3 * long, 0.608 - 0.3 * long),
            (second, "grads-reduce-scatter", 0.312 + 0.1 * long, 0.208 - 0.1 * long),
            (first, "optimizer", 0.92, 0.01),
            (second, "optimizer", 0.52, 0.01),
        ):
            yield mine | {"optype": optype, "start_ts": step + at_s, "duration": lasts_s}


def compared(folder: Path, trace: str) -> dict[str, Any]:
    """Return what explain says of a trace, and what is published of it."""
    parquet = import_module("pyarrow.parquet")
    rows = parquet.read_table(folder / f"trace-{trace}.parquet").to_pylist()
    found = explanation(timeline_of(rows, trace))
    published = json.loads((folder / f"mw-{trace}.json").read_text())
    return {
        "trace": trace,
        "found by its authors": TRACES[trace],
        "published_gain_of_all": 1 - published["tideal"] / published["tori"],
        "published_gain_of_worst_workers": 1 - published["trem"] / published["tori"],
        **_said(found),
    }


def _said(found: Explanation) -> dict[str, Any]:
    causes = [
        {
            "kind": cause.kind,
            "ranks": cause.ranks,
            "gain": cause.gain_s / found.iteration_s,
            "between": [cause.low_s / found.iteration_s, cause.high_s / found.iteration_s],
        }
        for cause in found.causes
    ]
    return {
        "iteration_s": found.iteration_s,
        "gain_of_all_but_the_network": 1 - found.even_s / found.iteration_s,
        "causes": causes,
        "abstains": found.abstains,
    }


def main() -> None:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="`data` of a copy of the authors' repository"
    )
    parser.add_argument("--json", type=Path, help="where to write every figure")
    parser.add_argument("--quick", action="store_true", help="rows made here, to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        print(_said(explanation(timeline_of(list(made()), "made here"))))
        return
    if arguments.folder is None:
        print(f"nothing to compare without a folder of traces:\n{__doc__}")
        return
    rows = [compared(arguments.folder, trace) for trace in TRACES]
    for row in rows:
        print(
            f"{row['trace']}, {row['found by its authors']}: published without its worst workers "
            f"{row['published_gain_of_worst_workers']:.1%} less, without all stragglers "
            f"{row['published_gain_of_all']:.1%} less"
        )
        for cause in row["causes"]:
            ranks = ", ".join(map(str, cause["ranks"])) or "all"
            print(f"  explain: {cause['kind']}, ranks {ranks}: {cause['gain']:.1%} less")
        print(f"  all but the network: {row['gain_of_all_but_the_network']:.1%} less")
        for reason in row["abstains"]:
            print(f"  explain abstains: {reason}")
    if arguments.json:
        write_output(arguments.json, json.dumps(rows, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

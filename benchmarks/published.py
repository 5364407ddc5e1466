"""Published what-if gains: explain beside what others found in the same trace.

"Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025)
comes with three traces of pipeline-parallel trainings, a row for each operation, and with what an
iteration takes without stragglers (github.com/ByteDance-Seed/StragglerAnalysis, ``data``). This
reads ``trace-AR.parquet`` and the like from a copy of that folder; nothing of it is kept here.

A pipeline counts as one rank: it computes from its first forward to its last backward, then
exchanges gradients with the other pipelines until their reduce-scatters are over. So stages of one
pipeline are not told from each other, and what a pipeline waits for within itself counts as
computation. Steps are samples of a long training, and are put one behind the other.

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
from syncopate.output import write_output
from syncopate.timeline import Span, Timeline

TRACES = {
    "AR": "one worker made slow",
    "SE": "sequences of unequal length",
    "ST": "a long last stage",
}
"""Trace -> what its authors found."""
APART_S = 1e-4
"""Between two steps."""

Row = Mapping[str, Any]


def timeline_of(rows: Sequence[Row], name: str) -> Timeline:
    """Return the pipelines of a trace as ranks."""
    by_step: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_step[row["step"]][row["dp_rank"]].append(row)
    spans: list[Span] = []
    at_s = 0.0
    for number, step in enumerate(sorted(by_step)):
        mine = [row for own in by_step[step].values() for row in own]
        begin_s, end_s = min(row["start_ts"] for row in mine), max(map(_end_s, mine))
        for rank, own in by_step[step].items():
            spans += _spans(rank, number, own, at_s - begin_s)
        at_s += end_s - begin_s + APART_S
    size = 1 + max(span.rank for span in spans)
    return Timeline(name=name, source="measured", world_size=size, spans=tuple(spans))


def _end_s(row: Row) -> float:
    return float(row["start_ts"] + row["duration"])


def _spans(rank: int, iteration: int, rows: Sequence[Row], by_s: float) -> Iterator[Span]:
    def of(*kinds: str) -> list[Row]:
        return [row for row in rows if row["optype"] in kinds]

    gathers, scatters = of("params-all-gather"), of("grads-reduce-scatter")
    first_s = min(row["start_ts"] for row in of("forward-compute"))
    last_s = max(map(_end_s, of("backward-compute")))
    middle_s = first_s + (last_s - first_s) / 3  # forwards and backwards take turns
    computed_s = max([last_s, *map(_end_s, of("gc"))])
    moved_s = max(map(_end_s, scatters))
    updated_s = max([moved_s, *map(_end_s, of("optimizer", "optimizer-clip-main-grad"))])
    gathers_s = max(row["start_ts"] for row in gathers), max(map(_end_s, gathers))
    for name, lane, start_s, end_s in (
        ("all_gather 0", "pull", *gathers_s),
        ("pipeline", "forward", first_s, middle_s),
        ("pipeline", "backward", middle_s, last_s),
        ("reduce_scatter 0", "push", computed_s, moved_s),
        ("optimizer", "update", moved_s, updated_s),
    ):
        yield Span(
            name=name, lane=lane, rank=rank, iteration=iteration,
            start_s=start_s + by_s, end_s=end_s + by_s,
        )  # fmt: skip


def made() -> Iterator[Row]:
    """Yield rows of two pipelines of two stages, of which one stage is slow."""
    lasting_s = {"params-all-gather": 0.01, "forward-compute": 0.1, "backward-compute": 0.2}
    for step, rank, stage in product(range(8), range(2), range(2)):
        mine = {"step": step, "dp_rank": rank, "pp_rank": stage}
        slower = 2 if (rank, stage) == (1, 0) else 1
        at_s = float(step)
        for optype, usual_s in lasting_s.items():
            yield mine | {"optype": optype, "start_ts": at_s, "duration": slower * usual_s}
            at_s += slower * usual_s
        rest_s = step + 0.64 - at_s
        yield mine | {"optype": "grads-reduce-scatter", "start_ts": at_s, "duration": rest_s}


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
    return {"iteration_s": found.iteration_s, "causes": causes, "abstains": found.abstains}


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
        for reason in row["abstains"]:
            print(f"  explain abstains: {reason}")
    if arguments.json:
        write_output(arguments.json, json.dumps(rows, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

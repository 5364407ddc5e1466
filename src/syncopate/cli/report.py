"""``syncopate report``: one HTML page that says why a training scales as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import progress_bar, require_outputs, say_written
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import read_recorded
from syncopate.errors import InvalidValueError
from syncopate.runs.defaults import LAST


def _beside(
    *,
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", help="Its workload: compares its plan with the best."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", "-c", help="Its cluster: what messages were expected to take."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", "-p", help="Its plan: predicted against recorded.")
    ] = None,
) -> dict[str, Any]:
    """Return what lies beside a run, for the page; read before a run is, which may take long."""
    if workload is not None and cluster is None:
        rule = "given together with --cluster, or left out"
        raise InvalidValueError("--workload", str(workload), rule)
    return {
        "workload": None if workload is None else Workload.load(workload),
        "cluster": None if cluster is None else load_cluster(cluster),
        "plan": None if plan is None else Plan.load(plan),
        "files": None if workload is None else (str(workload), str(cluster)),
    }


@grouped(beside=_beside)
def report(
    *,
    beside: dict[str, Any],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="The directory of a run that was traced, a timeline, or one file of each rank.",
        ),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="A run before: says what changed since. Of several each is compared."),
    ] = None,
    last: Annotated[
        int, typer.Option(help="How many iterations to look at, the last ones.")
    ] = LAST,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the page; - prints it.")
    ] = Path("report.html"),
) -> None:
    """Write one HTML page that says why training scales no better, with a picture and a sentence.

    It has the causes of `syncopate explain`, a timeline of all ranks to zoom into, and what
    `syncopate analyze` says of buckets, ranks, bandwidth and the critical path. Needs no ranks, and
    to be read no network (docs/report.md).

    For example:

      syncopate report runs/a -o report.html

      syncopate report runs/a -w workload.json -c cluster.json -p plan.json

      syncopate report runs/c --against runs/a --against runs/b
    """
    import syncopate
    from syncopate.reports.pages.page import require_html

    require_html()
    require_outputs(False, ("--output", output))
    read = read_recorded(*files, last=last, of_timelines=True)
    before = [read_recorded(path, last=last, of_timelines=True) for path in against or ()]
    with progress_bar("report") as advance:
        advance("playing iterations again", 0.0)
        page = syncopate.report(read, against=before, last=last, **beside)
    page.save(output)
    say_written(output)

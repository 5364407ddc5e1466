"""``syncopate bench``: times one collective by several algorithms, the way nccl-tests reports."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.benchmark import (
    BARRIER,
    BUS_FACTORS,
    MODES,
    PEERS,
    Benchmark,
    geometric,
)
from syncopate.cli.common import ranks
from syncopate.cli.common.console import (
    err,
    is_leader,
    note,
    out,
    progress_bar,
    remark,
    require_outputs,
    say_json,
    say_written,
)
from syncopate.cli.common.ending import code_of, ended_once
from syncopate.cli.common.machines import load_cluster
from syncopate.cli.common.options import grouped, items
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.output import Progress, is_standard_output, write_output
from syncopate.units import parse_bytes

if TYPE_CHECKING:
    from syncopate.benchmarking.sweep import Effort, Sweep
    from syncopate.collectives.communicator import Communicator


def _sizes(
    *,
    sizes: Annotated[
        str | None, typer.Option(help="Exactly these sizes, such as 4KiB,1MiB.")
    ] = None,
    first: Annotated[str, typer.Option("--from", help="Smallest size.")] = "4B",
    last: Annotated[str, typer.Option("--to", help="Largest size.")] = "64MiB",
    factor: Annotated[float, typer.Option(help="From one size to the next.")] = 4.0,
) -> tuple[int, ...]:
    listed = tuple(parse_bytes(size) for size in items(sizes))
    return listed or geometric(parse_bytes(first), parse_bytes(last), factor)


def _what(
    *,
    collective: Annotated[
        str, typer.Argument(metavar="COLLECTIVE", help=", ".join(BUS_FACTORS) + ".")
    ] = "all_reduce",
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms", "-a", help="Such as native,auto,lp:blocks=8; all that suit otherwise."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type.")] = "float32",
    root: Annotated[int, typer.Option(help="Root of a broadcast or reduce.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(help=f"Peers to take turns with and compare with: {', '.join(PEERS)}."),
    ] = None,
) -> dict[str, Any]:
    return {
        "collective": collective,
        "dtype": dtype,
        "root": root,
        "algorithms": tuple(items(algorithms)),
        "against": tuple(items(against)),
    }


def _effort(
    *,
    iterations: Annotated[int, typer.Option("--iterations", "-n", help="Timed calls.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="Untimed calls before.")] = 5,
    mode: Annotated[
        str, typer.Option(help=f"What separates the timed calls: {' or '.join(MODES)}.")
    ] = BARRIER,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Verify every result.")] = True,
) -> dict[str, Any]:
    return {"iterations": iterations, "warmup": warmup, "mode": mode, "check": check}


def _results(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where rank 0 writes every sample; - prints it.")
    ] = Path("bench.json"),
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots, which needs no network."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print every table after the summary.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the benchmark as JSON instead of tables.")
    ] = False,
) -> dict[str, Any]:
    require_outputs(json, ("--output", output), ("--html", html))
    return {"output": output, "html": html, "full": full, "json": json}


@grouped(what=_what, sizes=_sizes, effort=_effort, results=_results, where=ranks.where_option)
def bench(
    *,
    what: dict[str, Any],
    sizes: tuple[int, ...],
    effort: dict[str, Any],
    results: dict[str, Any],
    where: ranks.Where,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            "-c",
            help="Choose options and `auto` by this calibration; `auto` calibrates otherwise.",
        ),
    ] = None,
) -> None:
    """Time a collective by several algorithms, in and out of place, and verify what it returns.

    For example:

      syncopate bench --local 4 --full

      syncopate bench --local 4 -a native,auto --against gloo --html bench.html

      syncopate bench broadcast --local 4 --root 2 -a native,lp:blocks=1,lp:blocks=8 --sizes 4MiB

      syncopate bench reduce_scatter --local 4 --against gloo --mode back-to-back

      syncopate lab run --hosts 4 -- syncopate bench --cluster cluster.json --to 16MiB

      torchrun --nproc-per-node 4 --no-python syncopate bench --against gloo

      mpirun -n 4 syncopate bench --against gloo,mpi

      syncopate bench --local 8 --device cuda -a native,ring
    """
    from syncopate.benchmarking.sweep import Effort, Sweep
    from syncopate.reports.pages.page import require_html

    sweep, how = Sweep(sizes=sizes, **what), Effort(**effort)
    _require_peers(sweep.against, where.device)
    if results["html"] is not None:
        require_html()
    known = load_cluster(cluster) if cluster is not None and is_leader() else None
    ranks.start_if_asked(where.local)
    ranks.require_ranks("bench")
    benchmark = _measure_or_keep(where.device, sweep, how, known, results)
    if is_leader():
        _show(benchmark, **results)
    if benchmark.wrong:
        raise CalibrationError(
            f"{sweep.collective} returned {benchmark.wrong} wrong elements "
            f"({benchmark.culprits}); do not train with what is named here: leave it out and "
            "report it"
        )


def _require_peers(against: Sequence[str], device: str) -> None:
    from syncopate.benchmarking.sweep import MPI_NEEDED

    if device != "cpu" and against:
        rule = f"left out with --device {device}; `-a native` is NCCL's own collective"
        raise InvalidValueError("--against", ",".join(against), rule)
    if "mpi" in against and find_spec("mpi4py") is None:
        raise CalibrationError(f"MPI cannot be used here: mpi4py is not installed; {MPI_NEEDED}")


def _measure_or_keep(
    device: str, sweep: Sweep, effort: Effort, known: Cluster | None, results: dict[str, Any]
) -> Benchmark:
    """Join the ranks and measure; the sizes that were measured when it is ended are kept."""
    rows = _Rows(len(sweep.counts), results["output"])
    with ended_once():
        bar = progress_bar(f"measuring {sweep.collective}")
        try:
            with ranks.joined(device=device) as communicator, bar as progress:
                return _measure(communicator, sweep, effort, known, progress, rows=rows)
        except KeyboardInterrupt as interrupt:
            if is_leader():
                _show_ended(rows, results)
            raise typer.Exit(code_of(interrupt)) from None


def _measure(
    communicator: Communicator,
    sweep: Sweep,
    effort: Effort,
    known: Cluster | None,
    progress: Progress,
    *,
    rows: _Rows,
) -> Benchmark:
    """Measure; after each size rank 0 keeps what there is."""
    from syncopate.benchmarking.run import bench as measure
    from syncopate.calibration.calibrate import calibrate
    from syncopate.schedules.registry import AUTO

    # Rank 0's, not those of other hosts; all ranks check them alike.
    cluster: Cluster | None = communicator.broadcast_object(known)
    if cluster is None and AUTO in sweep.algorithms:
        cluster = calibrate(communicator, collectives=(sweep.collective,), progress=progress)
    keep = rows.keep if is_leader() else None
    return measure(communicator, sweep, effort, progress, cluster, keep=keep)


class _Rows:
    """What rank 0 has measured so far, size by size."""

    def __init__(self, count: int, output: Path) -> None:
        self._count = count
        self._output = output
        self.found: Benchmark | None = None

    def keep(self, found: Benchmark) -> None:
        """Keep the sizes so far, write them, and off a terminal print the last one's line."""
        from syncopate.reports.bench import ENDED, size_line

        done = len(found.series[0].points)
        told = {ENDED: f"after {done} of {self._count} sizes"} if done < self._count else {}
        self.found = _named(found, told)
        if not is_standard_output(self._output):
            self.found.save(self._output)
        if not err().is_terminal:
            remark(size_line(found))


def _named(benchmark: Benchmark, told: dict[str, str]) -> Benchmark:
    """Return a benchmark that says which command it is of, and what is told besides."""
    from msgspec import structs

    named = {"command": shlex.join(["syncopate", *sys.argv[1:]])}
    return structs.replace(benchmark, metadata=benchmark.metadata | named | told)


def _show_ended(rows: _Rows, results: dict[str, Any]) -> None:
    if rows.found is None:
        note("ended before the first size was measured: nothing was written")
        return
    from syncopate.reports.bench import ENDED

    _show(rows.found, **results)
    note(f"ended {rows.found.metadata.get(ENDED, 'when all sizes were measured')}")


def _show(benchmark: Benchmark, *, output: Path, html: Path | None, full: bool, json: bool) -> None:
    benchmark = _named(benchmark, {})
    benchmark.save(output)
    if html is not None:
        from syncopate.reports.pages.bench import bench_page

        write_output(html, bench_page(benchmark).encode())
    if json:
        say_json(benchmark.to_json())
        say_written(output, html)
        return
    from syncopate.reports.bench import WIDTH, bench_report, bench_summary

    console = out(beside=html if is_standard_output(html) else output)
    if full:
        console.width = max(console.width, WIDTH)
        console.print(bench_report(benchmark))
    else:
        console.print(bench_summary(benchmark))
        console.print("bandwidths and percentiles of every contender: --full", style="dim")
    say_written(output, html)

"""SSD-SGD's accuracy, trained for real on local ranks: its Table 2, Fig. 4 and Fig. 5 beside ours.

    python reproduce/ssd_sgd.py                                  # tables of what was trained here
    python reproduce/ssd_sgd.py --train study.json               # train what is missing, then those
    python reproduce/ssd_sgd.py --train study.json --workload digits --seeds 2
    python reproduce/ssd_sgd.py --train study.json --rows ssgd glu-5 sgd-5 dc-asgd-a-5
    python reproduce/ssd_sgd.py --json                           # all figures as JSON
    python reproduce/ssd_sgd.py --train quick.json --quick       # two epochs, to see that it runs

The paper (Xu et al. 2021) trains ResNet-20 on CIFAR-10 and ResNet-50 on ImageNet, with 4 workers of
4 GPUs each. Here 4 ranks of one machine train a small ResNet-20 on scikit-learn's digits and a
small character GPT on text that ships with Python, each run some seconds. What is the paper's:
pushes in every step and pulls in every k-th, the local rules with their coefficients, local over
global learning rate, momentum, the global rate per sample (0.4 for 512; 0.05 for 64), and the
warm-up in epochs, about: a fifth of its iterations. The learning rate is constant. ASGD, which the
paper times and does not test, trains through the parameter server.

Accuracy is that of the global weights at the end, as mean and standard deviation over seeds. What a
row is above SSGD is a mean over seeds as well, each with its own SSGD, so that weights and order of
the data are the same on both sides.

Given ``--train``, each run is kept as soon as it is done, and a study that was stopped goes on
where it was. With all its seeds it has 92 runs.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec.structs import replace
from rich import box
from rich.console import Console
from rich.table import Table

from ssd_sgd_runs import (
    ASGD,
    FIG_4,
    FIG_5,
    ROWS,
    SSGD,
    TABLE_2,
    WORKLOADS,
    Place,
    Study,
    Workload,
    asked,
    setting_of,
    train,
)
from syncopate.collectives import Communicator
from syncopate.collectives.machine import cpu_name
from syncopate.errors import ArtifactError, SyncopateError

DATA = Path(__file__).parent / "data"
PAPER = DATA / "ssd_sgd.csv"
TRAINED = DATA / "ssd_sgd_4ranks.json"
IN_WORDS = {
    "glu-1-100": "obviously lower",
    "glu-1-200": "slightly lower",
    "glu-1-300": "comparable or slightly better",
    "glu-1-400": "comparable or slightly better",
    "glu-1": "the best",
}
"""What Section 4.2 says of Fig. 4, against SSGD."""


class Spread(NamedTuple):
    """Some seeds' figures, in % or points of it.

    Attributes:
        mean: of the seeds.
        deviation: sample standard deviation; 0.0 of a single seed.
        seeds: how many.
    """

    mean: float
    deviation: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return that of shares in [0, 1]."""
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(100 * statistics.fmean(values), 100 * deviation, len(values))


# -- command line -------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--train", type=Path, metavar="FILE", help="train the runs that this file lacks")
    add("--results", type=Path, metavar="FILE", help="show this file instead of our own")
    add("--workload", nargs="+", choices=tuple(WORKLOADS), help="which (both)")
    add("--rows", nargs="+", choices=tuple(ROWS), metavar="NAME", help=f"of {', '.join(ROWS)}")
    add("--seeds", type=int, help="of each row, at most (digits 5, text 3)")
    add("--ranks", type=int, default=4, help="that train together (4)")
    add("--json", action="store_true", help="print the figures as JSON")
    add("--quick", action="store_true", help="two epochs of some rows, to see that it runs")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    return found


def settled_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options, those of a quick run cut."""
    options = parser().parse_args(words)
    options.workload = list(dict.fromkeys(options.workload or WORKLOADS))
    if options.quick:
        options.rows = options.rows or [SSGD, "glu-2", *FIG_5[1:], ASGD]
        options.seeds = options.seeds or 1
    options.rows = options.rows or list(ROWS)
    for what, least in (("ranks", 2), ("seeds", 1)):
        value = getattr(options, what)
        if value is not None and value < least:
            parser().error(f"--{what} must be at least {least}")
    return options


def resumed(options: argparse.Namespace, workloads: Mapping[str, Workload]) -> Study:
    """Return what the file already holds, or a study without a run.

    Raises:
        ArtifactError: it is no such file, or its runs were trained otherwise.
    """
    settings = {
        name: setting_of(name, work, options.ranks, options.quick)
        for name, work in workloads.items()
    }
    if not options.train.exists():
        return Study(
            ranks=options.ranks, quick=options.quick, settings=settings, metadata=_metadata()
        )
    study = Study.load(options.train)
    for what in ("ranks", "quick"):
        here, there = getattr(options, what), getattr(study, what)
        if here != there:
            reason = f"trained with {what} {there!r}, not {here!r}; give another file"
            raise ArtifactError(options.train, reason, f"$.{what}")
    for name, setting in settings.items():
        if study.settings.get(name, setting) != setting:
            reason = f"trained otherwise than {setting}; give another file"
            raise ArtifactError(options.train, reason, f"$.settings.{name}")
    return replace(study, settings=study.settings | settings)


def _metadata() -> dict[str, str]:
    words = (word for word in sys.argv[1:] if word != "--rank")
    return {
        "command": shlex.join(["python", f"reproduce/{Path(__file__).name}", *words]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "torch": str(torch.__version__),
    }


def missing(study: Study, places: Iterable[Place]) -> list[Place]:
    """Return the runs that a study lacks."""
    return [place for place in places if place.seed not in study.found(place.workload, place.row)]


# -- ranks --------------------------------------------------------------------------------------


def rank_main(options: argparse.Namespace) -> None:
    """Train what is missing on one rank; rank 0 prints and keeps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    workloads = {name: WORKLOADS[name]() for name in options.workload}
    with Communicator() as communicator:
        rank, ranks = communicator.rank, communicator.world_size
        study = communicator.broadcast_object(resumed(options, workloads) if rank == 0 else None)
        places = asked(options.workload, options.rows, options.seeds, workloads)
        left = missing(study, places)
        for done, place in enumerate(left, start=1):
            setting = study.settings[place.workload]
            run = train(place, workloads[place.workload], setting, rank, ranks)
            if rank:
                continue
            study = replace(study, runs=(*study.runs, run))
            study.save(options.train)
            mean_s = statistics.fmean(run.seconds for run in study.runs[-done:])
            print(
                f"{done} of {len(left)}: {place.workload}, {place.row}, seed {place.seed}: "
                f"{run.accuracy:.2%} in {run.seconds:.1f} s; about "
                f"{mean_s * (len(left) - done) / 60:.0f} min to go",
                flush=True,
            )
    dist.destroy_process_group()


def start_ranks(ranks: int, words: Sequence[str]) -> int:
    """Run this very command on local ranks; return the exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback} | os.environ
    command = [sys.executable, *launcher, *where, __file__, "--rank", *words]
    return subprocess.run(command, env=environment, check=False).returncode


def shown_study(path: Path | None) -> Study:
    """Return the study to show: a file, or ours, which is empty until it is trained.

    Raises:
        ArtifactError: it is no such file.
    """
    if path is None and not TRAINED.exists():
        return Study(ranks=4, quick=False, settings={})
    return Study.load(path or TRAINED)


# -- tables -------------------------------------------------------------------------------------


def paper() -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Return the paper's figures: (figure, workload) -> row -> column -> value."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    with PAPER.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            values = {name: float(row[name]) for name in ("accuracy", "images_per_s") if row[name]}
            found.setdefault((row["figure"], row["workload"]), {})[row["row"]] = values
    return found


def accuracy(study: Study, workload: str, row: str) -> Spread | None:
    """Return a row's accuracy in %; None where it was not trained."""
    runs = study.found(workload, row).values()
    return Spread.of([run.accuracy for run in runs]) if runs else None


def curve(study: Study, workload: str, row: str) -> list[float]:
    """Return the accuracy after each epoch in %, the mean over seeds."""
    curves = zip(*(run.curve for run in study.found(workload, row).values()), strict=True)
    return [100 * statistics.fmean(tested) for tested in curves]


def above(study: Study, workload: str, row: str, base: str) -> Spread | None:
    """Return what a row is above another in points, seed by seed; None without common seeds."""
    ours, theirs = study.found(workload, row), study.found(workload, base)
    both = [ours[seed].accuracy - theirs[seed].accuracy for seed in ours if seed in theirs]
    return Spread.of(both) if both else None


def _shown(found: Spread | None, *, signed: bool = False) -> str:
    if found is None:
        return "-"
    mean = f"{found.mean:+.2f}" if signed else f"{found.mean:.2f}"
    return f"{mean} ± {found.deviation:.2f}" if found.seeds > 1 else mean


def table_2(study: Study, titles: Mapping[str, str]) -> list[Table]:
    """Return Table 2 with a column for ASGD, and the same as points above SSGD."""
    tables = []
    for signed in (False, True):
        what = "points above SSGD" if signed else "test accuracy, %"
        columns = (*TABLE_2, ASGD)
        table = _table(f"Table 2: {what}", "", *(ROWS[row].title for row in columns))
        for (figure, name), rows in paper().items():
            if figure == "Table 2":
                base = rows[SSGD]["accuracy"] if signed else 0.0
                values = (rows[row]["accuracy"] - base for row in TABLE_2)
                form = "{:+.2f}" if signed else "{:.2f}"
                table.add_row(f"{name}, paper", *(form.format(value) for value in values), "-")
        for name, title in titles.items():
            found = (
                above(study, name, row, SSGD) if signed else accuracy(study, name, row)
                for row in columns
            )
            table.add_row(title, *(_shown(spread, signed=signed) for spread in found))
        tables.append(table)
    return tables


def fig_4(study: Study) -> Table:
    """Return Fig. 4: the length of the warm-up at one step of delay."""
    table = _table(
        "Fig. 4: warm-up, ResNet-20, one step of delay",
        *("", "iterations here", "paper, against SSGD", "ours, %", "points above SSGD"),
    )
    table.add_row("SSGD", "-", "-", _shown(accuracy(study, "digits", SSGD)), "-")
    for row in FIG_4:
        lengths = {run.warm_up + 1 for run in study.found("digits", row).values()}
        table.add_row(
            f"1S-{ROWS[row].warm_up}",
            ", ".join(map(str, sorted(lengths))) or "-",
            IN_WORDS[row],
            _shown(accuracy(study, "digits", row)),
            _shown(above(study, "digits", row, SSGD), signed=True),
        )
    return table


def fig_5(study: Study, titles: Mapping[str, str]) -> Table:
    """Return Fig. 5: the local rules at five steps of delay."""
    ours = [column for title in titles.values() for column in (f"{title}, %", "above GLU")]
    table = _table(
        "Fig. 5: local rules, five steps of delay",
        *("", "paper, %", "above GLU", "paper, images/s", *ours),
    )
    printed = paper()["Fig. 5", "ResNet-50 (32)"]
    first = FIG_5[0]
    for row in FIG_5:
        cells = [
            f"{printed[row]['accuracy']:.2f}",
            f"{printed[row]['accuracy'] - printed[first]['accuracy']:+.2f}",
            f"{printed[row]['images_per_s']:.2f}",
        ]
        for name in titles:
            cells.append(_shown(accuracy(study, name, row)))
            cells.append(_shown(above(study, name, row, first), signed=True))
        table.add_row("GLU" if row == first else ROWS[row].title, *cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def show(console: Console, study: Study) -> None:
    """Print all tables of a study, and how it was trained."""
    names = [name for name in WORKLOADS if name in study.settings]
    workloads = {name: WORKLOADS[name]() for name in names}
    titles = {name: workloads[name].title for name in names}
    for table in (*table_2(study, titles), fig_4(study), fig_5(study, titles)):
        console.print(table)
    for name in names:
        setting = study.settings[name]
        console.print(
            f"{titles[name]}: {study.ranks} ranks, {setting.batch_size} samples each, "
            f"{setting.epochs} epochs of {setting.iterations} iterations, learning rate "
            f"{setting.lr}, warm-up 1/{setting.warm_up_scale} of the paper's iterations. "
            f"Smaller than the paper's: {workloads[name].smaller}."
        )
    if not names:
        console.print("Nothing was trained here so far: see --help for how to.")
    if study.quick:
        console.print("These runs were cut to see that they run: no figure counts.")


def as_json(study: Study) -> dict[str, Any]:
    """Return every figure of the tables."""
    ours = {
        name: {
            row: {
                "accuracy": accuracy(study, name, row)._asdict(),
                "above_ssgd": spread._asdict() if spread else None,
                "curve": curve(study, name, row),
            }
            for row in ROWS
            if study.found(name, row)
            for spread in (above(study, name, row, SSGD),)
        }
        for name in study.settings
    }
    theirs = {f"{figure}, {name}": rows for (figure, name), rows in paper().items()}
    return {"paper": theirs, "ours": ours, "quick": study.quick}


def main(words: Sequence[str] | None = None) -> int:
    """Train what is asked for, and print tables or JSON."""
    words = sys.argv[1:] if words is None else words
    options = settled_options(words)
    if options.rank:
        rank_main(options)
        return 0
    try:
        if options.train is not None:
            # Refused here, before any rank starts.
            workloads = {name: WORKLOADS[name]() for name in options.workload}
            places = asked(options.workload, options.rows, options.seeds, workloads)
            left = missing(resumed(options, workloads), places)
            code = start_ranks(options.ranks, words) if left else 0
            if code:
                return code
        study = shown_study(options.results or options.train)
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(as_json(study), indent=1))
    else:
        show(Console(width=150), study)
    return 0


if __name__ == "__main__":
    sys.exit(main())

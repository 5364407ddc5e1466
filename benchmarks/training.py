"""Training, exchange by exchange: ours beside DDP and ZeRO-1, on emulated hosts, in turns.

    python benchmarks/training.py --json training.json       # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/training.py --model resnet50 --ratio 2 --hosts 8 --json ratio2.json
    python benchmarks/training.py --only ddp-25 ddp-1 sharded --rounds 5 --iterations 10
    python benchmarks/training.py --json training.json --only sharded --again    # measure anew
    python benchmarks/training.py --json training.json --no-run                  # the tables alone
    python benchmarks/training.py --summary ratio1.json ratio2.json              # one row for each
    python benchmarks/training.py --quick                    # small sizes, to see that it runs

Started plainly it makes a lab (network namespaces, shaped links). In every round each variant
trains for one turn on all hosts, in processes of its own; the first turn of ``self`` comes after a
run that lets self-planning settle. Every variant begins a turn with the same weights and data, and
real models' weights are compared afterwards. ResNet-50, VGG-16, VGG-11 and AlexNet are replayed at
full size: their computation is slept, their gradients and traffic and their optimizer are real.
``--ratio`` makes that computation so many times what their gradients take at line rate; real models
compute what they compute. Given ``--json``, every turn is kept as soon as it is taken, and a run
that was stopped goes on where it was. Variants and models are listed by ``--list``. ResNet-50 takes
a quarter of an hour; VGG-16 and VGG-11, whose steps take 7 s at 1 Gbit/s, most of an hour each;
AlexNet about half an hour; the others some minutes each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from contest import grid, table
from contest.conduct import conducted, may_measure
from contest.results import Results, Setting, resumed, still_to_do
from contest.session import Session, UnavailableError
from contest.turn import Job, run
from contest.variants import VARIANTS
from contest.works import OPTIMIZERS, WORKS
from syncopate.errors import SyncopateError
from syncopate.lab import Lab, Topology
from syncopate.units import parse_rate

QUICK_WORKS = ("resnet20",)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--hosts", type=int, default=4, help="of the lab, one rank each (4)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--ratio", type=float, help="computation of replayed models over the wire's time")
    add("--rounds", type=int, default=3, help="turns of each variant (3)")
    add(
        "--iterations",
        type=int,
        default=4,
        help="counted steps of a turn, of real models ten times as many, with a delay whole "
        "periods (4)",
    )
    add("--warmup", type=int, default=2, help="steps before them; DDP cuts its buckets anew (2)")
    add("--model", nargs="+", choices=tuple(WORKS), metavar="NAME", help="models, by name (all)")
    add("--only", nargs="+", choices=tuple(VARIANTS), metavar="NAME", help="variants (all)")
    add("--optimizer", choices=tuple(OPTIMIZERS), help="of all models; by default their own")
    add("--clip", action="store_true", help="clip gradients by their norm, and step a scheduler")
    add("--calibration", type=float, default=40.0, help="seconds of calibration (40)")
    add("--limit", type=float, default=900.0, help="seconds after which a turn is given up (900)")
    add("--json", type=Path, help="every sample; what is there already is kept")
    add("--report", type=Path, help="where the tables go, as Markdown; printed anyway")
    add("--again", action="store_true", help="measure the chosen variants anew")
    add("--no-run", action="store_true", help="measure nothing, show what is there")
    add("--summary", type=Path, nargs="+", metavar="FILE", help="one table of several files")
    add("--list", action="store_true", help="say what the models and variants are, and end")
    add("--quick", action="store_true", help="two hosts, small models, one round")
    add("--job", type=Path, help=argparse.SUPPRESS)
    return found


def settled_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options, those of a quick run cut."""
    options = parser().parse_args(words)
    if options.quick:
        options.hosts, options.rounds, options.iterations = 2, 1, 2
        options.calibration = 4.0
        options.model = options.model or list(QUICK_WORKS)
    options.model = list(dict.fromkeys(options.model or WORKS))
    chosen = options.only or VARIANTS
    options.only = [name for name in VARIANTS if name in chosen]
    for what in ("hosts", "rounds", "iterations", "warmup"):
        if getattr(options, what) < (2 if what == "hosts" else 1):
            parser().error(f"--{what} must be at least {2 if what == 'hosts' else 1}")
    if options.ratio is not None and not options.ratio > 0:
        parser().error("--ratio must be above 0")
    return options


def setting_of(options: argparse.Namespace) -> Setting:
    """Return what all turns have in common."""
    return Setting(
        hosts=options.hosts,
        rate=options.rate,
        ratio=options.ratio,
        iterations=options.iterations,
        warmup=options.warmup,
        optimizer=options.optimizer or "",
        quick=options.quick,
        clip=options.clip,
    )


def measure(options: argparse.Namespace, results: Results) -> tuple[Results, int]:
    """Take the turns that are missing; return all results and the exit code."""
    places = still_to_do(results, options.model, options.only, options.rounds)
    if not may_measure(places):
        return results, 0
    topology = Topology(hosts=options.hosts, rate_bytes_per_s=parse_rate(options.rate))

    def keep(found: Results) -> None:
        if options.json is not None:
            found.save(options.json)

    with tempfile.TemporaryDirectory() as folder:
        session = None
        try:
            with Lab(topology) as lab:
                session = Session(
                    lab,
                    __file__,
                    Path(folder),
                    results,
                    keep,
                    calibration_s=options.calibration,
                    limit_s=options.limit,
                )
                session.measure(places)
        except KeyboardInterrupt:
            print("stopped; the turns taken so far count")
            return session.results if session is not None else results, 130
        except UnavailableError as error:
            print(f"cannot measure: {error}", file=sys.stderr)
            return session.results if session is not None else results, 1
    return session.results, 0


def summarise(paths: Sequence[Path]) -> int:
    """Print one table of several files; return the exit code."""
    try:
        print(grid.summary([Results.load(path) for path in paths]))
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Measure, or be one rank of a turn."""
    options = settled_options()
    if options.job is not None:
        return run(Job.load(options.job))
    if options.list:
        for rows in (WORKS, VARIANTS):
            print("\n".join(f"{row.name:10s} {row.title}" for row in rows.values()), "\n")
        return 0
    if options.summary:
        return summarise(options.summary)
    return conducted(
        options,
        __file__,
        resumed=lambda known: resumed(options.json, setting_of(options), known),
        without=lambda results: results.without(options.model, options.only),
        measure=measure,
        report=lambda results, raw: table.report(results, options.model, raw),
    )


if __name__ == "__main__":
    sys.exit(main())

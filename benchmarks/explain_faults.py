"""What explain says of trainings with a fault, against what the fault really costs.

    python benchmarks/explain_faults.py --json results.json         # as root on Linux; 40 minutes
    python benchmarks/explain_faults.py --json results.json --only slow link
    python benchmarks/explain_faults.py --json results.json --only healthy --again
    python benchmarks/explain_faults.py --json results.json --traces /tmp/traces --only gc
    python benchmarks/explain_faults.py --json results.json --no-run          # the table alone
    python benchmarks/explain_faults.py --quick                     # to see that it runs

Four hosts of a lab train by ``syncopate.distribute`` behind links of 1 Gbit/s, captured as by
``SYNCOPATE_TRACE``. Computation is slept; gradients and their traffic are real. Blocks of
iterations with a fault and without it take turns in one process group: without, with, with,
without. ``syncopate explain`` sees the blocks with the fault alone. It has to name the fault first,
with its rank, in 95 of 100 rounds, and what all causes gain together has to be within 15% of what
the fault cost: the mean iteration with it less that without, by the clocks of the script. Of two
faults at once either may be first. It must not name a cause in a healthy training, nor beside other
jobs on the machine, and never a rank that has nothing to do with the fault. The exit code is 1 if
one of these rules is broken.

Where processes of others take more than a tenth of the machine in a round, it is put aside, and
another one is made, at most three for each that is wanted. Where there are still too few, those
count that were disturbed least. The file says of each round how much others took.

What is emulated: hosts and links by the lab (docs/lab.md); a slow rank, a sleep, a late input, a
checkpoint, an evaluation and a slow server by sleeping. Garbage collections are real ones, of
200,000 lists and all that torch has; the other jobs are real processes; links are cut by the
kernel; plans and parameter servers are real. Two hosts also train with real computation, each on a
core of its own. Some faults are also tried in plain DDP on two hosts of two ranks, and explain sees
what torch.profiler wrote. Packets are lost where the kernel has netem.

Where batches differ in length, the training without has batches of their mean length; beside
another fault, other jobs are there in both. The model has 96 tensors and 4 MiB; where each tensor
has a bucket it has 480, as that costs next to nothing with 96. Where there are parameter servers,
two of the four hosts are.

Given ``--json``, every fault is kept as soon as it is over, and a run that was stopped goes on
where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from contest.conduct import conducted, may_measure
from emulated.options import explained
from faults.named import FAULTS
from faults.results import SHARE, Results, first_right, is_sound, resumed, table
from faults.session import Session


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = explained(argparse.ArgumentParser(), __doc__)
    add = found.add_argument
    names = list(FAULTS)
    add("--only", nargs="+", choices=names, default=names, metavar="FAULT",
        help=f"some of the faults: {', '.join(names)} (all)")  # fmt: skip
    add("--rounds", type=int, default=3, help="blocks with each fault, and without (3)")
    add("--calibration", type=float, default=6.0, help="seconds of the calibration (6)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--traces", type=Path, help="keep the traces here, in folders that are not there yet")
    add("--report", help=argparse.SUPPRESS)
    add("--again", action="store_true", help="measure what is chosen anew")
    add("--no-run", action="store_true", help="measure nothing, show what is there")
    return found


def measure(options: argparse.Namespace, results: Results) -> tuple[Results, int]:
    """Go through the faults that are missing; return all results and the exit code."""
    known = results.rounds | results.skipped
    missing = [name for name in options.only if not known.get(name)]
    if not may_measure(missing):
        return results, 0

    def keep(found: Results) -> None:
        if options.json is not None:
            found.save(options.json)

    session = Session(
        results,
        keep,
        rounds=options.rounds,
        budget_s=options.calibration,
        traces=options.traces,
    )
    try:
        for number, name in enumerate(missing):
            print(f"[{number + 1}/{len(missing)}] {FAULTS[name].title} ...", flush=True)
            session.measure(FAULTS[name])
            if name in session.results.skipped:
                print(f"  skipped: {session.results.skipped[name]}", flush=True)
                continue
            sound = is_sound(FAULTS[name], session.results.rounds[name])
            print(f"  {'as it should be' if sound else 'NOT as it should be'}", flush=True)
    except KeyboardInterrupt:
        print("stopped; the faults so far count")
        return session.results, 130
    return session.results, 0


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    options = parser().parse_args(words)
    if options.rounds < 1:
        parser().error("--rounds must be at least 1")
    if options.quick:
        options.calibration = min(options.calibration, 3.0)
    last: list[Results] = []

    def report(results: Results, _: str) -> str:
        last.append(results)
        return table(results)

    code = conducted(
        options,
        __file__,
        resumed=lambda known: resumed(
            options.json, Results(quick=options.quick, rate=options.rate, metadata=known)
        ),
        without=lambda results: structs.replace(
            results,
            rounds={n: r for n, r in results.rounds.items() if n not in options.only},
        ),
        measure=measure,
        report=report,
    )
    wrong = any(not is_sound(FAULTS[n], r) for each in last for n, r in each.rounds.items())
    few = any(right < SHARE * count for right, count in map(first_right, last))
    return code or int(wrong or few)


if __name__ == "__main__":
    sys.exit(main())

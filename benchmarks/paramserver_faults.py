"""Faults of a parameter server: processes killed or stopped at random moments, and nonsense.

    python benchmarks/paramserver_faults.py --json faults.json      # 50 runs, a few minutes
    python benchmarks/paramserver_faults.py --runs 1000 --seed 7 --json faults.json
    python benchmarks/paramserver_faults.py --runs 0 --any 60          # half an hour
    python benchmarks/paramserver_faults.py --runs 0 --partitions 50   # half an hour
    python benchmarks/paramserver_faults.py --runs 0 --frames       # 100,000 malformed messages
    python benchmarks/paramserver_faults.py --quick                 # to see that it runs

A run trains for 30 steps on two servers and a scheduler that keep state, and two workers. Servers
and the scheduler, killed with -9 up to three times, alone or several at once, and started again,
must leave no trace, and so must any process that is stopped for up to 6 s: synchronous runs end
with the bits of an undisturbed one, and asynchronous ones, which add whole numbers, with their
exact sum. A killed worker ends the job with an error that names it, or the other goes on: it has
the same data, so the weights are the same, whichever workers are there. A third of the runs also
lose, double and delay messages. Anything else is a violation, such as a process that goes on after
a minute; then the exit code is 1.

With ``--any N``, N runs more kill any processes up to five times, workers among them, and all at
once in one of five. Jobs wait for workers (``on_worker_loss="wait"``), and what was killed is
started again. Synchronous runs must end with the bits of an undisturbed one; in asynchronous ones
each push that was acknowledged must count once.

With ``--partitions N``, N jobs more run on emulated hosts of their own (root, Linux): one host of
each is cut off for 1 to 60 s, which must leave no trace either.

Seed and number of a run say all that happens in it. Every run is kept in the file as soon as it is
over; one that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import ClassVar

import torch
from msgspec import structs

from contest.conduct import reopened
from emulated.options import explained
from serving import anything, disturbed, nonsense, partitioned
from serving.disturbed import Kill
from syncopate.artifacts.artifact import Artifact
from syncopate.errors import ArtifactError

RUNS, FRAMES = 50, 100_000
_TIMES = ("median", "90%", "longest")


class Results(Artifact, frozen=True, kw_only=True):
    """Every run.

    Attributes:
        seed: of all of them.
        runs: by number.
        partitions: by number.
        anything: runs in which any process is killed, by number.
        onslaughts: of nonsense.
        metadata: versions.
    """

    KIND: ClassVar[str] = "paramserver-faults"

    seed: int
    runs: tuple[disturbed.Run, ...] = ()
    partitions: tuple[disturbed.Run, ...] = ()
    anything: tuple[disturbed.Run, ...] = ()
    onslaughts: tuple[nonsense.Onslaught, ...] = ()
    metadata: dict[str, str] = {}

    @property
    def violations(self) -> list[str]:
        """What should not have happened."""
        runs = (*self.runs, *self.partitions, *self.anything)
        found = [f"run {r.number} ({r.case}): {r.violation}" for r in runs if r.violation]
        return found + [f"nonsense: {o.violation}" for o in self.onslaughts if o.violation]


def with_runs(results: Results, options: argparse.Namespace) -> Results:
    """Return the results with those runs that are missing, and keep each."""
    missing = _missing(results.runs, options.runs)
    expected = disturbed.references() if missing else {}
    for number in missing:
        run = disturbed.disturbed(disturbed.planned(options.seed, number), expected)
        results = kept(structs.replace(results, runs=(*results.runs, run)), options)
        _say(run)
    return results


def with_partitions(results: Results, options: argparse.Namespace) -> Results:
    """Return the results with those partitions that are missing, and keep each."""
    missing = _missing(results.partitions, options.partitions)
    expected = disturbed.references() if missing else {}
    for number in missing:
        run = partitioned.partitioned(
            partitioned.planned(options.seed, number), expected[disturbed.SERVER]
        )
        runs = (*results.partitions, run)
        results = kept(structs.replace(results, partitions=runs), options)
        _say(run)
    return results


def with_anything(results: Results, options: argparse.Namespace) -> Results:
    """Return the results with those runs that are missing that kill any process, and keep each."""
    missing = _missing(results.anything, options.any)
    expected = disturbed.references() if missing else {}
    for number in missing:
        plan = anything.planned(options.seed, number)
        run = anything.happened(plan, expected[disturbed.SERVER])
        results = kept(structs.replace(results, anything=(*results.anything, run)), options)
        _say(run)
    return results


def _missing(runs: Sequence[disturbed.Run], wanted: int) -> list[int]:
    done = {run.number for run in runs}
    return [number for number in range(wanted) if number not in done]


def _say(run: disturbed.Run) -> None:
    said = run.violation and f"VIOLATION: {run.violation}"
    victims = ", ".join("+".join(kill.victims) for kill in run.kills)
    print(
        f"run {run.number:4d}  {run.case:24s} {victims}{', bad wire' if run.wire else ''}; "
        f"{run.duration_s:.1f} s; {said or run.outcome}",
        flush=True,
    )


def with_nonsense(results: Results, options: argparse.Namespace) -> Results:
    """Return the results with one onslaught more, and keep it."""
    seed = options.seed + len(results.onslaughts)
    found = nonsense.onslaught(options.frames, seed)
    print(
        f"nonsense: {found.frames} messages to the server, {found.to_scheduler} to the scheduler, "
        f"{found.duration_s:.1f} s; {found.pushes} pushes meanwhile; refused: {found.refused}"
    )
    return kept(structs.replace(results, onslaughts=(*results.onslaughts, found)), options)


def kept(results: Results, options: argparse.Namespace) -> Results:
    """Return the results, written where the options say."""
    facts = results.metadata | {"torch": str(torch.__version__)}
    results = structs.replace(results, metadata=facts)
    if options.json:
        results.save(options.json)
    return results


def tell(results: Results) -> None:
    """Print how often each case ended how, how long recoveries took, and every violation."""
    found: dict[tuple[str, str], list[Sequence[Kill]]] = {}
    for run in (*results.runs, *results.partitions, *results.anything):
        found.setdefault((run.case, run.outcome or "VIOLATION"), []).append(run.kills)
    if found:
        print(
            f"\n{'killed, rules':26s}{'outcome':40s}{'runs':>6s}{'victims':>9s}  recovery, longest"
        )
    for (case, outcome), runs in sorted(found.items()):
        kills = [kill for kills in runs for kill in kills]
        victims = sum(len(kill.victims) for kill in kills)
        took_s = [kill.recovered_s for kill in kills]
        took = f"{statistics.median(took_s):9.2f} s{max(took_s):8.2f} s" if took_s else ""
        print(f"{case:26s}{outcome:40s}{len(runs):6d}{victims:9d}{took}")
    for what, took_s in sorted(anything.recoveries(results.anything).items()):
        ordered = sorted(took_s)
        most_s = ordered[round(0.9 * (len(ordered) - 1))]
        times = (statistics.median(ordered), most_s, ordered[-1])
        said = "  ".join(f"{name} {each:.2f} s" for name, each in zip(_TIMES, times, strict=True))
        print(f"{what:32s}{len(took_s):5d} times; two more steps after: {said}")
    for violation in results.violations:
        print(f"VIOLATION: {violation}")
    runs = len(results.runs) + len(results.partitions) + len(results.anything)
    print(f"{len(results.violations)} violations in {runs} runs")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = explained(argparse.ArgumentParser(), __doc__)
    found.add_argument("--runs", type=int, default=RUNS, help=f"in all ({RUNS})")
    found.add_argument("--partitions", type=int, default=0, metavar="N", help="in all (0)")
    found.add_argument("--any", type=int, default=0, metavar="N", help="in all (0)")
    found.add_argument("--seed", type=int, default=1, help="of everything that is drawn (1)")
    found.add_argument(
        "--frames",
        type=int,
        nargs="?",
        const=FRAMES,
        default=0,
        metavar="N",
        help=f"also send N malformed messages to a server ({FRAMES})",
    )
    return found


def main() -> int:
    """Run, print, and return 1 if anything happened that should not."""
    options = parser().parse_args()
    if options.quick:
        options.runs, options.any, options.frames = 5, 3, 1000
    try:
        results = reopened(options.json, Results(seed=options.seed), "seed")
    except ArtifactError as error:
        parser().error(str(error))
    results = with_partitions(with_runs(results, options), options)
    results = with_anything(results, options)
    if options.frames:
        results = with_nonsense(results, options)
    tell(results)
    return 1 if results.violations else 0


if __name__ == "__main__":
    sys.exit(main())

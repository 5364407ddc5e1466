"""SSD-SGD's training speed: Figs. 6 and 7 of its paper, with parameter servers on emulated hosts.

    python benchmarks/delayed.py --json delayed.json           # as root on Linux: one round
    python benchmarks/delayed.py --json delayed.json --rounds 2         # and another one
    python benchmarks/delayed.py --json delayed.json --figure 7 --model vgg11 --again
    python benchmarks/delayed.py --json delayed.json --only ssgd ssd-4 --batch 32
    python benchmarks/delayed.py --json delayed.json --no-run  # the tables alone
    python benchmarks/delayed.py --json delayed.json --predict # its plans, predicted anew
    python benchmarks/delayed.py --quick                       # to see that it runs

Four workers, one to four servers and the scheduler have a host each in a lab, behind links of 1
Gbit/s. Fig. 6: ResNet-50 at 32 and 64 images a GPU on 1 to 4 servers by SSGD, by SSD-SGD with k =
1 to 5, and alone, which is linear scaling. Fig. 7: ResNet-50, AlexNet and VGG-11 on 4 servers by
SSGD, ASGD and SSD-SGD-5.

Computation is slept, as long as the paper's machines computed in proportion to what they
communicated (``contest/paper.py`` derives it); gradients, their traffic, the servers' updates and
the local ones are real. Every turn has processes of its own. It counts whole periods of k steps, at
least ``--iterations`` steps, after the k synchronous ones of the warm-up and the first delayed one:
5 steps in all of SSGD, ASGD and k = 1, and 7, 7, 9 and 11 of k = 2 to 5. Given ``--json``, every
turn is kept as soon as it is taken, and a run that was stopped goes on where it was. A round takes
half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from contest import figures, paper, served
from contest.conduct import conducted, may_measure
from contest.figures import Results
from contest.served import ALONE, ASGD, METHODS, SSD, SSGD, Case
from contest.session import KEEP_MEMORY
from contest.turn import Told
from syncopate.errors import SyncopateError
from syncopate.lab import Lab
from syncopate.output import write_output
from syncopate.units import format_seconds, parse_rate


def cases(options: argparse.Namespace) -> list[Case]:
    """Return what the options choose of the two figures, each once, in the order of turns."""
    found: list[Case] = []
    batches = tuple(paper.LINEAR_IMAGES_S)
    if 6 in options.figure:
        for batch in batches:
            found.append(Case("resnet50", batch, 0, ALONE))
            for servers in range(1, served.MOST_SERVERS + 1):
                found += [Case("resnet50", batch, servers, name) for name in (SSGD, *SSD)]
    if 7 in options.figure:
        for model in paper.MODELS:
            for batch in batches:
                found.append(Case(model, batch, 0, ALONE))
                found += [
                    Case(model, batch, served.MOST_SERVERS, name)
                    for name in (SSGD, ASGD, figures.LONGEST)
                ]
    return [
        case
        for case in dict.fromkeys(found)
        if case.model in options.model
        and case.batch in options.batch
        and case.method in options.only
        and (not case.servers or case.servers in options.servers)
    ]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    batches, servers = tuple(paper.LINEAR_IMAGES_S), tuple(range(1, served.MOST_SERVERS + 1))
    add("--figure", type=int, nargs="+", choices=(6, 7), default=[6, 7], help="of the paper (both)")
    add("--model", nargs="+", choices=paper.MODELS, default=list(paper.MODELS), help="(all)")
    add("--batch", type=int, nargs="+", choices=batches, default=list(batches), help="(both)")
    add("--servers", type=int, nargs="+", choices=servers, default=list(servers), help="(all)")
    add("--only", nargs="+", choices=METHODS, default=list(METHODS), help="methods (all)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--rounds", type=int, default=1, help="turns of each, in all (1)")
    add("--iterations", type=int, default=3, help="counted steps of a turn, at least (3)")
    add("--limit", type=float, default=300.0, help="seconds after which a turn is given up (300)")
    add("--json", type=Path, help="every sample; what is there already is kept")
    add("--report", type=Path, help="where the tables go, as Markdown; printed anyway")
    add("--again", action="store_true", help="measure what is chosen anew")
    add("--no-run", action="store_true", help="measure nothing, show what is there")
    add("--predict", action="store_true", help="measure nothing, predict the plans there anew")
    add("--quick", action="store_true", help="fast links, few turns, to see that it runs")
    return found


def settled_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options, those of a quick run cut."""
    options = parser().parse_args(words)
    if options.quick:
        options.rate, options.iterations = "10gbit", 2
        options.model, options.batch, options.servers = ["resnet50"], [32], [2, 4]
        options.only = [ALONE, SSGD, ASGD, "ssd-2", figures.LONGEST]
    if options.predict:
        options.no_run, options.again = True, False
    for what in ("rounds", "iterations"):
        if getattr(options, what) < 1:
            parser().error(f"--{what} must be at least 1")
    return options


class Session:
    """Turns in one lab, and the results so far.

    Args:
        lab: entered.
        folder: for what hosts are told, and tell.
        results: what is known already.
        options: of the command line.
    """

    def __init__(
        self, lab: Lab, folder: Path, results: Results, options: argparse.Namespace
    ) -> None:
        self.results = results
        self._lab, self._folder, self._options = lab, folder, options
        self._turns: list[served.Turn] = []
        self._collected: set[int] = set()
        self._last: deque[str] = deque(maxlen=30)

    def measure(self, places: Sequence[tuple[int, Case]]) -> None:
        """Take turns; what cannot run says so, and the others go on.

        Raises:
            KeyboardInterrupt: the user ended the hosts; all turns before are kept.
            SyncopateError: a host failed, and no turn alone.
        """
        planner = served.Planner(self._options.rate)
        for number, (_, case) in enumerate(places):
            self._turns.append(self._turn(planner, case, number))
        folder = Path(__file__).parent
        outcome = self._lab.run(
            [sys.executable, "-m", "contest.host", str(self._schedule())],
            environment=os.environ | KEEP_MEMORY | {"PYTHONPATH": str(folder)},
            sink=self._hear,
        )
        if outcome.received is not None:
            raise KeyboardInterrupt
        if outcome.exit_code:
            print("\n".join(self._last), file=sys.stderr)
            raise SyncopateError(outcome.summary())
        for turn in self._turns:
            self._collect(turn)

    def _turn(self, planner: served.Planner, case: Case, number: int) -> served.Turn:
        options = self._options
        workload = paper.workload(case.model, case.batch, parse_rate(options.rate))
        folder = self._folder / str(number)
        folder.mkdir()
        return served.Turn(
            case=case,
            workload=workload,
            plan=planner.plan(case, workload),
            least=options.iterations,
            number=number,
            limit_s=options.limit,
            folder=str(folder),
            rate=options.rate,
        )

    def _schedule(self) -> Path:
        """Write what all hosts go through."""
        turns = [
            {
                "path": str(turn.save(Path(turn.folder) / "turn.json")),
                "limit_s": turn.limit_s,
                "commands": served.commands(turn, self._lab.topology),
            }
            for turn in self._turns
        ]
        path = self._folder / "schedule.json"
        write_output(path, json.dumps({"workers": served.WORKERS, "turns": turns}).encode())
        return path

    def _hear(self, rank: int, _: str, line: str) -> None:
        """Take note of what a host prints; keep a turn as soon as all workers have told."""
        self._last.append(f"host {rank}: {line}")
        first, *rest = line.split()[:2] or [""]
        if first == served.TOLD and rest:
            turn = self._turns[int(rest[0])]
            if all(turn.told(worker).exists() for worker in range(served.WORKERS)):
                self._collect(turn)

    def _collect(self, turn: served.Turn) -> None:
        """Keep what the workers told of a turn, once."""
        if turn.number in self._collected:
            return
        self._collected.add(turn.number)
        workers = range(served.WORKERS)
        told = [Told.load(turn.told(rank)) for rank in workers if turn.told(rank).exists()]
        errors = [one.error for one in told if one.error]
        cell = structs.replace(self.results.cell(turn.case), missing="")
        if errors or len(told) < served.WORKERS:
            print("\n".join(self._last), file=sys.stderr)
            missing = errors[0] if errors else "a worker told nothing"
            cell = structs.replace(cell, missing=missing)
            said = f"not available: {missing}"
        else:
            steps_s = tuple(one.steps_s for one in told)
            cell = structs.replace(
                cell, turns=(*cell.turns, steps_s), predicted_s=_predicted_s(turn)
            )
            said = format_seconds(cell.last_step_s)
        print(f"[{turn.number + 1}/{len(self._turns)}] {turn.case.name}: {said}", flush=True)
        self.results = self.results.with_cell(turn.case, cell, turn.plan)
        if self._options.json is not None:
            self.results.save(self._options.json)


def _predicted_s(turn: served.Turn) -> float | None:
    """Return what a step was expected to take; None of asynchronous servers, without a model."""
    if turn.case.method == ALONE:
        return turn.workload.compute_s
    if turn.case.method == ASGD or turn.plan is None or turn.plan.prediction is None:
        return None
    return turn.plan.prediction.iteration_s


def measure(options: argparse.Namespace, results: Results) -> tuple[Results, int]:
    """Take the turns that are missing; return all results and the exit code."""
    places = [
        (index, case)
        for index in range(options.rounds)
        for case in cases(options)
        if len(results.cell(case).turns) <= index
    ]
    if not may_measure(places):
        return results, 0
    with tempfile.TemporaryDirectory() as folder:
        session = None
        try:
            with Lab(served.topology_of(options.rate)) as lab:
                session = Session(lab, Path(folder), results, options)
                session.measure(places)
        except KeyboardInterrupt:
            print("stopped; the turns taken so far count")
            return session.results if session is not None else results, 130
    return session.results, 0


def main() -> int:
    """Measure."""
    options = settled_options()
    return conducted(
        options,
        __file__,
        resumed=lambda known: figures.resumed(options.json, options.rate, options.quick, known),
        without=lambda results: results.without(cases(options)),
        measure=measure,
        report=figures.predicted_again if options.predict else figures.report,
    )


if __name__ == "__main__":
    sys.exit(main())

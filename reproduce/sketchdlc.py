"""SketchDLC's experiment on real processes: its Tables 5 to 7 and Figs. 9 to 18 beside ours.

    python reproduce/sketchdlc.py                         # tables, of what was captured here
    python reproduce/sketchdlc.py --json                  # all figures as JSON
    python reproduce/sketchdlc.py --train study           # run both networks anew, then tables
    python reproduce/sketchdlc.py --train short --network lenet5 --iterations 50
    python reproduce/sketchdlc.py --train quick --quick   # a few iterations, to see that it runs
    python reproduce/sketchdlc.py --results study/study.json

The paper (Xu, Dong, Xu and Liao) traces MXNet on 4 machines, each with 2 K80 and 56 Gbit/s: LeNet-5
and ResNet-50 with 2 workers and 1 server. Here scheduler, server and workers are processes of one
machine, and the server is Syncopate's. LeNet-5 trains for real; ResNet-50's forward and backward
are slept, as long as the paper's. ``sketchdlc_worker.py`` says what is trained, and how.

``--train DIR`` leaves in DIR a folder for each network, with the captured run and its DLC traces,
and ``study.json``. A network that this file has is not run again. On two cores LeNet-5 takes a
minute and ResNet-50 four.

Lengths by formula are those of the paper's MXNet, computed from the tensors' true shapes. Ours are
what was captured: the same bytes of tensors, and our own header.

Overheads are those of Section 4.2. The paper's bars and curves were read off its plots; the points
of its Fig. 9 go through the same analysis as our traces. ``sketchdlc_paper.py`` says what the paper
gets wrong, and docs/sketchdlc.md which figures agree and which do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sketchdlc_paper import DATA, TABLE_5, Bar, Normal, paper, sizes_by_formula
from sketchdlc_runs import (
    COMPUTED,
    ITERATIONS,
    OPERATIONS,
    QUICK_ITERATIONS,
    WORKERS,
    Place,
    Study,
    Trained,
    resumed,
    run_job,
)
from sketchdlc_worker import LENET5, PARAMETERS, RESNET50
from syncopate.analysis.serving import Distribution
from syncopate.errors import SyncopateError

CAPTURED = DATA / "2core-epyc_2026-11-23.json"
STUDY = "study.json"
TITLES = {LENET5: "LeNet-5", RESNET50: "ResNet-50"}
_MS = 1e3
_INTERRUPTED = 130
PER_KEY = {"synchronization": "Figs. 17, 18", "update": "Figs. 11, 12", "search": "Figs. 13, 14"}
"""What servers spend by key, and where the paper draws it."""

PHASES = ("phase 1", "phase 2", "phase 3", "computation", "overlap", "wait")
OF_TENSORS = ("push_sent", "pull_received")
"""What a worker does with messages that carry a tensor."""

NAMES = dict(zip(OPERATIONS, ("Push_Send", "Push_Recv", "Pull_Send", "Pull_Recv"), strict=True))


# -- command line -------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shown = found.add_mutually_exclusive_group().add_argument
    shown("--train", type=Path, metavar="DIR", help="run what DIR/study.json lacks, and write it")
    shown("--results", type=Path, metavar="FILE", help="show this file instead of our own")
    add = found.add_argument
    add("--network", nargs="+", choices=tuple(PARAMETERS), help="which to run (both)")
    add("--iterations", type=int, help="to count of each (lenet5 380, resnet50 165)")
    add("--json", action="store_true", help="print the figures as JSON")
    add("--quick", action="store_true", help="a few iterations, to see that it runs")
    return found


def settled_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options; ``iterations`` by network."""
    options = parser().parse_args(words)
    if options.iterations is not None and options.iterations < 1:
        parser().error("--iterations must be at least 1")
    usual = QUICK_ITERATIONS if options.quick else ITERATIONS
    names = options.network or list(PARAMETERS)
    options.iterations = {name: options.iterations or usual[name] for name in dict.fromkeys(names)}
    return options


def trained(folder: Path, iterations: Mapping[str, int], quick: bool) -> Study:
    """Run the networks that a folder's study lacks; keep each as soon as it is done.

    Args:
        folder: for runs, traces and the study.
        iterations: network -> how many count.
        quick: whether no figure counts.

    Raises:
        SyncopateError: a job failed, or the study there is another one.
    """
    study = resumed(folder / STUDY, quick, iterations)
    for name, count in iterations.items():
        if name not in study.networks:
            result = run_job(name, count, folder / name, tuple(paper(name).sizes))
            study = study.joined(name, result)
            study.save(folder / STUDY)
    return study


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for, and print tables or JSON."""
    options = settled_options(words)
    try:
        if options.train is not None:
            study = trained(options.train, options.iterations, options.quick)
        else:
            study = Study.load(options.results or CAPTURED)
    except SyncopateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    if options.json:
        print(json.dumps(as_json(study), indent=1))
    else:
        show(Console(width=150), study)
    return 0


# -- tables -------------------------------------------------------------------------------------


def table_5(study: Study) -> Table:
    """Return Table 5: bytes of an iteration."""
    table = _table(
        "Table 5: MB of an iteration, worker 0",
        *("network", "as printed", "what it is", "paper", "by formula", "ours"),
    )
    for name, ours in study.networks.items():
        printed, formula = paper(name).text, sizes_by_formula(name)
        for heading, operation in TABLE_5.items():
            total = sum(sizes[operation] for sizes in formula)
            table.add_row(
                TITLES[name],
                heading,
                NAMES[operation],
                f"{printed[f'Table 5 {heading}']:.5g}",
                f"{total / 1e6:.5f}",
                f"{ours.bytes_per_iteration[operation] / 1e6:.5f}",
            )
    return table


def lengths(name: str, ours: Trained) -> Table:
    """Return Table 6 or 7: bytes of the messages of every key that the paper lists.

    Ours are bytes of the tensor and, behind a plus, of the header.
    """
    columns = ["key", "elements"]
    for operation in OPERATIONS:
        columns += [NAMES[operation], *(["formula"] if operation in OF_TENSORS else []), "ours"]
    number = {LENET5: 6, RESNET50: 7}[name]
    table = _table(f"Table {number}: message lengths of {TITLES[name]}, bytes", *columns)
    printed, formula, parameters = paper(name).sizes, sizes_by_formula(name), PARAMETERS[name]()
    for sizes in ours.sizes:
        numel = parameters[sizes.key].numel
        cells = [str(numel)]
        for operation in OPERATIONS:
            cells.append(str(printed[sizes.key][operation]))
            least, most = getattr(sizes, operation)
            if operation in OF_TENSORS:
                cells.append(str(formula[sizes.key][operation]))
                cells.append(f"{4 * numel} + {_range(least - 4 * numel, most - 4 * numel)}")
            else:
                cells.append(_range(least, most))
        table.add_row(str(sizes.key), *cells)
    return table


def phases(name: str, ours: Trained) -> Table:
    """Return Figs. 9, 10, 15 and 16: phases of an iteration."""
    theirs, found = paper(name), ours.found()
    columns = ["", "text", "points of Fig. 9", "drawn normal"]
    for node in ("w0", "w1"):
        columns += [f"ours, {node}", "5%, 50%, 95%"]
    table = _table(f"Figs. 9, 10, 15, 16: {TITLES[name]}, ms", *columns)
    for quantity in PHASES:
        factor = 100 if quantity == "overlap" else _MS
        text = theirs.text.get({"phase 3": "communication"}.get(quantity, quantity))
        # What Fig. 16 draws under the name of computation is phase 1.
        drawn_as = {"phase 1": "computation", "computation": ""}.get(quantity, quantity)
        drawn = [theirs.normals.get(Place(drawn_as, node)) for node in ("", "w0", "w1")]
        cells = [
            _number(text, factor),
            _spread(theirs.points.get(Place(quantity, "w0")), factor),
            ", ".join(_spread(one, factor) for one in drawn if one) or "-",
        ]
        for node in ("w0", "w1"):
            one = found.get(Place(quantity, node))
            cells += [_spread(one, factor), _percentiles(one, factor)]
        table.add_row("overlap, %" if quantity == "overlap" else quantity, *cells)
    return table


def averages(study: Study) -> Table:
    """Return the averages of Section 5.3: means over the keys that the paper lists."""
    table = _table(
        "Section 5.3: averages over keys and workers, ms", "network", "", "text", "bars", "ours"
    )
    for name, ours in study.networks.items():
        theirs, found = paper(name), ours.found()
        for quantity in dict.fromkeys(p.quantity for p in found if p.key >= 0):
            bars = [bar.mean for p, bar in theirs.bars.items() if p.quantity == quantity]
            table.add_row(
                TITLES[name],
                quantity,
                _number(theirs.text.get(quantity), _MS),
                _number(_mean(bars), _MS),
                _number(over_keys(found, quantity), _MS),
            )
    return table


def over_keys(found: Mapping[Place, Distribution], quantity: str) -> float | None:
    """Return the mean over keys and workers of an overhead's means; None where there is none."""
    return _mean(one.mean for place, one in found.items() if place.quantity == quantity)


def by_key(name: str, ours: Trained, quantity: str) -> Table:
    """Return what servers spend of one kind by key: bars, normal distributions and percentiles."""
    theirs, found = paper(name), ours.found()
    noted = quantity + COMPUTED
    computed = any(place.quantity == noted for place in found)
    table = _table(
        f"{PER_KEY[quantity]}: {quantity}, {TITLES[name]}, ms",
        *("key", "paper: least, mean, most", "drawn normal"),
        *("ours: least, mean, most", "normal", "5%, 50%, 95%"),
        *(("computed",) if computed else ()),
    )
    places = [place for place in found if place.quantity == quantity]
    order = {key: number for number, key in enumerate(theirs.sizes)}
    for place in sorted(places, key=lambda place: (place.node, order[place.key])):
        one = found[place]
        bar = theirs.bars.get(place, Bar(None, None, None))
        cells = [
            ", ".join(_number(value, _MS) for value in bar),
            _spread(theirs.normals.get(place), _MS),
            ", ".join(_number(value, _MS) for value in (one.least, one.mean, one.most)),
            _spread(one, _MS),
            _percentiles(one, _MS),
        ]
        if computed:
            cells.append(_spread(found.get(place._replace(quantity=noted)), _MS))
        table.add_row(f"{place.key} {place.node}".rstrip(), *cells)
    return table


def show(console: Console, study: Study) -> None:
    """Print all tables of a study, and how it was made."""
    console.print(table_5(study))
    for name, ours in study.networks.items():
        console.print(lengths(name, ours))
    for name, ours in study.networks.items():
        console.print(phases(name, ours))
    console.print(averages(study))
    for quantity in PER_KEY:
        for name, ours in study.networks.items():
            console.print(by_key(name, ours, quantity))
    for name, ours in study.networks.items():
        first, last = ours.losses
        learned = f"; loss {first:.3f} at first, {last:.3f} at last" if first else ", replayed"
        counted = ", ".join(f"{count} {NAMES[what]}" for what, count in ours.messages.items())
        due = ours.iterations * len(PARAMETERS[name]()) * WORKERS
        title = f"{TITLES[name]}: {ours.iterations} iterations{learned}"
        console.print(f"{title}. Counted: {counted}, of {due} each.")
    if study.quick:
        console.print("These runs were cut to see that they run: no figure counts.")


def as_json(study: Study) -> dict[str, Any]:
    """Return every figure of the tables, in bytes, seconds and ratios."""
    found: dict[str, Any] = {"quick": study.quick, "metadata": study.metadata}
    for name, ours in study.networks.items():
        theirs, formula = paper(name), sizes_by_formula(name)
        found[name] = {
            "paper": {
                "text": theirs.text,
                "lengths": theirs.sizes,
                "points": _named(theirs.points),
                "bars": _named(theirs.bars),
                "normals": _named(theirs.normals),
            },
            "formula": {key: formula[key] for key in theirs.sizes},
            "ours": {
                "iterations": ours.iterations,
                "messages": ours.messages,
                "lengths": {
                    sizes.key: {what: getattr(sizes, what) for what in OPERATIONS}
                    for sizes in ours.sizes
                },
                "bytes_per_iteration": ours.bytes_per_iteration,
                "distributions": _named(ours.found()),
                "losses": ours.losses,
            },
        }
    return found


def _named(found: Mapping[Place, Any]) -> list[dict[str, Any]]:
    return [place._asdict() | one._asdict() for place, one in found.items()]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}-{most}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _number(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.4g}"


def _spread(found: Distribution | Normal | None, scale: float) -> str:
    if found is None:
        return "-"
    return f"{found.mean * scale:.4g} ± {found.deviation * scale:.3g}"


def _percentiles(found: Distribution | None, scale: float) -> str:
    if found is None:
        return "-"
    return ", ".join(_number(value, scale) for value in (found.low, found.median, found.high))


if __name__ == "__main__":
    sys.exit(main())

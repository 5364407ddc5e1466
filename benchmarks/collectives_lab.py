"""The collectives on emulated hosts: against the line rate, against Gloo's own, between racks.

    python benchmarks/collectives_lab.py                     # as root on Linux: all parts, 20 min
    python benchmarks/collectives_lab.py --part flat4        # one of them; --list shows all
    python benchmarks/collectives_lab.py --no-run --report report.md

Started plainly it makes labs (network namespaces, shaped links) and runs itself on every host. Each
part writes its raw samples to a JSON file of its own as soon as it is done; parts that are there
already are kept unless ``--force``, so a run that was stopped goes on where it was. At the end
everything in the folder becomes a report in Markdown, every target met or not, and a JSON file of
the targets beside it; the pipelines' measurements also as ``reproduce/linear_pipeline.py`` reads
them (``linear_pipeline_8hosts.json``). Parts that need the same lab share one start.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from campaign import fig4, report, targets
from campaign import parts as known
from campaign.parts import Part
from campaign.results import PartResult
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.lab import Lab
from syncopate.lab.support import why_not
from syncopate.output import write_output

OUT = Path("out/collectives_lab")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(description="The collectives on emulated hosts.")
    names = ", ".join(part.name for part in known.PARTS)
    found.add_argument("--part", nargs="+", default=[], metavar="NAME", help=f"of {names}")
    found.add_argument("--list", action="store_true", help="say what the parts are, and end")
    found.add_argument("--out", type=Path, default=OUT, help=f"where results go ({OUT})")
    found.add_argument("--force", action="store_true", help="measure again what is there")
    found.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    found.add_argument(
        "--no-run", action="store_true", help="measure nothing, report what is there"
    )
    found.add_argument("--report", type=Path, help="the report (report.md in the results' folder)")
    found.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    found.add_argument("--scene", help=argparse.SUPPRESS)
    return found


def command_of(part: Part, *, quick: bool) -> str:
    """Return the command that measures a part."""
    words = ["python", f"benchmarks/{Path(__file__).name}", "--part", part.name]
    return shlex.join([*words, "--quick"] if quick else words)


def kept(part: Part, options: argparse.Namespace) -> bool:
    """Say whether a part's result is there already, and as good as the one asked for."""
    path = options.out / f"{part.name}.json"
    if options.force or not path.exists():
        return False
    try:
        return options.quick or not PartResult.load(path).quick
    except ArtifactError as error:
        print(f"measuring {part.name} again: {error}")
        return False


def measure(parts: Sequence[Part], options: argparse.Namespace) -> int:
    """Measure parts in the labs they need; return the exit code of the last that failed."""
    todo = [part for part in parts if not kept(part, options)]
    for part in parts:
        if part not in todo:
            print(f"kept {options.out / part.name}.json; --force measures it again")
    code = 0
    labs = known.by_lab(todo)
    for index, group in enumerate(labs):
        names = ", ".join(part.name for part in group)
        print(f"lab {index + 1} of {len(labs)}, {group[0].topology.describe()}: {names}")
        if group[0].ends_ranks:
            stage(group[0], options)
            continue
        own = ["--out", str(options.out), *(["--quick"] if options.quick else [])]
        command = [sys.executable, __file__, "--rank", *own, "--part", *names.split(", ")]
        with Lab(group[0].topology) as lab:
            outcome = lab.run(command)
        if outcome.exit_code:
            print(outcome.summary(), file=sys.stderr)
            code = outcome.exit_code
        if outcome.received is not None:
            break
    return code


def stage(part: Part, options: argparse.Namespace) -> None:
    """Measure the part whose ranks do not live, from outside."""
    from campaign import failures, session  # noqa: PLC0415 - loads torch

    start_s = time.monotonic()
    scenes = failures.record([sys.executable, __file__, "--scene"])
    result = PartResult(
        part=part.name,
        command=command_of(part, quick=options.quick),
        topology=part.topology,
        quick=options.quick,
        elapsed_s=time.monotonic() - start_s,
        scenes=scenes,
        metadata=session.facts(),
    )
    print(f"wrote {result.save(options.out / f'{part.name}.json')}")


def tell(options: argparse.Namespace) -> None:
    """Write the report on everything in the folder, and say which targets were not met."""
    paths = [options.out / f"{part.name}.json" for part in known.PARTS]
    results = [PartResult.load(path) for path in paths if path.exists()]
    if not results:
        print(f"nothing to report in {options.out}")
        return
    path = options.report or options.out / "report.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, report.report(results, str(options.out)).encode())
    for result in results:
        if result.part.startswith("pipeline"):
            table = options.out / f"linear_pipeline_{result.topology.hosts}hosts.json"
            write_output(table, json.dumps(fig4.measurement(result), indent=1).encode() + b"\n")
    found = tuple(target for result in results for target in targets.targets(result))
    targets.Verdicts(targets=found).save(path.with_suffix(".targets.json"))
    for target in found:
        value, limit = target.figures
        if not target.met:
            print(f"not met: {target.part}, {target.what}: {value}, wanted {limit}")
    print(f"{sum(target.met for target in found)} of {len(found)} targets met; see {path}")


def main() -> int:
    """Start the labs, or be one of their ranks."""
    options = parser().parse_args()
    try:
        chosen = known.chosen(options.part)
    except SyncopateError as error:
        parser().error(str(error))
    if options.rank:
        from campaign import ranks  # noqa: PLC0415 - loads torch, which starting a lab needs not

        commands = {part.name: command_of(part, quick=options.quick) for part in chosen}
        ranks.run(chosen, options.out, commands, quick=options.quick)
        return 0
    if options.scene:
        from campaign import failures  # noqa: PLC0415 - as above

        failures.play(options.scene)
        return 0
    if options.list:
        for part in chosen:
            print(f"{part.name:12s} {part.title}")
        return 0
    code = 0
    if not options.no_run:
        obstacle = why_not()
        if obstacle:
            print(f"skipped: {obstacle}")
            return 0
        try:
            code = measure(chosen, options)
        except KeyboardInterrupt:
            code = 130
    tell(options)
    return code


if __name__ == "__main__":
    sys.exit(main())

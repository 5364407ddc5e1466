"""What plans for FSDP2 predict, beside what FSDP2 takes by them.

    python benchmarks/fsdp_plans.py --json fsdp.json         # as root on Linux
    python benchmarks/fsdp_plans.py --json fsdp.json --no-run
    python benchmarks/fsdp_plans.py --quick                  # to see that it runs

On the hosts of a lab (network namespaces, shaped links) the commands that a user types make the
plans: ``syncopate profile`` on all hosts at once, ``syncopate calibrate``, and ``syncopate plan
--exchange fsdp`` with each policy. Then ``unmodified/train_fsdp.py`` trains in turns: with torch's
``fully_shard`` of each block over Gloo, and by each plan. The model computes. With the defaults (4
hosts at 1 Gbit/s, 3 turns) it takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from emulated.commands import Commands, measured
from syncopate.artifacts.plan import Plan
from syncopate.lab import Lab, Topology
from syncopate.shown import markdown_table
from syncopate.units import format_seconds, parse_rate

SCRIPT = Path(__file__).parent / "unmodified" / "train_fsdp.py"
TORCH = "fully_shard of each block, over Gloo"
POLICIES = {"wfbp": "a unit for each block, over our links", "": "the fastest plan"}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--hosts", type=int, default=4, help="of the lab, one rank each (4)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--rounds", type=int, default=3, help="turns of each variant (3)")
    add("--json", type=Path, help="every sample")
    add("--no-run", action="store_true", help="measure nothing, show the table of --json")
    add("--quick", action="store_true", help="two hosts, one short turn, to see that it runs")
    return found


def plans(hosts: Commands, folder: Path, *, quick: bool) -> dict[str, Path]:
    """Make the plans as a user does; return their files by what they are."""
    command, workload, cluster = ("-m", "syncopate"), folder / "w.json", folder / "c.json"
    build = f"{SCRIPT.stem}:build"
    inside = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); "
    inside += "from syncopate.cli import main; sys.exit(main())"
    given: tuple[str, ...] = ("--optimizer", "AdamW", "-o", str(workload))
    short: tuple[str, ...] = ("--iterations", "1", "--warmup", "0") if quick else ()
    hosts.run("-c", inside, "profile", build, *given, *short)
    short = ("--budget", "4") if quick else ()
    hosts.run(*command, "calibrate", "-o", str(cluster), *short)
    found = {}
    for policy, title in POLICIES.items():
        path = folder / f"plan{policy}.json"
        given = ("-w", str(workload), "-c", str(cluster), "--exchange", "fsdp", "-o", str(path))
        chosen = ("--policy", policy) if policy else ()
        print(hosts.run(*command, "plan", *given, *chosen, everywhere=False))
        found[title] = path
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make the plans and take all turns; return what there is to keep."""
    from campaign.session import facts  # noqa: PLC0415 - loads much, and --no-run needs none of it

    topology = Topology(hosts=options.hosts, rate_bytes_per_s=parse_rate(options.rate))
    about = facts()
    turns: dict[str, list[float]] = {}
    with Lab(topology) as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = Commands(lab)
        made = plans(hosts, folder, quick=options.quick)
        steps = ("--warmup", "1", "--steps", "1") if options.quick else ()
        variants = {TORCH: ()} | {title: ("--plan", str(path)) for title, path in made.items()}
        for _ in range(options.rounds):
            for title, words in variants.items():
                hosts.run(str(SCRIPT), "--out", str(folder), *steps, *words)
                files = [folder / f"rank{rank}.json" for rank in range(options.hosts)]
                taken_s = [statistics.median(json.loads(file.read_text())) for file in files]
                turns.setdefault(title, []).append(max(taken_s))
                print(f"{title}: {format_seconds(turns[title][-1])}", flush=True)
        kept = {title: json.loads(path.read_text()) for title, path in made.items()}
    return {
        "metadata": about | {"command": shlex.join(["python", *sys.argv])},
        "setting": {name: getattr(options, name) for name in ("hosts", "rate", "rounds", "quick")},
        "plans": kept,
        "turns": turns,
    }


def table(kept: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    setting, turns = kept["setting"], kept["turns"]
    torch_s = statistics.median(turns[TORCH])
    rows = []
    for title, each in turns.items():
        step_s, units, expected, off = statistics.median(each), "", "", ""
        if title in kept["plans"]:
            plan = Plan.from_json(json.dumps(kept["plans"][title]))
            units = str(len(plan.buckets))
            if plan.prediction is not None:
                expected = format_seconds(plan.prediction.iteration_s)
                off = f"{plan.prediction.iteration_s / step_s - 1:+.1%}"
        spread = f"{format_seconds(min(each))} to {format_seconds(max(each))}"
        gain = f"{torch_s / step_s:.2f}x"
        rows.append((title, units, format_seconds(step_s), spread, gain, expected, off))
    heads = ("variant", "units", "step", "turns", "against torch", "predicted", "off")
    head = (
        f"A GPT of 25 million weights that computes, {setting['hosts']} emulated hosts at "
        f"{setting['rate']}. *Step*: median over {setting['rounds']} turns of the slowest rank's "
        "median."
    )
    if setting.get("quick"):
        head += " **A quick run, to see that everything works: no figure here counts.**"
    return f"{head}\n\n{markdown_table(heads, rows)}"


def main() -> int:
    """Measure, and print the table."""
    options = parser().parse_args()
    if options.quick:
        options.hosts, options.rounds = 2, 1
    return measured(parser(), options, measure, table)


if __name__ == "__main__":
    sys.exit(main())

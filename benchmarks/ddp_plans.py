"""What a plan gives a script that stays on DistributedDataParallel, from its recording on.

    python benchmarks/ddp_plans.py --json ddp.json                 # as root on Linux; see below
    python benchmarks/ddp_plans.py --model resnet20 --hosts 2
    python benchmarks/ddp_plans.py --racks 2 --uplink 1gbit       # over racks in turn
    python benchmarks/ddp_plans.py --json ddp.json --no-run        # the table alone
    python benchmarks/ddp_plans.py --quick                         # to see that it runs

On the hosts of a lab (network namespaces, shaped links) the script ``unmodified/train.py`` trains
by DDP as it is, while torch.profiler looks on. What follows are the commands that a user types:
``syncopate convert --to workload`` of what was recorded, ``syncopate calibrate`` on the hosts, and
``syncopate plan --exchange allreduce``. Then the script trains in turns: with DDP's defaults, with
other sizes of DDP's buckets, with the backend ``syncopate`` in place of Gloo, alone and given the
calibration, and with ``syncopate.ddp(model, plan="plan.json")``; each turn has processes of its
own. Nothing is chosen by hand. ResNet-50 is replayed at full size: its computation is slept, its
gradients, traffic and optimizer are real; ResNet-20 and the character GPT compute.
With the defaults (ResNet-50, 4 hosts at 1 Gbit/s, 5 turns) it takes about forty minutes.
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

from contest.session import KEEP_MEMORY
from contest.works import WORKS
from emulated.commands import Commands, measured
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import wire_s
from syncopate.lab import Lab, Topology
from syncopate.shown import markdown_table
from syncopate.units import format_seconds, parse_rate

SCRIPT = Path(__file__).parent / "unmodified" / "train.py"
DEFAULT, OURS = "DDP's defaults", "syncopate.ddp"
BACKEND, CALIBRATED = "DDP's defaults, cpu:syncopate", "DDP's defaults, cpu:syncopate, calibrated"
BUCKETS_MB = (50, 10, 5, 2, 1)
"""Other sizes of DDP's buckets that take turns."""

Turns = dict[str, list[list[list[float]]]]
"""Variant -> turn -> rank -> seconds of the counted steps."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--hosts", type=int, default=4, help="of the lab, one rank each (4)")
    add("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    add("--racks", type=int, default=1, help="of the hosts; ranks go over them in turn (1)")
    add("--uplink", help="rate of each rack's link (as much as its hosts have)")
    add("--model", choices=tuple(WORKS), default="resnet50", help="what is trained (resnet50)")
    add("--rounds", type=int, default=5, help="turns of each variant (5)")
    add("--steps", type=int, default=6, help="counted steps of a turn (6)")
    add("--bucket-mb", type=int, nargs="*", default=BUCKETS_MB, help="sizes of DDP's buckets")
    add("--calibration", type=float, default=40.0, help="seconds of calibration (40)")
    add("--json", type=Path, help="every sample")
    add("--no-run", action="store_true", help="measure nothing, show the table of --json")
    add("--quick", action="store_true", help="two hosts, ResNet-20, one short turn")
    return found


class Hosts(Commands):
    """The hosts of a lab, and what runs on them.

    Args:
        lab: entered.
        folder: for what is written.
        options: of the command line.
    """

    def __init__(self, lab: Lab, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(lab, KEEP_MEMORY | {"SYNCOPATE_CACHE": "off"})
        self._folder, self._options = folder, options
        self._turns = 0

    def train(self, *words: str) -> list[list[float]]:
        """Train on every host; return the seconds of each rank's counted steps."""
        self._turns += 1
        out = self._folder / f"turn{self._turns}"
        out.mkdir()
        options = self._options
        quick = ["--quick"] if options.quick else []
        given = ["--model", options.model, "--steps", str(options.steps), "--out", str(out), *quick]
        said = self.run(str(SCRIPT), *given, *words, everywhere=True)
        print("\n".join(line for line in said.splitlines() if "syncopate: " in line), flush=True)
        return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(options.hosts)]

    def plan(self) -> Path:
        """Make a plan as a user does; return its file."""
        profiles, files = self._folder / "profiles", {}
        for name in ("workload", "cluster", "plan"):
            files[name] = str(self._folder / f"{name}.json")
        self.train("--profile", str(profiles))
        command = ("-m", "syncopate")
        traces = [str(profiles / f"rank{rank}.json") for rank in range(self._options.hosts)]
        to = ("--to", "workload", "-o", files["workload"])
        self.run(*command, "convert", *traces, *to, everywhere=False)
        budget = ("--budget", str(self._options.calibration))
        self.run(*command, "calibrate", *budget, "-o", files["cluster"], everywhere=True)
        given = ("-w", files["workload"], "-c", files["cluster"], "--exchange", "allreduce")
        print(self.run(*command, "plan", *given, "-o", files["plan"], everywhere=False))
        return Path(files["plan"])

    def bound_s(self) -> float:
        """Return what no plan within DDP can be below: from the first gradient on the wire is busy.

        DDP launches nothing before, and the next forward waits for everything.
        """
        workload = Workload.load(self._folder / "workload.json")
        cluster = Cluster.load(self._folder / "cluster.json")
        sent_s = workload.ready_s[0] + wire_s(cluster, workload.nbytes)
        return max(sent_s, workload.forward_s + workload.backward_s) + workload.update_s


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make a plan and take all turns; return what there is to keep."""
    from campaign.session import facts  # noqa: PLC0415 - loads much, and --no-run needs none of it

    topology = Topology(
        hosts=options.hosts,
        rate_bytes_per_s=parse_rate(options.rate),
        racks=options.racks,
        uplink_bytes_per_s=parse_rate(options.uplink) if options.uplink else None,
        placement="alternating" if options.racks > 1 else "blocked",
    )
    about = facts()
    found: Turns = {}
    with Lab(topology) as lab, tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(lab, Path(folder), options)
        path = hosts.plan()
        variants: dict[str, tuple[str, ...]] = {DEFAULT: ()}
        variants |= {f"DDP, {mb} MB": ("--bucket-mb", str(mb)) for mb in options.bucket_mb}
        variants[BACKEND] = ("--backend", "syncopate")
        cluster = str(path.with_name("cluster.json"))
        variants[CALIBRATED] = (*variants[BACKEND], "--cluster", cluster)
        variants[OURS] = ("--plan", str(path))
        plan = Plan.load(path)
        for _ in range(options.rounds):
            for name, words in variants.items():
                found.setdefault(name, []).append(hosts.train(*words))
                print(f"{name}: {format_seconds(step_s(found[name][-1]))}", flush=True)
        setting = {
            name: getattr(options, name)
            for name in (
                *("hosts", "rate", "racks", "uplink", "model", "rounds", "steps", "calibration"),
                "quick",
            )
        }
        return {
            "metadata": about | {"command": shlex.join(["python", *sys.argv])},
            "setting": setting,
            "commands": hosts.typed[:4],
            "plan": json.loads(plan.to_json()),
            "bound_s": hosts.bound_s(),
            "turns": found,
        }


def step_s(turn: list[list[float]]) -> float:
    """Return the slowest rank's mean: a rank that is late in one step is early in the next."""
    return max(statistics.fmean(steps) for steps in turn)


def table(kept: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    setting, turns = kept["setting"], kept["turns"]
    steps_s = {name: [step_s(turn) for turn in each] for name, each in turns.items()}
    medians_s = {name: statistics.median(each) for name, each in steps_s.items()}
    over_gloo = medians_s.keys() - {BACKEND, CALIBRATED, OURS}
    best = min(over_gloo, key=lambda name: medians_s[name])
    plan = Plan.from_json(json.dumps(kept["plan"]))
    lines = [
        f"{WORKS[setting['model']].title}, {setting['hosts']} emulated hosts at {setting['rate']}"
        f"{_racks(setting)}, "
        f"{setting['rounds']} turns of {setting['steps']} counted steps. *Step*: median over turns "
        "of the slowest rank's mean. *Turns*: the fastest and the slowest.",
        "",
    ]
    rows = [
        (
            f"{name}{' (best DDP)' if name == best else ''}",
            format_seconds(medians_s[name]),
            f"{format_seconds(min(each))} to {format_seconds(max(each))}",
            f"{medians_s[DEFAULT] / medians_s[name]:.3f}x",
            f"{medians_s[best] / medians_s[name]:.3f}x",
        )
        for name, each in steps_s.items()
    ]
    heads = ("variant", "step", "turns", "against the defaults", "against the best DDP")
    lines += markdown_table(heads, rows).splitlines()
    if plan.prediction is not None:
        expected_s = plan.prediction.iteration_s
        off = expected_s / medians_s[OURS] - 1
        lines += ["", f"The plan expects {format_seconds(expected_s)}, {off:+.1%} of what it took."]
    bound_s = kept.get("bound_s")
    if bound_s is not None:
        lines += [
            "",
            f"Within DDP no plan takes less than {format_seconds(bound_s)}: nothing is sent before "
            "the first gradient is there, and the next forward waits for all. The best DDP takes "
            f"{medians_s[best] / bound_s:.3f} times that.",
        ]
    if setting["quick"]:
        lines += ["", "**A quick run, to see that everything works: no figure here counts.**"]
    return "\n".join(lines)


def _racks(setting: dict[str, Any]) -> str:
    if setting.get("racks", 1) == 1:
        return ""
    uplink = f" with uplinks of {setting['uplink']}" if setting["uplink"] else ""
    return f" in turn over {setting['racks']} racks{uplink}"


def main() -> int:
    """Measure, and print the table."""
    options = parser().parse_args()
    if options.quick:
        options.model = "resnet20"
        options.hosts, options.rounds, options.steps, options.calibration = 2, 1, 4, 4.0
    return measured(parser(), options, measure, table)


if __name__ == "__main__":
    sys.exit(main())

"""How far predictions are from measurements: the demo's comparison, several times over.

    python benchmarks/prediction.py
    python benchmarks/prediction.py --runs 5 --ranks 4 --json prediction.json

Each run calibrates, profiles, plans and then trains under every policy and under DDP in turns, all
in one go on the same processes. The error of a policy is its prediction over its measurement, less
one; what counts is the median over policies of its size, and of that the median over runs.

Two predictions are held against the measurement. One is for the pace that computation alone had in
turns of its own beside the plans: the target holds for it. The other is the plan's own, made from a
profile some seconds older; its error has in it by how much the machine changed pace since, which is
reported with it and has no target.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from syncopate.cli.demo.result import DemoResult
from syncopate.output import write_output

TARGET = 0.10
"""Median error at the pace of the comparison to stay below."""


def run_demo(ranks: int) -> DemoResult:
    """Run the demo once on local ranks; return what it found."""
    with tempfile.TemporaryDirectory(prefix="syncopate-") as folder:
        command = [sys.executable, "-m", "syncopate", "demo", "--local", str(ranks), "-o", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return DemoResult.load(Path(folder, "demo.json"))


def summary(results: list[DemoResult]) -> Table:
    """Return the runs side by side: both errors by policy, change of pace, DDP / optimal."""
    table = Table(
        title=" Prediction / measurement - 1 (as planned)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy")
    for index in range(len(results)):
        table.add_column(f"run {index + 1}", justify="right")
    for policy in results[0].policies:
        if policy.error is not None:
            table.add_row(policy.name, *(_errors(result, policy.name) for result in results))
    table.add_section()
    table.add_row(
        "median |error|",
        *(f"{result.median_error:.1%} ({result.median_planned_error:.1%})" for result in results),
    )
    table.add_row("change of pace", *(f"{_change(result):+.1%}" for result in results))
    table.add_row("DDP / optimal", *(f"{_over_ddp(result):.2f}x" for result in results))
    return table


def _errors(result: DemoResult, name: str) -> str:
    policy = next(policy for policy in result.policies if policy.name == name)
    assert policy.error is not None
    assert policy.planned_error is not None
    return f"{policy.error:+.1%} ({policy.planned_error:+.1%})"


def _change(result: DemoResult) -> float:
    assert result.pace is not None
    return result.pace.change


def _over_ddp(result: DemoResult) -> float:
    measured = {policy.name: policy.measured_s for policy in result.policies}
    return measured["ddp"] / measured["optimal"]


def main() -> None:
    """Run the demo as often as asked and print the errors."""
    parser = argparse.ArgumentParser(description="Hold the demo's predictions against it.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4, help="local ranks")
    parser.add_argument("--quick", action="store_true", help="one run, to see that it works")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    console = Console()
    results = []
    for index in range(runs):
        console.print(f"run {index + 1} of {runs}, about a minute ...", style="dim")
        results.append(run_demo(arguments.ranks))
    console.print(summary(results))
    median = statistics.median(result.median_error for result in results)
    verdict = "ok" if median < TARGET else "missed"
    planned = statistics.median(result.median_planned_error for result in results)
    console.print(f"median over runs {median:.1%}, target < {TARGET:.0%}: {verdict}")
    console.print(f"as planned before the comparison {planned:.1%}, no target")
    if arguments.json:
        host = {
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        found = [json.loads(result.to_json()) for result in results]
        report = {
            "host": host,
            "median_error": median,
            "median_planned_error": planned,
            "runs": found,
        }
        write_output(arguments.json, json.dumps(report, indent=1).encode() + b"\n")
        console.print(f"wrote {arguments.json}", style="dim")


if __name__ == "__main__":
    main()

"""How long a sweep takes: 200 settings of ResNet-50's 161 gradients, and the answers.

    python benchmarks/whatif.py                         # a table
    python benchmarks/whatif.py --json whatif.json      # every figure too
    python benchmarks/whatif.py --quick                 # 12 settings, to see that it runs

Five numbers of nodes, eight links, and five compute speeds on a flat network; the same on boxes of
eight GPUs (``--boxes``), and on racks of three and five nodes in turn (``--racks``). Every point
has the best plan of two exchanges, DDP's buckets, and three more predictions of each for its
interval. Seconds are of the processor, by ``process_time``: one process, no threads of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.workload import Workload
from syncopate.output import write_output
from syncopate.planning.whatif.machines import on_device
from syncopate.planning.whatif.study import Study, Terms

WORKLOAD = Path(__file__).parents[1] / "examples" / "workloads" / "resnet50.json"
TARGET_S = 30.0
"""What 200 settings may take."""

VARY = {
    "nodes": "4..64",
    "bandwidth": "1g,5g,10g,25g,40g,50g,100g,200g",
    "gpu_speed": [0.5, 1, 2, 4, 8],
}
RACKS = (3, 5)
"""Nodes in the racks of ``--racks``, whose numbers of nodes are those of so many copies."""

QUICK = {"nodes": "4,8", "bandwidth": "10g,25g", "gpu_speed": [1, 2, 4]}


def measure(vary: dict[str, object], racks: Sequence[int] = ()) -> dict[str, float]:
    """Return the number of settings, and the seconds of the sweep and of the answers.

    Args:
        vary: what is swept.
        racks: nodes in each rack of the cluster that is known; none of a flat one.
    """
    workload = Workload.load(WORKLOAD)
    known = Cluster.preset("10gbe", sum(racks) or 64)
    cluster = on_device(known.in_racks(racks) if racks else known, "cuda")
    study = Study(workload, cluster, vary, Terms())
    begin_s = time.process_time()
    swept_s = begin_s

    def note(what: str, done: float) -> None:
        nonlocal swept_s
        if study.done < study.count:
            swept_s = time.process_time()

    study.run(note)
    end_s = time.process_time()
    return {
        "settings": study.count,
        "sweep_s": swept_s - begin_s,
        "answers_s": end_s - swept_s,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--quick", action="store_true", help="a few settings only")
    parser.add_argument("--boxes", action="store_true", help="eight GPUs on each node")
    parser.add_argument("--racks", action="store_true", help="racks of three and of five nodes")
    told = parser.parse_args(arguments)
    vary: dict[str, object] = dict(QUICK if told.quick else VARY)
    if told.boxes:
        vary["gpus_per_node"] = [8]
    if told.racks:
        vary["nodes"] = "8,16" if told.quick else "8..128"
    found = measure(vary, RACKS if told.racks else ())
    table = Table("settings", "sweep", "answers", "each", "target")
    table.add_row(
        f"{found['settings']:.0f}",
        f"{found['sweep_s']:.1f} s",
        f"{found['answers_s']:.1f} s",
        f"{1e3 * found['sweep_s'] / found['settings']:.0f} ms",
        "-" if told.quick else f"{TARGET_S:.0f} s",
    )
    Console().print(table)
    if told.json is not None:
        versions = {"python": platform.python_version(), "vary": vary}
        write_output(told.json, json.dumps(found | versions, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

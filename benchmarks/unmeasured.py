"""Defaults for what was not measured, beside public measurements of machines that others have.

Two defaults stand in for measurements: the roofline's efficiency for a device that is not at hand,
and what overlap costs on a cluster of logs. Both are held here against ResNet-50 in float32:

* times of one GPU: an RTX 2080 Ti at batch 64 (253.1 images/s, HKBU-HPML/ddl-benchmarks,
  results/2020-05-29), a V100 at batch 128 (443.4 ms, the sum of the layers in PipeDream's profile,
  msr-fiddle/pipedream, profiler/image_classification/profiles/resnet50);
* iterations of 8 x 4 RTX 2080 Ti (the same of ddl-benchmarks), by NCCL's own times on a cluster
  like it (dexhunter/allreduce-experiments, data/nccl-results/nccl-32gpus, MIT), which are written
  as a log of nccl-tests and read as ``syncopate convert`` reads one. BSP all-reduces once, behind
  backward; WFBP each gradient by itself; MG-WFBP is the policy of that name. The layers' times are
  those of the roofline, scaled to the GPU's own 252.9 ms.

    python benchmarks/unmeasured.py --json unmeasured.json
    python benchmarks/unmeasured.py --quick       # the same: it takes seconds
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.workload import Workload
from syncopate.calibration.logs.read import read_logs
from syncopate.output import write_output
from syncopate.planning.planner import make_plan
from syncopate.profiling.estimate import estimate
from syncopate.zoo import resnet50

GPU_S = 64 / 253.1
"""An iteration of one RTX 2080 Ti at batch 64."""

ALONE = (("rtx2080ti", 64, GPU_S), ("v100", 128, 443.4e-3))
"""Device, batch, and what an iteration takes there."""

RANKS, HOSTS = 32, 8
FACTOR = 2 * (RANKS - 1) / RANKS
POLICIES = {"BSP": "single", "WFBP": "wfbp", "MG-WFBP": "mg-wfbp"}

MEASURED = {
    "10 GbE": {"BSP": 4920.82, "WFBP": 5113.18, "MG-WFBP": 6883.60},
    "100 Gbit/s InfiniBand": {"BSP": 7126.520, "WFBP": 7326.560, "MG-WFBP": 7876.460},
}
"""Images per second of 32 GPUs at batch 64 each."""

NCCL_US = {
    "10 GbE": """
    250.7 261.1 285.4 232.6 240.6 236.6 241.0 243.0 248.8 250.2 258.7 258.0 266.4 290.6 278.7
    260.2 276.1 302.0 352.5 346.4 493.2 567.9 482.9 472.1 924.2 870.9 1031.1 1008.7 1187.0 1269.1
    1641.6 1641.8 1793.9 1898.7 2118.0 2022.0 2281.1 2284.2 3593.7 3494.7 6973.6 6940.2 13849
    13848 27692 27690 55372 55377 112134 110802 221878 221988 443193 443084 886303 887027
    """,
    "100 Gbit/s InfiniBand": """
    59.24 58.27 56.72 57.55 56.39 55.66 55.18 57.37 56.52 56.28 60.39 56.91 59.86 96.72 62.51
    60.11 65.97 63.41 202.2 70.91 85.23 84.59 115.5 111.1 162.6 162.9 179.2 176.6 208.5 203.9
    249.8 423.8 451.7 316.1 477.6 472.5 732.2 728.6 1078.3 1077.3 1767.6 1764.5 3068.2 3073.8
    5977.0 5975.5 11850 12302 23736 23638 47248 47224 94517 94437 188913 188878
    """,
}
"""All-reduces of 4 B, 8 B, .. 512 MiB: us out of place and in place."""

CARRIER = {"10 GbE": "Socket", "100 Gbit/s InfiniBand": "IB"}


def log_of(network: str) -> str:
    """Return NCCL's times as a log of nccl-tests."""
    times = list(map(float, NCCL_US[network].split()))
    lines = [f"gpu0:1:1 [0] NCCL INFO Using network {CARRIER[network]}", "# all_reduce_perf"]
    lines += [
        f"#  Rank {rank} Pid 1 on gpu{rank * HOSTS // RANKS} device 0 [0x00] GeForce RTX 2080 Ti"
        for rank in range(RANKS)
    ]
    lines.append(
        "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error"
    )
    for index, both in enumerate(zip(times[::2], times[1::2], strict=True)):
        size = 4 << index
        values = "".join(
            f"  {t:.1f}  {size / t / 1e3:.2f}  {FACTOR * size / t / 1e3:.2f}  2e-06" for t in both
        )
        lines.append(f"{size}  {size // 4}  float  sum{values}")
    return "\n".join(lines) + "\n"


def cluster_of(network: str) -> Cluster:
    """Return the cluster that the log tells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all_reduce.log"
        write_output(path, log_of(network).encode())
        return read_logs([path])


def alone() -> list[dict[str, object]]:
    """Return how estimated iterations of one GPU compare with measured ones."""
    rows: list[dict[str, object]] = []
    for device, batch, measured_s in ALONE:
        found = estimate(lambda batch=batch: resnet50(batch), device)
        estimated_s = found.forward_s + found.backward_s
        rows.append(
            {"device": device, "measured_s": measured_s, "estimated_s": estimated_s,
             "error": estimated_s / measured_s - 1}
        )  # fmt: skip
    return rows


def together(work: Workload) -> list[dict[str, object]]:
    """Return how predicted iterations of 32 GPUs compare with measured ones."""
    rows: list[dict[str, object]] = []
    for network, by_method in MEASURED.items():
        cluster = cluster_of(network)
        for method, throughput in by_method.items():
            measured_s = RANKS * 64 / throughput
            row: dict[str, object] = {
                "network": network,
                "method": method,
                "measured_s": measured_s,
            }
            for overlap, cost in (("default", cluster.interference), ("ideal", Interference())):
                plan = make_plan(work, replace(cluster, interference=cost), POLICIES[method])
                row[overlap] = plan.expected_s / measured_s - 1
            rows.append(row)
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    told = parser.parse_args()
    by_roofline = estimate(lambda: resnet50(64), "rtx2080ti")
    work = replace(by_roofline.scaled(GPU_S / by_roofline.compute_s), buffers_nbytes=None)
    found = {"alone": alone(), "together": together(work)}
    for row in found["alone"]:
        print(
            "{device:>9}: {measured_s:.4f} s, estimated {estimated_s:.4f} s ({error:+.1%})".format(
                **row
            )
        )
    for row in found["together"]:
        print(
            "{network:>21}, {method:>7}: {measured_s:.4f} s, predicted {default:+.1%}, with ideal "
            "overlap {ideal:+.1%}".format(**row)
        )
    if told.json is not None:
        write_output(told.json, json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

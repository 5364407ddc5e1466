"""Published: public measurements of GPUs, predicted by the ordinary planner.

27 trainings of ResNet-50 on 2, 4 and 8 nodes of 4 RTX 2080 Ti, over three networks, by BSP (one
bucket behind backward), WFBP (a bucket a gradient) and MG-WFBP. No input was chosen by looking at
them, and none of them is an input:

* **Computation**: 64 images at the throughput of one GPU alone. Its layers have the shares that
  PipeDream's profile of ResNet-50 gives them.
* **All-reduces on 10GbE and InfiniBand**: nccl-tests on a cluster alike, with 8 nodes. On 2 and 4
  nodes they are carried over, with NCCL's own choice of trees and rings
  (:mod:`syncopate.costs.nccl`).
* **All-reduces over TCP on 100 Gbit/s**: no nccl-tests of it are published. Its bandwidth is read
  off BSP trainings of another model, BERT-Large, on the same nodes; what a message takes beside its
  bytes is that of TCP on 10GbE.
* **Overlap**: the stated default (:mod:`syncopate.artifacts.overlap`).
* **Buckets of MG-WFBP**: by the α and β that its authors' program holds, which is what ran.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from syncopate.artifacts.cluster import Cluster, Interference
from syncopate.artifacts.level import Level
from syncopate.artifacts.overlap import ASSUMED, RDMA
from syncopate.artifacts.plan import ALLREDUCE, Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.nccl.curves import Measured, carried, curve_of, with_native
from syncopate.costs.nccl.tuning import Layout, Way
from syncopate.planning import make_plan, predict
from syncopate.validation.point import GPU, Phase, Point

MODEL, OTHER_MODEL = "ResNet-50", "BERT-Large"
PER_NODE = 4
MEASURED_NODES = 8
PCIE_BYTES_PER_S = 12e9
"""What NCCL takes PCIe 3.0 x16 for."""

LINKS_BYTES_PER_S = {"10GbE": 1.25e9, "100Gb InfiniBand": 12.5e9, "100Gb TCP": 12.5e9}
"""Nominal rate of a node's link, each direction."""

TRANSPORT = {"10GbE": "10GbE", "100Gb InfiniBand": "100Gb InfiniBand", "100Gb TCP": "10GbE"}
"""Network -> the one whose nccl-tests say what a message takes beside its bytes."""

POLICIES = {"BSP": "single", "WFBP": "wfbp", "MG-WFBP": "mg-wfbp"}
"""Method as published -> policy."""

_OTHER_NBYTES = 4 * 336_232_258
"""Of BERT-Large's gradients: BertForPreTraining with 30,528 words, as its benchmark pads them."""

_OVERLAP = ASSUMED[RDMA].interference

_FIT_BYTES = (4, 1 << 20, 1 << 27)


def gpu_points(interference: Interference = _OVERLAP, *, as_run: bool = True) -> tuple[Point, ...]:
    """Return the 27 trainings, predicted and measured.

    Args:
        interference: of collectives with computation; the stated default when left out.
        as_run: whether MG-WFBP merges by its authors' line; by the costs here otherwise.
    """
    return tuple(
        _point(row, interference, as_run)
        for row in _rows("training.csv")
        if row["model"] == MODEL and row["method"]
    )


def resnet50() -> Workload:
    """Return ResNet-50 on one RTX 2080 Ti: the layers' shares of the time of 64 images."""
    rows = _rows("resnet50.csv")
    alone = next(row for row in _rows("training.csv") if row["model"] == MODEL)
    whole_s = float(alone["batch"]) / float(alone["samples_per_s"])
    backward = [float(row["backward_ms"]) for row in rows]
    forward = [float(row["forward_ms"]) for row in rows]
    scale = whole_s / (sum(backward) + sum(forward))
    tensors = tuple(
        GradientTensor(
            name=row["name"],
            numel=int(row["numel"]),
            backward_s=one * scale,
            forward_s=other * scale,
        )
        for row, one, other in zip(rows, backward, forward, strict=True)
    )
    return Workload(
        model=MODEL,
        tensors=tensors,
        forward_s=sum(forward) * scale,
        backward_s=sum(backward) * scale,
        metadata={"device": "RTX 2080 Ti", "batch": alone["batch"]},
    )


def cluster_of(network: str, nodes: int, interference: Interference = _OVERLAP) -> Cluster:
    """Return nodes of 4 GPUs with the backend's all-reduce as it is expected there.

    Args:
        network: a key of ``LINKS_BYTES_PER_S``.
        nodes: how many; at least 2.
        interference: of collectives with computation.
    """
    curve = carried(
        _measured(TRANSPORT[network]),
        Layout(nodes, PER_NODE, LINKS_BYTES_PER_S[network]),
        _others_bandwidth(network, nodes) if TRANSPORT[network] != network else None,
    )
    return with_native(_levels(network, nodes, interference), curve)


def plan_of(
    workload: Workload, network: str, nodes: int, method: str, *, as_run: bool = True
) -> Plan:
    """Return the plan of a method.

    Args:
        workload: the model.
        network: a key of ``LINKS_BYTES_PER_S``.
        nodes: how many; at least 2.
        method: a key of ``POLICIES``.
        as_run: whether MG-WFBP merges by its authors' line.
    """
    cluster = cluster_of(network, nodes)
    if as_run and method == "MG-WFBP":
        cluster = with_native(cluster, curve_of(_merging(network, nodes * PER_NODE)))
    return make_plan(workload, cluster, POLICIES[method], exchange=ALLREDUCE, channels=1)


def _point(row: Mapping[str, str], interference: Interference, as_run: bool) -> Point:
    network, method, gpus = row["network"], row["method"], int(row["gpus"])
    nodes = gpus // PER_NODE
    workload, cluster = _workload(), cluster_of(network, nodes, interference)
    plan = plan_of(workload, network, nodes, method, as_run=as_run)
    prediction = predict(workload, plan, cluster)
    measured_s = gpus * float(row["batch"]) / float(row["samples_per_s"])
    alone_s = workload.compute_s
    return Point(
        kind=GPU,
        name=f"{network}, {gpus} GPUs, {method}",
        work=MODEL,
        network=network,
        ranks=gpus,
        hosts=nodes,
        exchange=ALLREDUCE,
        way=method,
        calibrated=_words(network),
        prediction=prediction,
        samples_s=(measured_s,),
        phases=(
            Phase(
                name="exposed communication",
                predicted_s=prediction.iteration_s - alone_s,
                measured_s=max(measured_s - alone_s, 0.0),
            ),
        ),
    )


def _levels(network: str, nodes: int, interference: Interference) -> Cluster:
    """Return the nodes with nominal rates: what no prediction may be below."""
    inside = Level(
        name="device", size=PER_NODE, latency_s=0.0, bandwidth_bytes_per_s=PCIE_BYTES_PER_S
    )
    outside = Level(
        name="host",
        size=nodes,
        latency_s=0.0,
        bandwidth_bytes_per_s=LINKS_BYTES_PER_S[network],
    )
    name = f"{nodes} nodes of {PER_NODE} RTX 2080 Ti, {network}"
    return Cluster(name=name, levels=(inside, outside), interference=interference)


def _measured(network: str) -> Measured:
    layout = Layout(MEASURED_NODES, PER_NODE, LINKS_BYTES_PER_S[network])
    rows = [row for row in _rows("nccl_tests.csv") if row["network"] == network]
    points = ((int(row["nbytes"]), 1e-6 * float(row["microseconds"])) for row in rows)
    return Measured(layout, tuple(points))


def _others_bandwidth(network: str, nodes: int) -> float:
    """Return the bus bandwidth that another model's training by BSP shows."""
    rows = [row for row in _rows("training.csv") if row["model"] == OTHER_MODEL]
    alone_s = float(rows[0]["batch"]) / float(rows[0]["samples_per_s"])
    gpus = nodes * PER_NODE
    row = next(r for r in rows if (r["network"], r["gpus"]) == (network, str(gpus)))
    seconds = gpus * float(row["batch"]) / float(row["samples_per_s"]) - alone_s
    return Way("ring", "Simple").network_bytes(_OTHER_NBYTES, gpus) / seconds


def _merging(network: str, gpus: int) -> Iterator[tuple[int, float]]:
    """Yield the line that MG-WFBP's authors merge by, at a few sizes."""
    rows = _rows("merging.csv")
    row = next(r for r in rows if (r["network"], r["gpus"]) == (network, str(gpus)))
    for nbytes in _FIT_BYTES:
        yield nbytes, float(row["a_s"]) + float(row["b_s_per_byte"]) * nbytes


def _words(network: str) -> str:
    if TRANSPORT[network] == network:
        return f"nccl-tests on {network}, 8 nodes"
    return f"{OTHER_MODEL} by BSP on {network}; nccl-tests on {TRANSPORT[network]}, 8 nodes"


@cache
def _workload() -> Workload:
    return resnet50()


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    text = files("syncopate.validation").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))

"""What a prediction starts from: a profile, or a run that was recorded, and today's cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from syncopate.artifacts.cluster import BESIDE_RUN, NETWORKS, Cluster
from syncopate.artifacts.results.whatif import BEST, DDP
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.machines import Racks, load_cluster, typical
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.reading import read_whole

WORKLOAD = "workload.json"
"""A workload that may lie beside the files of ranks in the directory of a run."""

_USUAL = "10gbe"
"""The network whose latency and reduction are taken where only a rate is known."""

_BATCH = "batch"


@dataclass(frozen=True)
class Trained:
    """A training, from a workload or a recorded run.

    Attributes:
        workload: what it computes and sends.
        ranks: of the run; None: there is none.
        cluster: that lay beside the run; None: none did.
        iteration_s: what an iteration of the run took; None: not known.
        today: how gradients travelled, ``"ddp"`` or ``"best"``.
        remarks: what is assumed, a sentence each.
    """

    workload: Workload
    ranks: int | None = None
    cluster: Cluster | None = None
    iteration_s: float | None = None
    today: str = DDP
    remarks: tuple[str, ...] = ()


def trained(path: Path, samples: int | None = None) -> Trained:
    """Return the training of a workload's file, a run's directory or a timeline.

    Args:
        path: any of them.
        samples: the batch of a rank; None: as the workload's metadata say.

    Raises:
        ArtifactError: it is none of them, or damaged.
        InvalidValueError: a timeline without computation or messages; no number of samples.
    """
    found = Trained(Workload.load(path)) if _is_workload(path) else _recorded(path)
    if samples is None:
        return found
    if samples < 1:
        raise InvalidValueError("--samples", samples, "an integer >= 1")
    metadata = found.workload.metadata | {_BATCH: str(samples)}
    workload = msgspec.structs.replace(found.workload, metadata=metadata)
    return replace(found, workload=workload)


def _is_workload(path: Path) -> bool:
    if os.path.isdir(path):
        return False
    try:
        head = msgspec.json.decode(read_whole(path))
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(path, f"cannot read it: {reason}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(head, dict) and head.get("kind") == Workload.KIND


def _recorded(path: Path) -> Trained:
    from syncopate.analysis.workload import assumed, recorded_iteration_s, recorded_workload
    from syncopate.cli.common.timelines import read_recorded

    folder = path if os.path.isdir(path) else None
    profile = folder / WORKLOAD if folder and (folder / WORKLOAD).exists() else None
    beside = folder / BESIDE_RUN if folder and (folder / BESIDE_RUN).exists() else None
    timeline = read_recorded(path).of_ranks().timeline
    if profile is not None:
        workload, remark = Workload.load(profile), f"the training is that of {profile}"
    else:
        workload = recorded_workload(timeline)
        remark = assumed(timeline, workload)
    policy = timeline.metadata.get("policy", "")
    return Trained(
        workload=workload,
        ranks=timeline.world_size,
        cluster=None if beside is None else load_cluster(beside),
        iteration_s=recorded_iteration_s(timeline),
        today=BEST if policy and policy not in (DDP, "threshold") else DDP,
        remarks=(remark,),
    )


class Base(NamedTuple):
    """What options say of today's cluster.

    Attributes:
        path: a cluster file.
        network: one of ``NETWORKS``.
        racks: where the hosts of a network stand.
    """

    path: Path | None = None
    network: str | None = None
    racks: Racks | None = None


def base_cluster(
    found: Trained, base: Base, vary: Mapping[str, Any]
) -> tuple[Cluster, tuple[str, ...]]:
    """Return today's cluster, and what is assumed of it.

    It is the file's; or a typical network's; or that beside the run; or, where only rates are
    named, a network of the first of them.

    Args:
        found: the training.
        base: what options say of it.
        vary: what is varied; the most nodes and the first rate count where nothing else says them.

    Raises:
        InvalidValueError: a file and a network, racks without a network, or nothing to go by.
        ArtifactError: the file is no cluster.
        UnknownNameError: no such network.
    """
    path, network, racks = base
    if racks is not None and network is None:
        raise InvalidValueError("--racks", racks.hosts, "given with --network")
    if path is not None:
        if network is not None:
            rule = "the only one of --cluster and --network"
            raise InvalidValueError("--cluster", str(path), rule)
        return load_cluster(path), ()
    if network is not None:
        if network not in NETWORKS:
            raise UnknownNameError("network", network, NETWORKS)
        return _typical(found, network, vary, racks)
    if found.cluster is not None:
        return found.cluster, ()
    if "bandwidth" not in vary:
        rule = "given, or --network, or --bandwidth with the rates of links"
        raise InvalidValueError("--cluster", None, rule)
    cluster, remarks = _typical(found, _USUAL, vary)
    remark = f"of today's network nothing is known: it has the latency of {_USUAL}"
    return cluster, remarks if "latency" in vary else (remark, *remarks)


def _typical(
    found: Trained, network: str, vary: Mapping[str, Any], racks: Racks | None = None
) -> tuple[Cluster, tuple[str, ...]]:
    from syncopate.planning.whatif.machines import on_device

    nodes = _nodes(found, vary) if racks is None else sum(racks.hosts)
    cluster = typical(network, nodes, racks)
    device = found.workload.metadata.get("device", "")
    chosen = on_device(cluster, device)
    if chosen is cluster:
        return cluster, ()
    rate = 1 / chosen.reduction_s_per_byte / 1e9
    return chosen, (f"gradients are added at {rate:.0f} GB/s, on the GPU ({device})",)


def _nodes(found: Trained, vary: Mapping[str, Any]) -> int:
    """Return how many hosts a typical network has: those of the run, or the most asked for."""
    from syncopate.planning.whatif.axes import values_of

    if found.ranks is not None:
        inside = int(values_of("gpus_per_node", vary.get("gpus_per_node", 1))[0])
        return max(found.ranks // inside, 1)
    if "nodes" in vary:
        return int(max(values_of("nodes", vary["nodes"])))
    raise InvalidValueError("--nodes", None, "given, as 4,8 or 4..64")

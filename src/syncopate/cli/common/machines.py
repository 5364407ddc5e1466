"""The options that name a cluster: a calibrated one by its file, or a typical network by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from syncopate.artifacts.cluster import NETWORKS, Cluster
from syncopate.artifacts.disturbed import doubts
from syncopate.artifacts.overlap import OVERLAP, TCP, assuming_overlap
from syncopate.artifacts.workload import TIMES, Workload
from syncopate.cli.common.console import note, warn
from syncopate.cli.common.options import items
from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.units import format_count, parse_rate

_Network = Annotated[
    str | None,
    typer.Option(help=f"Instead of a cluster file, a typical network: {', '.join(NETWORKS)}."),
]
_Nodes = Annotated[int | None, typer.Option(help="Number of hosts on --network.")]
_Gpus = Annotated[
    int | None,
    typer.Option(
        help="GPUs in each host on --network: as many ranks, which share its link, and add "
        "gradients on the GPU. 1 rank otherwise."
    ),
]
RacksOption = Annotated[
    str | None,
    typer.Option(help="Instead of --nodes, the hosts in each rack on --network, such as 3,5."),
]
UplinkOption = Annotated[
    str | None,
    typer.Option(
        help="Rate between a rack and the core, such as 40gbit, with --racks; otherwise as much as "
        "the largest rack's hosts have together."
    ),
]


def machines(
    *,
    cluster: Annotated[
        Path | None,
        typer.Argument(metavar="CLUSTER", help="Cluster file, from `syncopate calibrate`."),
    ] = None,
    network: _Network = None,
    nodes: _Nodes = None,
    gpus_per_node: _Gpus = None,
    racks: RacksOption = None,
    uplink: UplinkOption = None,
) -> Cluster:
    """Return the cluster that the options name."""
    named = Named(network, nodes, gpus_per_node, racks_of(racks, uplink))
    return _load_cluster("CLUSTER", cluster, named)


class Sources(NamedTuple):
    """The options of a command that takes several kinds of files, or a typical network."""

    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="A cluster, a timeline, or one file of each rank."
        ),
    ] = None
    network: _Network = None
    nodes: _Nodes = None

    def cluster(self) -> Cluster:
        """Return the one cluster that was named.

        Raises:
            InvalidValueError: several files, or a file and a network.
            ArtifactError: the file is no cluster.
        """
        files: Sequence[Path | None] = self.files or (None,)
        if len(files) > 1:
            raise InvalidValueError("FILE", str(files[1]), "left out after a cluster")
        return _load_cluster("CLUSTER", files[0], Named(self.network, self.nodes))

    def recorded(self) -> list[Path]:
        """Return the files of a recorded training.

        Raises:
            InvalidValueError: none, or a network beside them.
        """
        for option, value in (("--network", self.network), ("--nodes", self.nodes)):
            if value is not None:
                raise InvalidValueError(option, value, "left out: it makes a cluster")
        if not self.files:
            raise InvalidValueError("FILE", None, "given: a timeline, or one file of each rank")
        return self.files


def machines_option(
    *,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", "-c", help="Cluster file, from `syncopate calibrate`."),
    ] = None,
    network: _Network = None,
    nodes: _Nodes = None,
    gpus_per_node: _Gpus = None,
    racks: RacksOption = None,
    uplink: UplinkOption = None,
) -> GivenCluster:
    """Return the machines that the options name, their file one of them."""
    named = Named(network, nodes, gpus_per_node, racks_of(racks, uplink))
    return GivenCluster(_load_cluster("--cluster", cluster, named), typical=cluster is None)


class GivenCluster(NamedTuple):
    """What a training is predicted on.

    Attributes:
        cluster: the links and ranks.
        typical: whether they are those of a typical network, and nothing of them was measured.
    """

    cluster: Cluster
    typical: bool

    def training(self, workload: Workload) -> Cluster:
        """Return the cluster that trains a workload; say where measurements were made otherwise.

        On a typical network gradients are added where the workload was profiled: on its GPU.
        """
        from syncopate.planning.whatif.machines import on_device

        found = self.cluster
        if self.typical:
            found = on_device(found, workload.metadata.get("device", ""))
        say_unlike(workload, found)
        return found


class Racks(NamedTuple):
    """The racks of a typical network.

    Attributes:
        hosts: how many stand in each.
        uplink_bytes_per_s: of each; None: as much as the largest rack's hosts have together.
    """

    hosts: tuple[int, ...]
    uplink_bytes_per_s: float | None


class Named(NamedTuple):
    """A typical network, as options name it.

    Attributes:
        network: one of :data:`syncopate.artifacts.cluster.NETWORKS`; None: none is named.
        nodes: number of its hosts.
        gpus: in each host; None: a rank that is no GPU.
        racks: where the hosts stand.
    """

    network: str | None
    nodes: int | None
    gpus: int | None = None
    racks: Racks | None = None

    def cluster(self) -> Cluster:
        """Return its cluster.

        Raises:
            InvalidValueError: no number of hosts, or two of them; no number of GPUs.
            UnknownNameError: no such network.
        """
        assert self.network is not None
        if self.racks is not None:
            if self.nodes is not None:
                rule = "left out with --racks, which count hosts"
                raise InvalidValueError("--nodes", self.nodes, rule)
            found = typical(self.network, sum(self.racks.hosts), self.racks)
        elif self.nodes is None or self.nodes < 1:
            rule = "an integer >= 1, given together with --network"
            raise InvalidValueError("--nodes", self.nodes, rule)
        else:
            found = typical(self.network, self.nodes)
        if self.gpus is None:
            return found
        if self.gpus < 1:
            raise InvalidValueError("--gpus-per-node", self.gpus, "an integer >= 1")
        from msgspec.structs import replace

        from syncopate.planning.whatif.machines import cluster_of, on_device, setting_of

        on_gpus = on_device(found, "gpu")
        return cluster_of(on_gpus, replace(setting_of(on_gpus), gpus_per_node=self.gpus))


def racks_of(racks: str | None, uplink: str | None) -> Racks | None:
    """Return the racks that the options name; None: none.

    Raises:
        InvalidValueError: no numbers of hosts, no rate, or an uplink of no racks.
    """
    if racks is None:
        if uplink is not None:
            raise InvalidValueError("--uplink", uplink, "left out without --racks")
        return None
    counts = items(racks)
    if not counts or not all(count.isdecimal() and int(count) for count in counts):
        raise InvalidValueError("--racks", racks, "the hosts of each rack, such as 3,5")
    return Racks(tuple(map(int, counts)), None if uplink is None else parse_rate(uplink))


def typical(network: str, nodes: int, racks: Racks | None = None) -> Cluster:
    """Return a typical network's cluster, of TCP, on which nothing was measured."""
    cluster = assuming_overlap(Cluster.preset(network, nodes), TCP)
    return cluster if racks is None else cluster.in_racks(*racks)


def load_cluster(path: Path) -> Cluster:
    """Return the cluster of a file whose curves are of collectives and algorithms that there are.

    What speaks against its figures is said on standard error.

    Raises:
        ArtifactError: the file is no cluster, or has other curves.
    """
    from syncopate.schedules.registry import require_curves

    cluster = Cluster.load(path)
    try:
        require_curves(cluster)
    except (InvalidValueError, UnknownNameError) as error:
        raise ArtifactError(path, str(error), "$.curves") from None
    for doubt in doubts(cluster):
        warn(f"{path}: {doubt}")
    return cluster


def say_unlike(workload: Workload, cluster: Cluster) -> None:
    """Warn of measurements that were not made as training will run.

    Ranks on CPUs share the cores of their host, so each computes the longer the more there are. And
    times of a device that is not at hand, or what overlap costs, may be assumptions.
    """
    if TIMES in workload.metadata:
        note(f"{TIMES}: {workload.metadata[TIMES]}")
    if OVERLAP in cluster.metadata and workload.interference is None:
        note(f"{OVERLAP}: {cluster.metadata[OVERLAP]}")
    profiled = workload.metadata.get("ranks_per_host", "")
    if workload.metadata.get("device") != "cpu" or not profiled.isdecimal():
        return
    ranks = cluster.ranks_per_host
    if int(profiled) < ranks:
        warn(
            f"{workload.model} was profiled on {format_count(int(profiled), 'rank')} of a host, "
            f"and {cluster.name} has {ranks} on each; they share its processors, so computation "
            "will take longer than predicted here. Profile as many at once: syncopate profile ... "
            f"--local {ranks}, or under torchrun"
        )


def _load_cluster(what: str, path: Path | None, named: Named) -> Cluster:
    """Return the cluster of a file, which the command calls ``what``, or of a typical network."""
    if path is not None:
        if any(value is not None for value in named):
            raise InvalidValueError(
                what, str(path), f"the only one of {what} and --network with --nodes"
            )
        return load_cluster(path)
    if named.network is None:
        raise InvalidValueError(what, None, "given, or else --network and --nodes")
    return named.cluster()

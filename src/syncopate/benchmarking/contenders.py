"""Contenders: what a benchmark lets take turns, and what each of them runs at a given size.

An algorithm runs with the options that suit the cluster and the size, as far as they are not asked
for. Where the cluster is known they are those with which a plan would run it, or, where no plan
would, those of :mod:`syncopate.costs.decide.options`; else those that fit the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level
from syncopate.benchmarking.mpi import MpiPeer
from syncopate.benchmarking.sweep import Sweep, parse_algorithm
from syncopate.collectives import transport
from syncopate.collectives.backend import native
from syncopate.collectives.communicator import Communicator
from syncopate.costs.decide.decisions import choose
from syncopate.costs.decide.options import best_options
from syncopate.costs.model.collective import collective_costs
from syncopate.errors import InvalidValueError
from syncopate.schedules import registry
from syncopate.schedules.conditions import conditions
from syncopate.topology import topology

Run = Callable[[torch.Tensor], None]
"""Runs a collective in place on a buffer."""


class Call(NamedTuple):
    """The call of a contender at one size.

    Attributes:
        run: the collective.
        algorithm: which algorithm that is; empty for a peer.
        options: what the algorithm is told.
    """

    run: Run
    algorithm: str = ""
    options: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Contender:
    """One of those that take turns.

    Attributes:
        name: as it is called in the benchmark.
        at: bytes of the total buffer -> what runs there; alike on all ranks.
        peer: whether it is there to compare with.
    """

    name: str
    at: Callable[[int], Call]
    peer: bool = False


@dataclass(frozen=True)
class Field:
    """The contenders of a benchmark, ours first.

    Attributes:
        contenders: at least one.
        facts: what else is to be known of them, such as the version of a peer.
    """

    contenders: tuple[Contender, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


def suitable(collective: str, hosts: Sequence[str]) -> tuple[tuple[str, ...], Cluster]:
    """Return the algorithms that suit ranks on ``hosts``, and the cluster by which they do.

    The cluster has levels, sizes and placement, and nothing measured.

    Raises:
        UnknownNameError: no such collective.
    """
    where = topology(hosts)
    levels = tuple(
        Level(name=name, size=size, latency_s=0.0, bandwidth_bytes_per_s=1e9)
        for name, size in zip(where.names, where.sizes, strict=True)
    )
    cluster = Cluster(name="bench", levels=levels, placement=where.placement, hosts=where.hosts)
    return (registry.NATIVE, *registry.candidates(collective, cluster)), cluster


@contextmanager
def line_up(
    communicator: Communicator,
    sweep: Sweep,
    hosts: Sequence[str],
    cluster: Cluster | None = None,
) -> Iterator[Field]:
    """Make the contenders of ``sweep``; every rank must call it.

    Args:
        communicator: the ranks.
        sweep: what is to be measured.
        hosts: host name of every rank.
        cluster: what the communicator was told to use, if it was.

    Yields:
        The contenders, usable until the block ends.

    Raises:
        InvalidValueError: ``"auto"`` without a cluster, or a dtype that a peer does not know.
        CalibrationError: a peer cannot be used here.
    """
    names, fitting = suitable(sweep.collective, hosts)
    if cluster is not None:
        names = (registry.AUTO, *names)
    ours = [
        _ours(getattr(communicator, sweep.collective), sweep, text, cluster, fitting)
        for text in dict.fromkeys(sweep.algorithms or names)
    ]
    with _gloo(communicator, sweep) as gloo:
        mpi = MpiPeer(communicator, sweep) if "mpi" in sweep.against else None
        runs = {"gloo": gloo, "mpi": _nothing if mpi is None else mpi.run}
        peers = [_peer(name, runs[name]) for name in dict.fromkeys(sweep.against)]
        yield Field((*ours, *peers), {} if mpi is None else {"mpi": mpi.version})
        if mpi is not None:
            mpi.close()


def _ours(
    run: Callable[..., object], sweep: Sweep, text: str, cluster: Cluster | None, fitting: Cluster
) -> Contender:
    collective = sweep.collective
    name, asked = parse_algorithm(collective, text)
    if name == registry.AUTO and cluster is None:
        rule = "left out where no cluster is given to choose by"
        raise InvalidValueError("algorithm", registry.AUTO, rule)
    root = (sweep.root,) if conditions(collective).rooted else ()

    def at(nbytes: int) -> Call:
        if name == registry.AUTO and cluster is not None:
            choice = choose(cluster, collective, nbytes)
            return Call(lambda tensor: _start(tensor, {}), choice.algorithm, choice.options)
        options = _options(cluster, fitting, collective, name, nbytes) | asked
        return Call(lambda tensor: _start(tensor, options), name, options)

    def _start(tensor: torch.Tensor, options: Mapping[str, Any]) -> None:
        run(tensor, *root, algorithm=name, options=options)

    return Contender(text, at)


def _options(
    cluster: Cluster | None, fitting: Cluster, collective: str, name: str, nbytes: int
) -> dict[str, Any]:
    if name == registry.NATIVE:
        return {}
    if cluster is None:
        return registry.fitted(collective, name, fitting)
    if name in collective_costs(cluster, collective).costs:
        named = collective_costs(cluster, collective, (name,))
        return dict(named.of(name).options(nbytes))
    return best_options(cluster, collective, name, nbytes)


def _peer(name: str, run: Run) -> Contender:
    return Contender(name, lambda nbytes: Call(run), peer=True)


@contextmanager
def _gloo(communicator: Communicator, sweep: Sweep) -> Iterator[Run]:
    """Make a Gloo group of the same ranks, if it is asked for; one rank alone needs no messages."""
    if "gloo" not in sweep.against or communicator.world_size == 1:
        yield _nothing
        return
    ranks = communicator.all_gather_object(dist.get_rank())
    group = transport.part_of_the_job(ranks, {"cpu": "gloo"}, communicator.timeout_s)
    gloo, detector = native.Native(group), communicator.detector
    guest = detector and detector.guest("bench of gloo", group, gloo.interrupt)
    try:
        with guest or nullcontext():
            yield lambda tensor: gloo.run(sweep.collective, tensor, sweep.root)
    finally:
        transport.destroy_group(group)


def _nothing(tensor: torch.Tensor) -> None:
    """Do what a collective of one rank alone does."""

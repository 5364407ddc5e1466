"""Choices: what ``algorithm="auto"`` stands for on one communicator.

[Note: one choice on all ranks] Ranks that run different algorithms wait for messages that never
come. So when a communicator is given a cluster its ranks compare what they were given, and rank 0
works out every decision (:mod:`syncopate.costs.decide.decisions`) for all of them: not even a
rounding on another processor can make them differ. From then on a choice is a look-up, without
communication.

[Note: prices are loaded late] Only ``"auto"`` needs prices, and with them most of the
pure rooms. So they are loaded by the first communicator that is given a cluster.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives.health.blame import name_ranks
from syncopate.collectives.health.detector import FailureDetector
from syncopate.errors import CollectiveError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.schedules.registry import AUTO, collectives

if TYPE_CHECKING:
    from syncopate.costs.decide.decisions import Decision

Tables = Mapping[str, Sequence["Decision"]]
"""Collective -> its decisions by ascending size."""

_DIGEST_BYTES = 32
_NO_CLUSTER = (
    "a registered algorithm or 'native' while the communicator knows no cluster; call "
    "use_cluster(syncopate.calibrate(communicator)), or load what `syncopate calibrate` wrote"
)


class Ranks(Protocol):
    """What an agreement needs of a communicator."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def detector(self) -> FailureDetector | None:
        """Names slow links; None for a rank alone."""

    def broadcast_object(self, obj: Any) -> Any:
        """Return rank 0's object on every rank."""

    def all_gather(self, tensor: torch.Tensor, *, algorithm: str) -> object:
        """Gather every rank's shard of ``tensor`` in place."""


class Choices:
    """Decides by collective and size.

    Args:
        tables: the decisions; the same on every rank. None where no cluster is known.
    """

    def __init__(self, tables: Tables | None = None) -> None:
        self._tables = tables

    def resolve(self, recipe: Recipe, nbytes: int) -> Recipe:
        """Return ``recipe``; with algorithm and options filled in where it says ``"auto"``.

        Raises:
            InvalidValueError: it says ``"auto"``, and no cluster is known.
            UnknownNameError: it says so and brings options of its own.
        """
        if recipe.algorithm != AUTO:
            return recipe
        if self._tables is None:
            raise InvalidValueError("algorithm", AUTO, _NO_CLUSTER)
        if recipe.options:
            scope = f"{recipe.collective} ({AUTO})"
            raise UnknownNameError("option", next(iter(recipe.options)), ("none",), scope)
        from syncopate.costs.decide.decisions import find  # noqa: PLC0415

        table = self._tables[recipe.collective]
        decision = table[find(table, nbytes)]
        return replace(decision.recipe, root=recipe.root, channel=recipe.channel)


def agree(communicator: Ranks, cluster: Cluster, device: torch.device) -> Choices:
    """Return the choices for ``cluster``; every rank calls it. See [Note: one choice on all ranks].

    Args:
        communicator: the ranks.
        cluster: what this rank was given.
        device: where small tensors of the communicator must live.

    Raises:
        CollectiveError: the ranks were given different clusters; names those that differ.
        InvalidValueError: it is no cluster, or one of another number of ranks; on every rank.
    """
    mine = cluster.to_json() if isinstance(cluster, Cluster) else repr(type(cluster)).encode()
    _require_same(communicator, hashlib.sha256(mine).digest(), device)
    if not isinstance(cluster, Cluster):
        raise InvalidValueError("cluster", type(cluster).__name__, "a syncopate.Cluster")
    if cluster.world_size != communicator.world_size:
        raise InvalidValueError(
            f"world size of the cluster {cluster.name!r}",
            cluster.world_size,
            f"that of the communicator, {communicator.world_size}; calibrate these ranks",
        )
    # [Note: prices are loaded late]
    from syncopate.costs.decide.decisions import decisions  # noqa: PLC0415

    answer: Tables | str = ""
    if communicator.rank == 0:
        try:
            answer = {name: decisions(cluster, name) for name in collectives()}
        except SyncopateError as error:  # the other ranks are waiting for an answer
            answer = str(error)
    answer = communicator.broadcast_object(answer)
    if isinstance(answer, str):
        raise InvalidValueError("cluster", cluster.name, f"one to decide by: {answer}")
    if communicator.detector is not None:
        communicator.detector.expect(cluster)
    return Choices(answer)


def _require_same(communicator: Ranks, digest: bytes, device: torch.device) -> None:
    size, rank = communicator.world_size, communicator.rank
    rows = torch.zeros(size, _DIGEST_BYTES, dtype=torch.uint8)
    rows[rank] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    rows = rows.to(device)
    # A schedule, whose messages meet no others: a rank that was given no cluster, and goes on to
    # something else, is found out within a second or two.
    communicator.all_gather(rows, algorithm="recursive")
    digests = [bytes(row) for row in rows.tolist()]
    usual, _ = Counter(digests).most_common(1)[0]
    different = [rank for rank, other in enumerate(digests) if other != usual]
    if different:
        raise CollectiveError(
            "use_cluster",
            f"{name_ranks(different)} {'was' if len(different) == 1 else 'were'} given another "
            "cluster than the other ranks; give all of them the same file, or rank 0's by "
            "communicator.broadcast_object(cluster)",
            different,
        )

"""FSDP2: all-gathers and reduce-scatters of ``fully_shard`` over our links, with any backend.

``fully_shard`` lets each of its modules have two calls of the user's own, one for the all-gather of
its weights and one for the reduce-scatter of its gradients (``set_custom_all_gather``,
``set_custom_reduce_scatter``). These go to a communicator over the same ranks, with a channel for
each of the two.

[Note: background] torch takes a work from an all-gather, and waits for it before the weights are
used. On a CPU it has no streams, so its own all-gathers of the next module end before this one
computes. Ours run in the background, beside it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.c10d.collectives import Planned, Planner
from syncopate.c10d.reductions import Reduction
from syncopate.c10d.rows import Rows
from syncopate.c10d.units import wrap
from syncopate.c10d.works import GroupError, Submitted, naming
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.shards import Form
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.recipe import Recipe

_GATHERS, _SCATTERS = 0, 1


class Links:
    """The communicators of a model under ``fully_shard``, one for each group of ranks.

    Made by :func:`fsdp2`. A communicator is made at the first collective of its group, which all
    ranks of the group reach together.

    Args:
        cluster: what algorithms are chosen by; None to go by sizes.
    """

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self._found: dict[str, tuple[Communicator, Planner]] = {}
        self._making = threading.Lock()

    def of(self, group: dist.ProcessGroup) -> tuple[Communicator, Planner]:
        """Return the communicator over the ranks of ``group``, and what chooses algorithms."""
        with self._making:
            found = self._found.get(group.group_name)
            if found is None:
                made = Communicator(group, channels=2, cluster=self._cluster)
                found = made, Planner(made, by_cluster=self._cluster is not None)
                self._found[group.group_name] = found
            return found

    def close(self) -> None:
        """Finish what was submitted and close all connections; before the groups are destroyed."""
        with self._making:
            for communicator, _ in self._found.values():
                communicator.close()
            self._found.clear()


class _Collective:
    """What torch asks of both: memory for their buffers.

    Args:
        links: what carries them.
        recipe: how, as a plan says; None to go by the size, or by the cluster.
    """

    def __init__(self, links: Links, recipe: Recipe | None = None) -> None:
        self._links = links
        self._recipe = recipe

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for a buffer of ``size`` elements."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Collective):
    """The all-gather of a module's weights; see [Note: background]."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Submitted:
        """Start to fill ``output_tensor`` with the ranks' ``input_tensor``, one after the other.

        Args:
            output_tensor: shape (p * n,), contiguous.
            input_tensor: shape (n,); it may be this rank's part of the other.
            group: the ranks.
            async_op: of no consequence: what is returned is waited for.

        Raises:
            GroupError: it failed; also when it is waited for.
        """
        communicator, planner = self._links.of(group)
        whole, own = Rows("all_gather", [output_tensor]), Rows("all_gather", [input_tensor])
        begin = communicator.rank * own.numel
        row, mine = whole.room(), own.take()

        def fill() -> None:
            place = row[begin : begin + own.numel]
            if place.data_ptr() != mine.data_ptr():
                place.copy_(mine)

        recipe = self._recipe or planner.planned("all_gather", whole.nbytes).recipe
        with naming(_named):
            handle = communicator.run(
                replace(recipe, channel=_GATHERS), row, before=fill, async_op=True
            )
        return Submitted(handle, [output_tensor], _named)


class ReduceScatter(_Collective):
    """The reduce-scatter of a module's gradients."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce ``input_tensor`` over the ranks, and leave this rank's part in ``output_tensor``.

        Args:
            output_tensor: shape (n,).
            input_tensor: shape (p * n,), contiguous. It is worked on in place, and undefined
                afterwards: ``fully_shard`` makes it for this, and does not read it again.
            group: the ranks.
            op: torch's reduction.
            async_op: of no consequence: it is over on return.

        Raises:
            GroupError: it failed.
        """
        communicator, planner = self._links.of(group)
        given, own = Rows("reduce_scatter", [input_tensor]), Rows("reduce_scatter", [output_tensor])
        reduction = Reduction("reduce_scatter", op, given.dtype, communicator.world_size)
        form = Form(reduction=reduction.name)
        recipe = self._recipe or planner.planned("reduce_scatter", given.nbytes).recipe
        planned = Planned(replace(recipe, channel=_SCATTERS), form)
        row = reduction.before(given.take())
        label = f"{planned.recipe.label}{reduction.label}, {given.shape}"
        with naming(_named):
            communicator.perform(label, lambda runner: planned.run(runner, row), channel=_SCATTERS)
        begin = communicator.rank * own.numel
        share = row[begin : begin + own.numel]
        reduction.after(share)
        own.put(share)


def fsdp2(
    model: nn.Module,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    cluster: Cluster | None = None,
    **how: Any,
) -> Links:
    """Let what ``fully_shard`` gathers and reduces of ``model`` travel over our links.

    Call it once, before the first forward, on every rank. Without a plan ``fully_shard`` was
    applied to the model's modules before. With one it is applied here: to the modules of each unit
    together, then to the model, with the prefetching that the plan says. The numbers are torch's:
    equal to Gloo's bit by bit on two ranks, and but for the order of additions on more.

    Args:
        model: a module that ``fully_shard`` was applied to, or that has such ones; with a plan one
            that it was not applied to. On CPUs. A plan is applied on other devices too, where
            torch's own collectives carry it.
        plan: of the ``fsdp`` exchange, or its file.
        cluster: what algorithms are chosen by, the same on all ranks; they go by the sizes alone
            when it is left out. A plan names them.
        how: with a plan, other arguments of ``fully_shard``: ``mesh``, ``mp_policy``,
            ``offload_policy``.

    Returns:
        The links, to be closed before the process groups are destroyed.

    Raises:
        InvalidValueError: no module of the model is under ``fully_shard``, or with a plan some is;
            a weight is not on a CPU, without a plan; an argument that cannot be.
        PlanError: the plan is for another model or number of ranks.
        ArtifactError: its file cannot be read.

    Example:
        >>> import syncopate  # doctest: +SKIP
        >>> for layer in model.layers:  # doctest: +SKIP
        ...     fully_shard(layer)
        >>> fully_shard(model)  # doctest: +SKIP
        >>> links = syncopate.fsdp2(model)  # doctest: +SKIP

        With a plan:

        >>> links = syncopate.fsdp2(model, plan="plan.json")  # doctest: +SKIP
    """
    devices = {weight.device.type for weight in model.parameters()} - {"cpu", "meta"}
    links = Links(cluster)
    if plan is not None:
        for unit in wrap(model, _read(plan), how):
            if not devices:
                unit.module.set_custom_all_gather(AllGather(links, unit.bucket.pull))
                unit.module.set_custom_reduce_scatter(ReduceScatter(links, unit.bucket.push))
        return links
    for name, value in how.items():
        raise InvalidValueError(name, value, "left out without a plan")
    modules: list[Any] = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        rule = "one with modules under torch's fully_shard: apply it first"
        raise InvalidValueError("model", type(model).__name__, rule)
    if devices:
        rule = "on a CPU: on other devices torch's own collectives overlap already"
        raise InvalidValueError("model", f"with weights on {', '.join(sorted(devices))}", rule)
    gather, scatter = AllGather(links), ReduceScatter(links)
    for module in modules:
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(scatter)
    return links


def _read(plan: object) -> Plan:
    if isinstance(plan, str | os.PathLike):
        return Plan.load(plan)
    if not isinstance(plan, Plan):
        raise InvalidValueError("plan", plan, "a syncopate.Plan, or its file")
    return plan


def _named(error: CollectiveError) -> GroupError:
    return GroupError(error.collective, error.reason, error.ranks)

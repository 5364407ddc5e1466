"""Traffic: a plan's messages of one iteration, priced, and what they wait for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import (
    EXCHANGES,
    SHARDED,
    Bucket,
    Plan,
    joined,
    pulled_in,
    require_all_parts,
)
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.costs.model.functions import Costs, Envelope, startup_part_s
from syncopate.costs.model.training import on_the_wire, plan_costs
from syncopate.errors import PlanError, UnknownNameError
from syncopate.protocol.limits import Limits
from syncopate.recipe import ROOTED, SERVERS, Recipe
from syncopate.schedules.conditions import conditions
from syncopate.simulation.fluid import Collective
from syncopate.simulation.shards import Part, Shards
from syncopate.units import dtype_bytes

_BOTH = 2
"""Ranks of which all bytes of a rooted collective go to one."""

_SHARDS = EXCHANGES[SHARDED].push

MOST_PARTS = 4
"""In how many parts a bucket that servers keep is played at most.

Chosen by holding predictions with 1 to 16 against what was measured: more make planning slower, and
the largest error no smaller."""


class Pull(NamedTuple):
    """How the weights of one bucket are pulled.

    Attributes:
        needed_s: the progress of forward at which computation waits for them.
        duration_s: how long it takes on an otherwise idle machine.
        startup_s: the part of it that does not share the link.
        channel: which channel carries it.
        parts: in how many parts it follows its push, each when the same part has been pushed.
        update_s: the update of what it brings, where that is left to forward.
        link: which link its bytes share, as a collective's.
    """

    needed_s: float
    duration_s: float
    startup_s: float = 0.0
    channel: int = 0
    parts: int = 1
    update_s: float = 0.0
    link: int = 0


class Gathers(NamedTuple):
    """How weights that lie in shards are gathered and their gradients reduced.

    Attributes:
        again: the buckets that are gathered again for backward, in its order.
        prefetch: of how many units ahead the weights are asked for; >= 1.
        behind: how many reduce-scatters may be under way when backward begins with the next unit.
        across: of each bucket, the all-reduce between groups that hold all weights each; none where
            all ranks share them.
    """

    again: tuple[int, ...]
    prefetch: int
    behind: int
    across: tuple[Collective, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of one iteration, priced.

    Attributes:
        pushes: in launch order; ``ready_s`` counts from the start of the forward pass.
        pulls: of the same buckets in the same order, None for one whose weights every rank updates;
            none at all where that is so of every bucket.
        update_s: the update, on the rank that takes longest.
        pull_order: the plan's; see :class:`~syncopate.artifacts.plan.Plan`.
        behind: how many of the last pulls go behind the pushes of the next backward.
        served: whether servers update the weights.
        deferred: whether what is pulled is updated in forward; :attr:`update_s` is the rest then.
        gathers: how the pulls of units are gathered; None where pulls bring updated weights.
    """

    pushes: tuple[Collective, ...]
    pulls: tuple[Pull | None, ...] = ()
    update_s: float = 0.0
    pull_order: tuple[int, ...] = ()
    behind: int = 0
    served: bool = False
    deferred: bool = False
    gathers: Gathers | None = None

    @property
    def pulled(self) -> tuple[int, ...]:
        """The buckets that are pulled, in that order."""
        order = pulled_in(self.pull_order, len(self.pulls)) if self.pulls else ()
        return tuple(bucket for bucket in order if self.pulls[bucket] is not None)

    def needed_s(self, bucket: int) -> float:
        """Return when forward needs the weights of a bucket that is pulled."""
        pull = self.pulls[bucket]
        assert pull is not None
        return pull.needed_s


def traffic_of(
    workload: Workload,
    buckets: Sequence[Bucket],
    costs: Costs,
    order: tuple[int, ...] = (),
    *,
    world_size: int = 1,
    pull_order: tuple[int, ...] = (),
    cluster: Cluster | None = None,
    deferred: bool = False,
) -> Traffic:
    """Return the messages of a plan's buckets.

    Args:
        workload: what is computed and made ready.
        buckets: in launch order; together every gradient of the workload exactly once.
        costs: by collective, seconds of each algorithm the buckets name.
        order: the plan's, of the ranks.
        world_size: ranks that share the update where each updates a shard.
        pull_order: the plan's.
        cluster: the machines, for the price of unequal shards; without it all count as equal.
        deferred: whether what is pulled is updated in forward.

    Raises:
        PlanError: a gradient of the workload is in no bucket, or a bucket names another model's.
        UnknownNameError, InvalidValueError: a bucket's recipe has no cost.
    """
    _require_same_gradients(workload, buckets)
    by_name = {tensor.name: index for index, tensor in enumerate(workload.tensors)}
    ready, needed = workload.ready_s, workload.needed_s
    pushes: list[Collective] = []
    pulls: list[Pull | None] = []
    shards = None
    if not deferred and workload.whole and any(b.push.collective == _SHARDS for b in buckets):
        shards = Shards(workload, chain(*(b.tensors for b in buckets if b.pull)), world_size)
    price = partial(priced, costs, order, cluster)
    of_byte_s = workload.update_s / (workload.nbytes or 1) if deferred else 0.0
    for bucket in buckets:
        push, pull = bucket.push, bucket.pull
        indices = [by_name[name] for name in bucket.tensors]
        if shards is not None and pull is not None:
            parts = shards.parts(bucket.tensors, bucket.elements)
        else:
            parts = _equal_parts(bucket, [workload.tensors[index] for index in indices])
        ready_s = max(ready[i] for i in indices)
        link = link_of(push.collective, push.root, world_size)
        pushes.append(Collective(ready_s, *price(push, parts), push.channel, link=link))
        if pull is None:
            pulls.append(None)
            continue
        needed_s, lasts_s = min(needed[i] for i in indices), bucket.nbytes * of_byte_s
        count = parts_at_servers(bucket.nbytes, pull.options.get(SERVERS))
        link = link_of(pull.collective, pull.root, world_size)
        pulls.append(Pull(needed_s, *price(pull, parts), pull.channel, count, lasts_s, link))
    share = shards.largest_part if shards else _update_part(buckets, world_size)
    if deferred:
        share = sum(one.nbytes for one in buckets if one.pull is None) / (workload.nbytes or 1)
    there, update_s = tuple(pulls) if any(pulls) else (), workload.update_s * share
    served = SERVERS in buckets[0].push.options
    return Traffic(tuple(pushes), there, update_s, pull_order, served=served, deferred=deferred)


def _require_same_gradients(workload: Workload, buckets: Sequence[Bucket]) -> None:
    numels = {tensor.name: tensor.numel for tensor in workload.tensors}
    held = [name for places in joined(buckets) for name in buckets[places[0]].tensors]
    if len(held) != len(numels) or set(held) != set(numels):
        wrong = sorted(set(held) ^ set(numels))
        wrong = wrong or sorted(name for name, times in Counter(held).items() if times > 1)
        raise PlanError(
            f"the buckets and the workload {workload.model!r} do not hold the same gradients, "
            f"each once; at fault: {', '.join(wrong[:3])}. Profile this model and plan again"
        )
    require_all_parts(buckets, numels)


def plan_traffic(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None, share: float
) -> Traffic:
    """Return the messages of a plan without units; errors are those of :func:`traffic_of`.

    Args:
        workload: the model's gradients and times.
        plan: of any exchange but ``fsdp``.
        cluster: the machines, as many ranks as the plan is for.
        costs: by collective and bytes on the wire; None for those of the cluster in training.
        share: of the bytes of gradients, what goes on the wire.
    """
    costs = costs or plan_costs(
        cluster, workload.nbytes, plan, message_sizes(workload, plan, share)
    )
    found = traffic_of(
        workload,
        plan.buckets,
        on_the_wire(costs, share, plan.exchange),
        plan.order,
        world_size=cluster.world_size,
        pull_order=plan.pull_order,
        cluster=cluster,
        deferred=EXCHANGES[plan.exchange].pulls_gradients,
    )
    return replace(found, behind=plan.pulled_behind)


def message_sizes(workload: Workload, plan: Plan, share: float) -> dict[str, tuple[float, ...]]:
    """Return the sizes of a plan's messages on the wire by algorithm; none if weights are pulled.

    Args:
        workload: the model's gradients.
        plan: of any exchange but ``fsdp``.
        share: of the bytes of gradients, what goes on the wire.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
    """
    if any(bucket.pull is not None for bucket in plan.buckets):
        return {}
    _require_same_gradients(workload, plan.buckets)
    by_name = {tensor.name: tensor for tensor in workload.tensors}
    found: dict[str, set[float]] = {}
    for bucket in plan.buckets:
        parts = _equal_parts(bucket, [by_name[name] for name in bucket.tensors])
        sizes = {share * part.nbytes for part in parts if part.nbytes}
        found.setdefault(bucket.push.algorithm, set()).update(sizes)
    return {name: tuple(sorted(sizes)) for name, sizes in found.items()}


def _update_part(buckets: Sequence[Bucket], world_size: int) -> float:
    """Return the part of all weights that the busiest rank updates.

    All of a bucket that is not pulled; of one that is, a shard, or all of it at its root. Where
    servers update, the part of each, which is taken to last as long there as on a rank.
    """
    if (servers := buckets[0].push.options.get(SERVERS)) is not None:
        return 1.0 / int(str(servers))
    if not any(bucket.push.collective in ROOTED for bucket in buckets):
        total = sum(bucket.nbytes for bucket in buckets)
        pulled = sum(bucket.nbytes for bucket in buckets if bucket.pull is not None)
        pulled_part = pulled / total if total else float(buckets[0].pull is not None)
        return 1.0 - pulled_part + pulled_part / world_size
    by_root: Counter[int] = Counter()
    for bucket in buckets:
        by_root[bucket.push.root] += bucket.nbytes
    return max(by_root.values()) / (sum(by_root.values()) or 1)


def link_of(collective: str, root: int, ranks: int) -> int:
    """Return which link the bytes of a collective share: see [Note: shared link] in ``iteration``.

    Args:
        collective: its name.
        root: of a rooted one.
        ranks: that take part.
    """
    if ranks != _BOTH or collective not in ROOTED:
        return 0
    return root if conditions(collective).reduces else 1 - root


def parts_at_servers(nbytes: float, servers: object) -> int:
    """Return in how many slices, one after the other, a bucket is sent to each of its servers.

    No more than ``MOST_PARTS``.

    Args:
        nbytes: of the bucket.
        servers: as a recipe has them; None where there are none, and it travels as a whole.
    """
    if servers is None:
        return 1
    slices = math.ceil(nbytes / (int(str(servers)) * Limits().slice_bytes))
    return min(max(slices, 1), MOST_PARTS)


def bytes_by_dtype(tensors: Sequence[GradientTensor]) -> dict[str, int]:
    """Return the bytes of each dtype among ``tensors``."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
    return totals


def _equal_parts(bucket: Bucket, tensors: Sequence[GradientTensor]) -> list[Part]:
    """Return what travels of a bucket whose tensors may be cut anywhere: one message a dtype."""
    if bucket.elements is not None:
        start, stop = bucket.elements
        itemsize = dtype_bytes(tensors[0].dtype)
        return [Part((stop - start) * itemsize, itemsize)]
    return [Part(size, dtype_bytes(dtype)) for dtype, size in bytes_by_dtype(tensors).items()]


def priced(
    costs: Costs,
    order: tuple[int, ...],
    cluster: Cluster | None,
    recipe: Recipe,
    parts: Sequence[Part],
) -> tuple[float, float]:
    """Return the duration of a message, and the part of it that does not share the link.

    Args:
        costs: by collective.
        order: the plan's order of the ranks; recipes may name one of their own.
        cluster: the machines; None where all shards count as equal.
        recipe: how the message travels.
        parts: of it, one collective each.

    Raises:
        UnknownNameError: there is no cost for the recipe's collective or algorithm, or it has no
            such option.
    """
    if recipe.collective not in costs:
        raise UnknownNameError("collective", recipe.collective, costs, "the costs of this cluster")
    envelope: Envelope = costs[recipe.collective]
    recipe = recipe.in_order(order)
    cost = envelope.of(recipe.algorithm).fixed(recipe.options)
    duration_s = sum(part.seconds(recipe, cost, cluster) for part in parts)
    return duration_s, startup_part_s(cost, [part.nbytes for part in parts], duration_s)

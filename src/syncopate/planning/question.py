"""Question: what a policy is asked, and the plan in the making that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import structs

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import (
    EXCHANGES,
    ROOTED,
    SHARDED,
    Bucket,
    Plan,
    Prediction,
    exchange_of,
    pulled_in,
)
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.bound import plan_bound_s, require_possible
from syncopate.costs.model.functions import Costs, Envelope
from syncopate.costs.model.training import (
    beside_s,
    on_the_wire,
    plan_costs,
    weight_sync_s,
)
from syncopate.planning.parts import WHOLE, elements_of, messages
from syncopate.planning.problem import Partition, Problem, Pulls, pull_channels, pull_order
from syncopate.recipe import NATIVE, ORDER, SERVERS, Recipe, wire_share
from syncopate.simulation.delay import predict_delayed
from syncopate.simulation.fsdp.predict import predict_units
from syncopate.simulation.iteration import play_traffic
from syncopate.simulation.local_sgd import predict_averaged
from syncopate.simulation.traffic import bytes_by_dtype, message_sizes, traffic_of


@dataclass(frozen=True)
class Draft:
    """A plan in the making: what a policy returns.

    A policy decides the recipe of every bucket: collective, algorithm and its options, channel.

    Attributes:
        buckets: in launch order.
        channels: how many they are on.
        order: the ranks in the order that all schedules follow; empty for that of their numbers.
        pull_order: the buckets, by their indices, in the order in which their weights are pulled;
            empty for the last one first.
        reason: why this one, in a line; empty where there was nothing to choose.
        exchange: whose collectives these are; empty where the buckets tell.
    """

    buckets: tuple[Bucket, ...]
    channels: int
    order: tuple[int, ...] = ()
    pull_order: tuple[int, ...] = ()
    reason: str = ""
    exchange: str = ""


@dataclass(frozen=True)
class Question:
    """The choices that a policy has.

    Attributes:
        workload: the model's gradients and times.
        cluster: the machines.
        costs: of each exchange that may be chosen; policies that choose none take the first. They
            are by the bytes of gradients and weights, however many go on the wire.
        channels: the numbers of channels that may be chosen, in the same way.
        share: of the bytes of gradients, what goes on the wire.
    """

    workload: Workload
    cluster: Cluster
    costs: Mapping[str, Costs]
    channels: tuple[int, ...]
    share: float = 1.0

    @property
    def exchange(self) -> str:
        """The exchange of policies that choose none."""
        return next(iter(self.costs))

    def only(self, exchange: str, channels: int) -> Question:
        """Return the question with nothing to choose but buckets."""
        return replace(self, costs={exchange: self.costs[exchange]}, channels=(channels,))

    @cached_property
    def problem(self) -> Problem:
        """The problem of cutting gradients into buckets, whose shards count as equal there."""
        workload, costs = self.workload, self.costs[self.exchange]
        # Where ranks own shards, cut and whole tensors travel apart.
        whole = set(workload.whole) if self.exchange == SHARDED else set()
        kinds = [(tensor.dtype, i in whole) for i, tensor in enumerate(workload.tensors)]
        rows = list(dict.fromkeys(kinds))
        nbytes = np.zeros((len(rows), len(kinds)))
        for index, tensor in enumerate(workload.tensors):
            nbytes[rows.index(kinds[index]), index] = tensor.nbytes
        kind, pulls = EXCHANGES[self.exchange], None
        if kind.pull:
            ranks, rooted = self.cluster.world_size, self.exchange == ROOTED
            if kind.asks_servers:
                ranks = int(str(costs[kind.pull].bucket([1.0]).options[SERVERS]))
            replicated = costs.get(kind.replicated)
            pulls = Pulls(
                costs[kind.pull],
                workload.needed_s,
                ranks,
                rooted,
                replicated,
                served=kind.asks_servers,
                deferred=kind.pulls_gradients,
            )
        return Problem(workload.ready_s, nbytes, costs[kind.push], pulls=pulls)

    def draft(self, partition: Partition, grain: float = WHOLE, replicated: int = 0) -> Draft:
        """Return the plan of a partition: the cheapest algorithm per bucket, channels in turn.

        Args:
            partition: where buckets end.
            grain: the most bytes that travel at once of a tensor alone in its bucket.
            replicated: buckets of the first so many gradients are updated by every rank.
        """
        problem, channels = self.problem, self.channels[0]
        sent, roots = messages(problem, partition, grain), problem.roots(partition)
        kind, costs = EXCHANGES[self.exchange], self.costs[self.exchange]
        turns: Mapping[int, int] = {}
        pulled: tuple[int, ...] = ()
        if problem.pulls is not None:
            needed_s = problem.pulls.needed_s
            pulled = pull_order([min(needed_s[one.start : one.stop]) for one in sent])
            turns = pull_channels([i for i in pulled if sent[i].stop > replicated], channels)
        buckets = []
        for index, message in enumerate(sent):
            tensors = self.workload.tensors[message.start : message.stop]
            elements = elements_of(tensors[0].numel, message)
            sizes = problem.carried(message.start, message.stop, elements, tensors[0].numel)
            root, pushed, pull = roots[message.bucket], kind.push, None
            if message.stop <= replicated:
                pushed = kind.replicated
            elif kind.pull:
                pull = recipe_of(kind.pull, costs[kind.pull], sizes, root, turns[index])
            buckets.append(
                Bucket(
                    tensors=tuple(tensor.name for tensor in tensors),
                    nbytes=round(sum(sizes)),
                    push=recipe_of(pushed, costs[pushed], sizes, root, index % channels),
                    pull=pull,
                    elements=elements,
                )
            )
        # Only what differs from the usual is written down.
        if pulled == pulled_in((), len(pulled)):
            pulled = ()
        found, order = _with_one_order(buckets)
        return Draft(found, channels, order, pulled, exchange=self.exchange)

    def predict(self, draft: Draft) -> Prediction:
        """Return what a draft is expected to cost.

        Raises:
            PlanError: the buckets do not hold the workload's gradients.
            UnknownNameError: a bucket's algorithm has no cost on this cluster.
            PredictionError: the costs promise an iteration below the physical bound.
        """
        workload, cluster, buckets = self.workload, self.cluster, draft.buckets
        exchange = draft.exchange or exchange_of(buckets, self.costs)
        kind = EXCHANGES[exchange]
        traffic = traffic_of(
            workload,
            buckets,
            self.costs[exchange],
            draft.order,
            world_size=cluster.world_size,
            pull_order=draft.pull_order,
            cluster=cluster,
            deferred=kind.pulls_gradients,
        )
        played = play_traffic(workload, traffic, workload.interference_on(cluster))
        beside_nbytes = workload.beside_nbytes(cluster.world_size)
        bound_s = plan_bound_s(
            cluster,
            buckets,
            played.compute_s,
            self.share,
            beside_nbytes,
            pull_share=self.share if kind.pulls_gradients else 1.0,
            costs=self.costs[exchange],
        )
        more_s = beside_s(cluster, workload, exchange, self.share)
        played_s = played.iteration_s + more_s
        require_possible(played_s, bound_s, f"a plan for {workload.model!r}")
        iteration_s = max(played_s + workload.interference_on(cluster).unexplained_s, bound_s)
        return Prediction(
            iteration_s=iteration_s,
            compute_s=played.compute_s,
            communication_s=played.communication_s + more_s,
            exposed_s=max(iteration_s - played.compute_s, 0.0),
            bound_s=bound_s,
        )


def question_of(
    workload: Workload,
    cluster: Cluster,
    costs: Mapping[str, Costs],
    *,
    channels: tuple[int, ...] = (1,),
    wire_dtype: str = "",
) -> Question:
    """Return a question with costs by the bytes on the wire; see :class:`Question`.

    Raises:
        UnknownNameError: gradients cannot be narrowed to ``wire_dtype``.
    """
    share = wire_share(wire_dtype, bytes_by_dtype(workload.tensors))
    wired = {name: on_the_wire(found, share, name) for name, found in costs.items()}
    return Question(workload, cluster, wired, channels, share)


def predict(
    workload: Workload, plan: Plan, cluster: Cluster, costs: Costs | None = None
) -> Prediction:
    """Return what a plan is expected to cost in one iteration.

    With a delay that is the mean over its period. Of an average or a broadcast of the weights every
    so many iterations, each bears an equal part. Flags and buffers, which travel beside gradients,
    count where the workload knows the model's buffers.

    Args:
        workload: what is computed and made ready.
        plan: whose own prediction is not looked at.
        cluster: the machines, as many ranks as the plan is for.
        costs: by collective and bytes on the wire; by default those of the cluster in training.

    Raises:
        PlanError: the buckets do not hold the workload's gradients.
        UnknownNameError: a bucket's algorithm has no cost on this cluster.
        PredictionError: the costs promise an iteration below the physical bound.
    """
    if plan.delay is not None:
        return predict_delayed(workload, plan, cluster, costs)
    if plan.local_sgd is not None:
        return predict_averaged(workload, plan, cluster, costs)
    if plan.sharding is not None:
        return predict_units(workload, plan, cluster, costs)
    share = wire_share(plan.wire_dtype, bytes_by_dtype(workload.tensors))
    sizes = message_sizes(workload, plan, share)
    named = costs or plan_costs(cluster, workload.nbytes, plan, sizes)
    question = question_of(workload, cluster, {plan.exchange: named}, wire_dtype=plan.wire_dtype)
    draft = Draft(plan.buckets, plan.channels, plan.order, plan.pull_order, exchange=plan.exchange)
    found = question.predict(draft)
    if not plan.weight_sync_period:
        return found
    mean_s = weight_sync_s(cluster, workload.nbytes, costs) / plan.weight_sync_period
    together: Prediction = structs.replace(
        found,
        iteration_s=found.iteration_s + mean_s,
        communication_s=found.communication_s + mean_s,
        exposed_s=found.exposed_s + mean_s,
    )
    return together


def recipe_of(
    collective: str, costs: Envelope, sizes: Sequence[float], root: int = 0, channel: int = 0
) -> Recipe:
    """Return how a message travels at the least cost, if its shards are equal.

    Args:
        collective: what carries it.
        costs: of the collective.
        sizes: bytes of each dtype.
        root: of a rooted collective.
        channel: which it takes.
    """
    algorithm, options, _ = costs.bucket(sizes)
    return Recipe(collective, algorithm, root, dict(options), channel)


def _with_one_order(
    buckets: Sequence[Bucket],
) -> tuple[tuple[Bucket, ...], tuple[int, ...]]:
    """Take the order of the ranks, of one entry per rank, out of recipes that all follow the same.

    Returns:
        The buckets without it, and the order; empty where recipes follow none, or several.
    """
    recipes = [recipe for bucket in buckets for _, recipe in bucket.recipes]
    orders = {recipe.options.get(ORDER) for recipe in recipes if recipe.algorithm != NATIVE}
    order = orders.pop() if len(orders) == 1 else None
    if not isinstance(order, tuple):
        return tuple(buckets), ()
    bare = [
        structs.replace(bucket, **{phase: _bare(recipe) for phase, recipe in bucket.recipes})
        for bucket in buckets
    ]
    return tuple(bare), tuple(int(rank) for rank in order)


def _bare(recipe: Recipe) -> Recipe:
    """Return the recipe without its order of the ranks."""
    options = {name: value for name, value in recipe.options.items() if name != ORDER}
    changed: Recipe = structs.replace(recipe, options=options)
    return changed

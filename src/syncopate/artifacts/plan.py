"""Plan: what to communicate when, with which collective.

A plan says which gradients are merged into which bucket, the recipes by which each bucket is pushed
and pulled, the exchange and its pull period, and over how many channels. The engine executes it,
the costs price it and the simulator plays it.

[Note: exchanges] Every way of training pushes gradients, updates weights and pulls them. An
exchange says by which collectives: gradients that are all-reduced are updated everywhere, and
nothing is pulled; gradients that are reduce-scattered, or reduced to one rank, are updated where
they arrive, and the new weights are gathered or broadcast from there; gradients that are sent to
parameter servers are updated by these, and the new weights are received from them. A decoupled
all-reduce (DeAR, Zhang et al. 2023) reduce-scatters gradients during backward and gathers their
averages behind the next forward: what is pulled are gradients, and every rank updates all weights.

[Note: replicated buckets] A sharded or decoupled plan may all-reduce some of its buckets: every
rank updates their weights, and nothing is pulled. Where backward leaves the network idle and
forward does not, that carries bytes from the one to the other; the state of those buckets'
optimizer is on every rank.

[Note: units] Under ``fully_shard`` a bucket is a unit of modules whose weights lie in shards on the
ranks: its pull is their all-gather, before forward and mostly again before backward, and its push
the reduce-scatter of its gradients (:mod:`syncopate.artifacts.sharding`).

[Note: parts of a tensor] A bucket holds whole tensors, or a part of one. The parts of a tensor are
buckets one behind the other, each with recipes of its own, so that a tensor larger than a good
message travels as several, over several channels. They are ready at once, and needed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.level import require_time
from syncopate.artifacts.sharding import Sharding
from syncopate.artifacts.workload import fingerprint
from syncopate.delay import Delay, LocalSGD
from syncopate.errors import InvalidValueError, PlanError, UnknownNameError
from syncopate.recipe import Recipe, require_wire_dtype
from syncopate.shown import Row, Shown
from syncopate.units import MIB, dtype_bytes, format_count, format_seconds

ALLREDUCE, DECOUPLED, SHARDED = "allreduce", "decoupled", "sharded"
ROOTED, SERVED, FSDP = "rooted", "served", "fsdp"


class ExchangeKind(NamedTuple):
    """The collectives of an exchange; see [Note: exchanges].

    Attributes:
        push: carries gradients.
        pull: brings updated weights back; empty where every rank updates all of them.
        replicated: carries gradients of buckets whose weights every rank updates, which a plan may
            have beside the others; see [Note: replicated buckets].
        asks_servers: whether there are parameter servers, which no plan chooses by itself.
        pulls_gradients: whether what is pulled are averaged gradients, and no weights.
        gathers: whether weights lie in shards and are gathered to be used, as under
            ``fully_shard``, which trains so; see [Note: units].
    """

    push: str
    pull: str = ""
    replicated: str = ""
    asks_servers: bool = False
    pulls_gradients: bool = False
    gathers: bool = False

    @property
    def updates_whole(self) -> bool:
        """Whether every rank updates all weights and has all of the optimizer's state."""
        return not self.pull or self.pulls_gradients

    @property
    def needed(self) -> tuple[str, ...]:
        """The collectives without which it cannot be."""
        return (self.push, self.pull) if self.pull else (self.push,)


EXCHANGES: dict[str, ExchangeKind] = {
    ALLREDUCE: ExchangeKind("all_reduce"),
    DECOUPLED: ExchangeKind(
        "reduce_scatter", "all_gather", replicated="all_reduce", pulls_gradients=True
    ),
    SHARDED: ExchangeKind("reduce_scatter", "all_gather", replicated="all_reduce"),
    ROOTED: ExchangeKind("reduce", "broadcast"),
    SERVED: ExchangeKind("send", "receive", asks_servers=True),
    FSDP: ExchangeKind("reduce_scatter", "all_gather", gathers=True),
}
"""The ways of training a plan can ask for."""

SERVERLESS = tuple(n for n, kind in EXCHANGES.items() if not (kind.asks_servers or kind.gathers))
"""Those of our engine that need no other processes than the ranks."""

LIKE_DDP = tuple(name for name in SERVERLESS if EXCHANGES[name].updates_whole)
"""Those under which a program does what it does under DDP: ``distribute`` chooses among them."""


class Bucket(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Gradients that travel together.

    Attributes:
        tensors: parameter names in ready order; at least one. Tensors of several dtypes travel
            as one collective per dtype, back to back.
        nbytes: bytes of all of them.
        push: how their gradients travel.
        pull: how their updated weights come back; None where every rank updates them.
        elements: of its only tensor the first element that it holds, and one past the last, in the
            order of memory; None where it holds whole tensors. See [Note: parts of a tensor].
    """

    tensors: tuple[str, ...]
    nbytes: int
    push: Recipe
    pull: Recipe | None = None
    elements: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InvalidValueError("tensors of a bucket", self.tensors, "at least one name")
        if self.nbytes < 0:
            raise InvalidValueError("nbytes of a bucket", self.nbytes, "an integer >= 0")
        if self.elements is not None:
            if not 0 <= self.elements[0] < self.elements[1]:
                rule = "a first element >= 0 and one past a last one that is not before it"
                raise InvalidValueError("elements of a bucket", self.elements, rule)
            if len(self.tensors) > 1:
                rule = "a single name where the bucket holds a part of a tensor"
                raise InvalidValueError("tensors of a bucket", self.tensors, rule)

    @property
    def recipes(self) -> Iterator[tuple[str, Recipe]]:
        """Yield ``("push", ...)`` and, where there is one, ``("pull", ...)``."""
        yield "push", self.push
        if self.pull is not None:
            yield "pull", self.pull


def joined(buckets: Sequence[Bucket]) -> list[list[int]]:
    """Return the places of the buckets, those of the parts of one tensor together."""

    def key(place: int) -> object:
        return place if buckets[place].elements is None else buckets[place].tensors

    return [list(places) for _, places in groupby(range(len(buckets)), key)]


def exchange_of(buckets: Sequence[Bucket], among: Iterable[str] = EXCHANGES) -> str:
    """Return the first exchange ``among`` some whose collectives carry some buckets.

    Raises:
        InvalidValueError: no exchange runs these collectives.
    """
    found = {(one.push.collective, one.pull.collective if one.pull else "") for one in buckets}
    for name in among:
        kind = EXCHANGES[name]
        if (kind.push, kind.pull) in found and found <= _carriers(kind):
            return name
    known = ", ".join(f"{name} ({_words(kind)})" for name, kind in EXCHANGES.items())
    given = ", ".join(sorted(f"{push} and {pull}" if pull else push for push, pull in found))
    raise InvalidValueError("collectives of the buckets", given, f"those of one exchange: {known}")


def _carriers(kind: ExchangeKind) -> set[tuple[str, str]]:
    """Return the collectives that may push and pull a bucket of an exchange."""
    carriers = {(kind.push, kind.pull)}
    return carriers | {(kind.replicated, "")} if kind.replicated else carriers


def _words(kind: ExchangeKind) -> str:
    words = " and ".join(filter(None, (kind.push, kind.pull)))
    return f"{words}, or {kind.replicated}" if kind.replicated else words


def pulled_in(pull_order: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the buckets in the order in which they are pulled.

    Args:
        pull_order: a plan's; empty for the last one first.
        count: how many buckets there are.

    Example:
        >>> pulled_in((), 3), pulled_in((1, 2, 0), 3)
        ((2, 1, 0), (1, 2, 0))
    """
    return tuple(pull_order) or tuple(reversed(range(count)))


class Prediction(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted times of a plan in one iteration.

    Attributes:
        iteration_s: the whole iteration, start of forward to start of the next, in the mean over
            those with and without a broadcast of the weights.
        compute_s: forward, backward and update alone.
        communication_s: sum over the buckets' collectives, and the same part of that broadcast.
        exposed_s: ``iteration_s - compute_s``, what overlap did not hide.
        bound_s: the physical bound, ``max(compute, bytes on the wire / line rate)``.
        low_s: the lower end of the interval around ``iteration_s``; None: no interval is known.
        high_s: its upper end; None as well then.
    """

    iteration_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    bound_s: float
    low_s: float | None = None
    high_s: float | None = None

    def __post_init__(self) -> None:
        for what in ("iteration_s", "compute_s", "communication_s", "exposed_s", "bound_s"):
            require_time(what, getattr(self, what))
        if self.low_s is None and self.high_s is None:
            return
        if self.low_s is None or self.high_s is None:
            raise InvalidValueError("low_s and high_s", (self.low_s, self.high_s), "given together")
        require_time("high_s", self.high_s)
        if not 0 <= self.low_s <= self.iteration_s <= self.high_s:
            rule = f"an interval that holds the iteration of {self.iteration_s} s"
            raise InvalidValueError("low_s and high_s", (self.low_s, self.high_s), rule)

    @property
    def above_bound(self) -> float:
        """Distance to the physical bound: 0.05 means 5% above it."""
        return self.iteration_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0


class Plan(Shown, Artifact, frozen=True, kw_only=True):
    """A plan; see the module.

    Attributes:
        model: the workload's name, for reports.
        fingerprint: the workload's fingerprint; a plan fits no other model.
        world_size: the rank count it was made for; it fits no other.
        policy: what made it, such as ``"optimal"``.
        buckets: in launch order; together they hold every gradient exactly once.
        exchange: one of ``EXCHANGES``.
        channels: concurrent collectives.
        pull_period: pull weights every so many iterations: the delay's ``k``; 1 without one.
        weight_sync_period: broadcast rank 0's weights every so many iterations, which an exchange
            that pulls nothing can (LP, Algorithm 3); 0 for never.
        prediction: what it is expected to cost, when the planner knew the cluster.
        cluster: the cluster's name, for reports.
        order: the ranks in the order that all schedules follow, so that neighbours are near; empty
            for that of their numbers.
        wire_dtype: what float32 and float64 gradients travel as, one of ``WIRE_DTYPES``; empty for
            their own type. See ``recipe.py``, [Note: narrow gradients].
        pull_order: the buckets, by their indices, in the order in which their weights are pulled,
            those that are not pulled somewhere among them; empty for the reverse of their order,
            which is what forward needs where it uses the parameters in the reverse of the order in
            which backward leaves them.
        reason: why it was chosen, in a line, where there was a choice of exchanges.
        delay: what ranks train on between pulls, with some exchanges; None for none.
        pulled_behind: of ``sharded`` with a delay, how many of the last pulls are launched behind
            the pushes of the next backward, to arrive in the forward after it.
        local_sgd: ranks step by themselves and average weights, with ``allreduce``; None for none.
        sharding: how the weights of units are gathered, with ``fsdp``; None with the others.
    """

    KIND: ClassVar[str] = "plan"
    SCHEMA_VERSION: ClassVar[int] = 2

    model: str
    fingerprint: str
    world_size: int
    policy: str
    buckets: tuple[Bucket, ...]
    exchange: str = "allreduce"
    channels: int = 1
    pull_period: int = 1
    weight_sync_period: int = 0
    prediction: Prediction | None = None
    cluster: str = ""
    order: tuple[int, ...] = ()
    wire_dtype: str = ""
    pull_order: tuple[int, ...] = ()
    reason: str = ""
    delay: Delay | None = None
    pulled_behind: int = 0
    local_sgd: LocalSGD | None = None
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise InvalidValueError("world_size", self.world_size, "an integer >= 1")
        places = list(range(len(self.order)))
        if self.order and (len(places) != self.world_size or sorted(self.order) != places):
            rule = f"a permutation of the ranks 0..{self.world_size - 1}"
            raise InvalidValueError("order", self.order, rule)
        if self.exchange not in EXCHANGES:
            raise UnknownNameError("exchange", self.exchange, EXCHANGES)
        require_wire_dtype(self.wire_dtype)
        if self.channels < 1:
            raise InvalidValueError("channels", self.channels, "an integer >= 1")
        self._require_delay()
        pulls = EXCHANGES[self.exchange].pull
        if self.weight_sync_period < 0 or (self.weight_sync_period and pulls):
            rule = f"an integer >= 0, and 0 with the {self.exchange} exchange"
            raise InvalidValueError("weight_sync_period", self.weight_sync_period, rule)
        if not self.buckets:
            raise InvalidValueError("buckets", self.buckets, "at least one bucket")
        self._require_pull_order()
        for index, bucket in enumerate(self.buckets):
            self._require_recipes(index, bucket)
        self._require_disjoint()
        self._require_sharding()
        if EXCHANGES[self.exchange].asks_servers:
            self._require_served()

    @property
    def expected_s(self) -> float:
        """The predicted iteration; only plans that were made for a cluster have a prediction."""
        assert self.prediction is not None
        return self.prediction.iteration_s

    def summary(self) -> tuple[str, ...]:
        """Return the plan's model, cluster and prediction in words."""
        buckets = format_count(len(self.buckets), "bucket")
        title = (
            f"{self.model} on {self.world_size} ranks: {self.exchange}, {buckets} ({self.policy})"
        )
        if self.prediction is None:
            return (title,)
        found = self.prediction
        expected = f"an iteration is expected to take {format_seconds(found.iteration_s)}"
        return (title, f"{expected}; the bound is {format_seconds(found.bound_s)}")

    def rows(self) -> list[Row]:
        """Return the buckets, in launch order."""
        return [
            {
                "bucket": index,
                "tensors": len(bucket.tensors),
                "nbytes": bucket.nbytes,
                "push": bucket.push.algorithm,
                "pull": bucket.pull.algorithm if bucket.pull else None,
            }
            for index, bucket in enumerate(self.buckets)
        ]

    def _require_delay(self) -> None:
        """Refuse a delay, or local SGD, that does not go with the exchange."""
        for method in (self.delay, self.local_sgd):
            if method is not None:
                method.require_beside(self.exchange, self.weight_sync_period)
        if self.pull_period != (self.delay.k if self.delay else 1):
            rule = f"{self.delay.k}, the delay's k" if self.delay else "1 without a delay"
            raise InvalidValueError("pull_period", self.pull_period, rule)
        late = self.delay is not None and self.delay.is_late
        if late and (whole := [i for i, bucket in enumerate(self.buckets) if not bucket.pull]):
            rule = "at least one, with a delay: between pulls a rank trains on its own weights"
            raise InvalidValueError(f"pull of bucket {whole[0]}", "none", rule)

    def _require_sharding(self) -> None:
        """Refuse units without a sharding, one without units, and what units cannot have."""
        if (self.sharding is not None) != EXCHANGES[self.exchange].gathers:
            rule = f"given with the {FSDP} exchange, and only there"
            raise InvalidValueError("sharding", self.sharding, rule)
        if self.sharding is None:
            return
        self.sharding.require_beside(len(self.buckets), self.world_size)
        for what, wrong in (
            ("wire_dtype", self.wire_dtype),
            ("pull_order", self.pull_order),
            ("elements", [one.elements for one in self.buckets if one.elements is not None]),
        ):
            if wrong:
                raise InvalidValueError(what, wrong, f"left out with the {FSDP} exchange")

    def delayed(self, delay: Delay | LocalSGD | None) -> Plan:
        """Return the plan with a delay, or without any; prediction and reason are left out.

        With weights that come late every bucket is pulled: one that was all-reduced gets the
        recipes of the first bucket that is pulled.

        Raises:
            InvalidValueError: the plan is of an exchange that does not go with it.
        """
        local, delay = (delay, None) if isinstance(delay, LocalSGD) else (None, delay)
        late = delay and delay.is_late and self.exchange == SHARDED
        buckets = _all_pulled(self.buckets) if late else self.buckets
        told = {"delay": delay, "local_sgd": local, "pull_period": delay.k if delay else 1}
        new: Plan = replace(self, buckets=buckets, pulled_behind=0, prediction=None, **told)
        return replace(new, reason="")

    def _require_served(self) -> None:
        """Refuse options that servers do not have, which get each tensor as it is."""
        told = {repr(one.options) for bucket in self.buckets for _, one in bucket.recipes}
        named = {one.algorithm for bucket in self.buckets for _, one in bucket.recipes}
        parts = any(bucket.elements is not None for bucket in self.buckets)
        for what, wrong, rule in (
            ("algorithm", named != {SERVED} and sorted(named), repr(SERVED)),
            ("options", len(told) > 1 and sorted(told), "the same in every recipe"),
            ("elements", parts and "parts of tensors", "none"),
            ("channels", self.channels > 1 and self.channels, "1"),
            ("wire_dtype", self.wire_dtype, "empty"),
            ("order", self.order, "empty"),
        ):
            if wrong:
                raise InvalidValueError(what, wrong, f"{rule} with the {SERVED} exchange")

    def _require_disjoint(self) -> None:
        """Refuse a tensor in two places, and parts that do not follow one another."""
        held: set[str] = set()
        for places in joined(self.buckets):
            filled, names = 0, self.buckets[places[0]].tensors
            for place in places:
                start, stop = self.buckets[place].elements or (0, 0)
                if start != filled:
                    rule = f"one that begins at {filled}, where the parts before it end"
                    raise InvalidValueError(f"elements of bucket {place}", (start, stop), rule)
                if (self.buckets[place].pull is None) != (self.buckets[places[0]].pull is None):
                    rule = f"one exactly where bucket {places[0]} has one, of the same tensor"
                    raise InvalidValueError(f"pull of bucket {place}", names[-1], rule)
                filled = stop
            for name in names:
                if name in held:
                    rule = "disjoint; this tensor is in two places"
                    raise InvalidValueError("buckets", name, rule)
                held.add(name)

    def _require_pull_order(self) -> None:
        """Refuse an order in which some bucket is not pulled, or is where nothing is."""
        slack = self.exchange == SHARDED and self.delay is not None and self.delay.has_slack
        if not 0 <= self.pulled_behind <= slack * len(self.buckets):
            rule = "0, or with sharded, k > 1 and a local rule up to the number of buckets"
            raise InvalidValueError("pulled_behind", self.pulled_behind, rule)
        if not self.pull_order:
            return
        if not EXCHANGES[self.exchange].pull:
            rule = f"empty with the {self.exchange} exchange, which pulls nothing"
            raise InvalidValueError("pull_order", self.pull_order, rule)
        if sorted(self.pull_order) != list(range(len(self.buckets))):
            rule = f"a permutation of the buckets 0..{len(self.buckets) - 1}"
            raise InvalidValueError("pull_order", self.pull_order, rule)

    def _require_recipes(self, index: int, bucket: Bucket) -> None:
        """Refuse a bucket whose recipes are not those of the exchange."""
        kind = EXCHANGES[self.exchange]
        given = {phase: recipe.collective for phase, recipe in bucket.recipes}
        if (given["push"], given.get("pull", "")) not in _carriers(kind):
            rule = f"{_words(kind)}, which the {self.exchange} exchange runs"
            raise InvalidValueError(f"recipes of bucket {index}", given, rule)
        for phase, recipe in bucket.recipes:
            recipe.require_sound(f"{phase} of bucket {index}")
            if recipe.channel >= self.channels:
                rule = f"in 0..{self.channels - 1}"
                raise InvalidValueError(
                    f"channel of the {phase} of bucket {index}", recipe.channel, rule
                )
            if recipe.root >= self.world_size:
                rule = f"a rank in 0..{self.world_size - 1}"
                raise InvalidValueError(f"root of the {phase} of bucket {index}", recipe.root, rule)
        roots = {recipe.root for _, recipe in bucket.recipes}
        if len(roots) > 1:
            rule = "the same for push and pull: the rank that has the sum updates"
            raise InvalidValueError(f"roots of bucket {index}", sorted(roots), rule)

    def require_ranks(self, world_size: int) -> None:
        """Refuse to run on another number of ranks.

        Raises:
            PlanError: it is another one.
        """
        if world_size != self.world_size:
            raise PlanError(
                f"this plan is for {self.world_size} ranks; {world_size} are running. "
                "Plan again for this rank count, or start the ranks it was made for"
            )

    def require_fit(self, tensors: Iterable[tuple[str, int, str]], world_size: int) -> None:
        """Refuse to run on another model or another number of ranks.

        Args:
            tensors: ``(name, numel, dtype)`` of every gradient of the model at hand.
            world_size: the ranks at hand.

        Raises:
            PlanError: names what differs.
        """
        self.require_ranks(world_size)
        here = list(tensors)
        sizes = {name: numel * dtype_bytes(dtype) for name, numel, dtype in here}
        differences = self._differences(sizes)
        if fingerprint(here) == self.fingerprint:
            # A plan edited by hand keeps its fingerprint, so that it proves nothing.
            if differences:
                raise PlanError(f"this plan is damaged: {differences}. Plan again")
            self._require_bytes(sizes, {name: numel for name, numel, _ in here})
            return
        raise PlanError(
            f"this plan is for another model ({self.model}): "
            + (differences or "the same names with other sizes or dtypes")
            + ". Profile this model and plan again"
        )

    def _differences(self, names: Iterable[str]) -> str:
        """Return which tensors the model and the plan do not share; empty where they are equal."""
        here = set(names)
        planned = {name for bucket in self.buckets for name in bucket.tensors}
        found = []
        for whose, missing in (("model", sorted(planned - here)), ("plan", sorted(here - planned))):
            if missing:
                found.append(f"the {whose} lacks {missing[0]!r} (+{len(missing) - 1} more)")
        return "; ".join(found)

    def _require_bytes(self, sizes: Mapping[str, int], numels: Mapping[str, int]) -> None:
        """Refuse a bucket whose bytes are not those of its tensors: it was planned as another."""
        require_all_parts(self.buckets, numels)
        for index, bucket in enumerate(self.buckets):
            held = sum(sizes[name] for name in bucket.tensors)
            if bucket.elements is not None:
                start, stop = bucket.elements
                held = (stop - start) * held // numels[bucket.tensors[0]]
            if held != bucket.nbytes:
                raise PlanError(
                    f"this plan is damaged: bucket {index} says {bucket.nbytes} bytes, its "
                    f"{len(bucket.tensors)} tensors have {held}. Plan again"
                )


DDP_BUCKET_BYTES = 25 * MIB
"""``bucket_cap_mb`` of DistributedDataParallel."""

DDP_FIRST_BUCKET_BYTES = 1 * MIB
"""What DistributedDataParallel fills its first bucket to."""


def plain_name(name: str) -> str:
    """Return a parameter's name without what ``torch.compile`` puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def filled(nbytes: Iterable[float], bucket_bytes: int = DDP_BUCKET_BYTES) -> tuple[int, ...]:
    """Return the ends of buckets that are filled to a size, as DistributedDataParallel fills them.

    A bucket closes with the gradient that fills it, so it may be larger, and the last one smaller.
    The first closes at 1 MiB already, so that communication starts early.

    Args:
        nbytes: of every gradient, in launch order; at least one.
        bucket_bytes: what buckets are filled to.

    Raises:
        InvalidValueError: fewer than one byte.
    """
    if bucket_bytes < 1:
        raise InvalidValueError("bucket_bytes", bucket_bytes, "an integer >= 1")
    ends: list[int] = []
    held, count = 0.0, 0
    limit = min(DDP_FIRST_BUCKET_BYTES, bucket_bytes)
    for count, size in enumerate(nbytes, start=1):
        held += size
        if held >= limit:
            ends.append(count)
            held, limit = 0.0, bucket_bytes
    return tuple(ends) if ends and ends[-1] == count else (*ends, count)


def _all_pulled(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return the buckets; one that is not pulled gets the recipes of the first that is."""
    kind = EXCHANGES[SHARDED]
    usual = Recipe(kind.push, "ring"), Recipe(kind.pull, "ring")
    push, pull = next(((one.push, one.pull) for one in buckets if one.pull), usual)

    def on(recipe: Recipe, bucket: Bucket) -> Recipe:
        return replace(recipe, channel=bucket.push.channel)

    return tuple(
        one if one.pull else replace(one, push=on(push, one), pull=on(pull, one)) for one in buckets
    )


def require_all_parts(buckets: Sequence[Bucket], numels: Mapping[str, int]) -> None:
    """Refuse parts that are not all of their tensor.

    Args:
        buckets: of a plan.
        numels: elements of each tensor.

    Raises:
        PlanError: the parts of a tensor end before it, or behind.
    """
    for places in joined(buckets):
        last = buckets[places[-1]]
        name = last.tensors[0]
        if last.elements is not None and last.elements[1] != numels[name]:
            raise PlanError(
                f"this plan is damaged: the parts of {name!r} hold {last.elements[1]} elements, "
                f"and it has {numels[name]}. Plan again"
            )

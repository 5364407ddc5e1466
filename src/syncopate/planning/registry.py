"""Registry: the one table of policies.

A new policy is one file and one row here: a function from a problem to a partition, or one from a
question to a draft, which then chooses exchange, channels and recipes as well.

A policy of one's own can also be added from outside, by :func:`register`, or by an entry point of
:data:`GROUP` in an installed package. The latter is registered when its name is used
(:mod:`syncopate.extensions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import index

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.extensions import Extensions
from syncopate.planning.policies.auto import auto
from syncopate.planning.policies.mg_wfbp import mg_wfbp
from syncopate.planning.policies.optimal import optimal
from syncopate.planning.policies.single import single
from syncopate.planning.policies.threshold import threshold
from syncopate.planning.policies.wfbp import wfbp
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.question import Draft, Question
from syncopate.planning.search.search import searched


@dataclass(frozen=True)
class Policy:
    """One row: a way of cutting gradients into buckets.

    Attributes:
        name: how users call it.
        partition: from a problem to the ends of its buckets.
        summary: one line.
        source: where it comes from.
        plans: from a question to a draft, where there is more to decide than the partition.
        chooses: whether it chooses the exchange and the number of channels by itself.
    """

    name: str
    partition: Callable[[Problem], Partition]
    summary: str
    source: str
    plans: Callable[[Question], Draft] | None = None
    chooses: bool = False

    def draft(self, question: Question) -> Draft:
        """Return this policy's answer.

        Raises:
            InvalidValueError: its buckets are not all tensors, each once.
        """
        if self.plans is not None:
            return self.plans(question)
        return question.draft(self.ends(question.problem))

    def ends(self, problem: Problem) -> Partition:
        """Return the partition.

        Raises:
            InvalidValueError: it is none of all tensors, each once.
        """
        length, found = problem.length, self.partition(problem)
        try:
            ends = tuple(map(index, found))
        except TypeError:
            ends = ()
        if not ends or ends[-1] != length or any(a >= b for a, b in pairwise((0, *ends))):
            rule = f"the increasing ends of its buckets, each > 0 and the last {length}"
            raise InvalidValueError(f"partition of policy {self.name!r}", found, rule)
        return ends


_ROWS = (
    Policy(
        "wfbp", wfbp, "one bucket per gradient, as soon as it is ready", "Poseidon; MG-WFBP II-C"
    ),
    Policy("single", single, "one bucket of everything, after backward", "SyncEASGD (SC 2017)"),
    Policy(
        "threshold",
        threshold,
        "buckets filled to a fixed size, 25 MiB by default",
        "DistributedDataParallel (VLDB 2020); Horovod",
    ),
    Policy(
        "mg-wfbp",
        mg_wfbp,
        "merge while the wait for the next gradient is shorter than a start-up; not optimal",
        "MG-WFBP Algorithm 1 (INFOCOM 2019)",
    ),
    Policy(
        "optimal",
        optimal,
        "the exact optimum by dynamic programming; where that ends, the best of played candidates",
        "this project",
        plans=lambda question: searched(question, rivals()),
    ),
    Policy(
        "auto",
        optimal,
        "the best of `optimal` for every exchange on one and two channels, and why",
        "this project",
        plans=lambda question: auto(question, rivals()),
        chooses=True,
    ),
)

GROUP = "syncopate.policies"
"""The entry points of packages that bring policies."""

POLICIES: dict[str, Policy] = {}
"""Name -> row, in the order of registration; filled by :func:`register` alone."""

_EXTENSIONS = Extensions(GROUP, Policy, lambda row: row.name, frozenset(row.name for row in _ROWS))


def register(policy: Policy) -> None:
    """Add a row to the table.

    Raises:
        InvalidValueError: the name is taken.
    """
    if policy.name in POLICIES:
        rule = f"none of those taken: {', '.join(POLICIES)}"
        raise InvalidValueError("policy name", policy.name, rule)
    POLICIES[policy.name] = policy


def rivals() -> list[Callable[[Problem], Partition]]:
    """Return the policies that give a partition alone; searches compare themselves with them."""
    return [row.ends for row in POLICIES.values() if row.plans is None]


def filled_to(bucket_bytes: int) -> Policy:
    """Return the ``threshold`` policy with another threshold.

    Raises:
        InvalidValueError: fewer than one byte; when it plans.
    """
    return replace(POLICIES["threshold"], partition=partial(threshold, bucket_bytes=bucket_bytes))


def require_policy(name: str) -> Policy:
    """Return a policy by its name; one that a package brings is registered now.

    Raises:
        UnknownNameError: no such policy; lists those there are.
        ExtensionError: a package brings it, and it cannot be used.
    """
    if name not in POLICIES:
        row = _EXTENSIONS.load(name)
        if row is None:
            names = dict.fromkeys((*POLICIES, *_EXTENSIONS.names()))
            raise UnknownNameError("policy", name, names)
        if name not in POLICIES:  # else the package has registered it by itself
            register(row)
    return POLICIES[name]


for _row in _ROWS:
    register(_row)

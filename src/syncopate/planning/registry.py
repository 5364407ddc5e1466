"""Registry: the one table of policies.

A new policy is one file with a function from a problem to a partition, and one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from syncopate.errors import UnknownNameError
from syncopate.planning.mg_wfbp import mg_wfbp
from syncopate.planning.optimal import optimal
from syncopate.planning.problem import Partition, Problem
from syncopate.planning.single import single
from syncopate.planning.threshold import threshold
from syncopate.planning.wfbp import wfbp


@dataclass(frozen=True)
class Policy:
    """One row: a way of cutting gradients into buckets.

    Attributes:
        name: how users call it.
        partition: from a problem to the ends of its buckets.
        summary: one line.
        source: where it comes from.
        searches: whether the planner goes on from its partition by playing candidates where
            overlap is not ideal or there are several channels.
    """

    name: str
    partition: Callable[[Problem], Partition]
    summary: str
    source: str
    searches: bool = False


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
        "the exact optimum by dynamic programming; best algorithm per bucket",
        "this project",
        searches=True,
    ),
)

POLICIES: dict[str, Policy] = {row.name: row for row in _ROWS}
"""Name -> row."""


def require_policy(name: str) -> Policy:
    """Return a policy by its name.

    Raises:
        UnknownNameError: no such policy; lists those there are.
    """
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]

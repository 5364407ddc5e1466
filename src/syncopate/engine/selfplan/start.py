"""Start: the first plan of a training, which an earlier run kept or which is safe.

[Note: loaded when planned]
What measures and plans takes longer to load than all else that a training needs. So it is loaded
where planning begins, before the first step: a run that starts with a kept plan does without.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

import torch

from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import cache, words
from syncopate.engine.selfplan.safe import first_plan, safely_served, safely_sharded
from syncopate.engine.selfplan.stepwise import WARMUP, Course, Stepwise
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.plan import SHARDED, Plan
from syncopate.units import format_seconds
from syncopate.workload import Workload, fingerprint

CHECKED = 8
DIFFERENT = 1.25
"""Steps on a kept plan that are compared with what it took, and the ratio that is worth a word."""


class Kept(NamedTuple):
    """What every rank needs of what an earlier run settled on.

    Attributes:
        plan: the plan that stayed.
        workload: the model as measured.
        step_s: what its steps took.
        date: when, in UTC.
    """

    plan: Plan
    workload: Workload
    step_s: float
    date: str


def start(engine: Engine, wishes: Wishes, hosts: Sequence[str]) -> None:
    """Give ``engine`` its first plan, and begin with what improves it; every rank calls it.

    Args:
        engine: not yet attached, without a plan.
        wishes: what the user asked for.
        hosts: the host name of every rank.

    Raises:
        PlanError: what was kept does not fit.
        CollectiveError: a rank is lost or late.
    """
    world_size = engine.communicator.world_size
    if engine.delay is not None and engine.communicator.rank == 0:
        words.log(words.of_delay(engine.delay))
    plan = first_plan(engine.model_name, engine.tensors, world_size)
    if engine.servers is not None:
        engine.adopt(safely_served(plan, engine.servers.store.num_servers))
        return
    if world_size == 1:
        engine.adopt(safely_sharded(plan) if engine.delay else plan)
        return
    facts = facts_of(engine, wishes, hosts) if engine.communicator.rank == 0 else {}
    if wishes.cache and _goes_on(engine, facts):
        return
    if wishes.deterministic:
        sharded = wishes.asked.exchange == SHARDED
        engine.adopt(safely_sharded(plan) if sharded else plan)
        if engine.communicator.rank == 0:
            words.log(
                "no plan is kept for this training, and a deterministic one may not depend on "
                "clocks: stays on DDP's buckets. One run without the demand measures and keeps one"
            )
        return
    engine.adopt(plan)
    # [Note: loaded when planned]
    from syncopate.engine.selfplan.course import SelfPlanner  # noqa: PLC0415

    SelfPlanner(engine, wishes, facts).start()


def _goes_on(engine: Engine, facts: dict[str, str]) -> bool:
    """Go on with what an earlier run kept for this training; say whether anything was kept."""
    communicator = engine.communicator
    settled = cache.read(facts) if communicator.rank == 0 else None
    own = settled and Kept(settled.plan, settled.workload, settled.step_s, settled.date)
    kept: Kept | None = communicator.broadcast_object(own)
    if kept is None:
        return False
    kept.plan.require_fit(engine.tensors, communicator.world_size)
    engine.adopt(kept.plan)
    engine.workload = kept.workload
    if settled is not None:
        words.log(words.of_kept(settled))
    Comparison(engine, kept).start()
    return True


class Comparison(Stepwise):
    """Says so where a kept plan takes much longer than it took.

    Args:
        engine: on the kept plan.
        kept: what it took.
    """

    def __init__(self, engine: Engine, kept: Kept) -> None:
        super().__init__(engine)
        self._kept = kept

    def start(self) -> None:
        """Begin with the engine's next step; every rank calls it."""
        self.begin(self._compare())

    def _compare(self) -> Course[None]:
        kept = self._kept
        timed = yield from self._steps(WARMUP + CHECKED)
        step_s = self._agreed(statistics.median(self._durations(timed[WARMUP:])))
        if step_s > DIFFERENT * kept.step_s:
            self._say(
                f"steps take {format_seconds(step_s)} where the kept plan took "
                f"{format_seconds(kept.step_s)} on {kept.date}; if batch or network are others "
                "now, cache=False measures again"
            )


def facts_of(engine: Engine, wishes: Wishes, hosts: Sequence[str]) -> dict[str, str]:
    """Return all that could make another plan better."""
    cluster = wishes.cluster.to_json() if wishes.cluster else b""
    return {
        "model": engine.model_name,
        "gradients": fingerprint(engine.tensors),
        "ranks": str(engine.communicator.world_size),
        "hosts": " ".join(hosts),
        "device": engine.device.type,
        "torch": str(torch.__version__),
        "syncopate": _version(),
        "policy": wishes.asked.policy or "",
        "channels": str(wishes.asked.channels or ""),
        "exchange": wishes.asked.exchange or "",
        "shardable": str(engine.shardable),
        "cluster": hashlib.sha256(cluster).hexdigest()[:16] if cluster else "",
    }


def _version() -> str:
    try:
        return metadata.version("syncopate")
    except metadata.PackageNotFoundError:
        return "unknown"

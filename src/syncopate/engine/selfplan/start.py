"""Start: the first plan of a training, which an earlier run kept or which is safe."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import torch
from msgspec.structs import replace

from syncopate.artifacts.plan import ALLREDUCE, SERVED, SHARDED
from syncopate.engine import console
from syncopate.engine.engine import Engine
from syncopate.engine.selfplan import cache, log_lines
from syncopate.engine.selfplan.contest import Contender
from syncopate.engine.selfplan.ddp_buckets import first_plan
from syncopate.engine.selfplan.phases import SelfPlanner
from syncopate.engine.selfplan.replanning.again import watch_over
from syncopate.engine.selfplan.stepwise import WARMUP, Phases, Stepwise
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.units import format_seconds

CHECKED = 8
DIFFERENT = 1.25
"""Steps on a kept plan that are compared with what it took, and the ratio that is worth a word."""


def start(engine: Engine, wishes: Wishes, hosts: Sequence[str]) -> None:
    """Let ``engine`` train by its first plan, and begin what goes along; every rank calls it.

    Args:
        engine: not yet attached, without a plan.
        wishes: what the user asked for.
        hosts: the host name of every rank.

    Raises:
        PlanError: what was kept does not fit.
        CollectiveError: a rank is lost or late.
    """
    communicator = engine.communicator
    asks, servers = _safe_exchange(engine, wishes)
    safe = first_plan(engine.model_name, engine.tensors, communicator.world_size, asks, servers)
    if engine.delay is not None and communicator.rank == 0:
        console.log(log_lines.of_delay(engine.delay))
    if engine.servers is not None and communicator.rank == 0:
        console.log(log_lines.of_servers(servers, engine.servers.store.rules.mode))
    if engine.servers is not None or communicator.world_size == 1:
        engine.adopt(safe)
        return
    facts = facts_of(engine, wishes, hosts, safe.fingerprint) if communicator.rank == 0 else {}
    kept = _kept(engine, facts) if wishes.cache else None
    engine.adopt(safe if kept is None else kept.plan)
    if kept is not None:
        Comparison(engine, wishes, kept).start()
    elif not wishes.deterministic:
        SelfPlanner(engine, wishes, facts, partial(watch_over, engine, wishes)).start()
    elif communicator.rank == 0:
        console.log(log_lines.DETERMINISTIC)


def _safe_exchange(engine: Engine, wishes: Wishes) -> tuple[str, int]:
    """Return the exchange of the safe plan, and how many servers it has.

    It is that of DDP wherever another may follow.
    """
    if engine.servers is not None:
        return SERVED, engine.servers.store.num_servers
    alone = engine.communicator.world_size == 1
    stays = engine.delay is not None if alone else wishes.deterministic
    return (SHARDED if stays and wishes.exchange == SHARDED else ALLREDUCE), 0


def _kept(engine: Engine, facts: dict[str, str]) -> cache.Settled | None:
    """Return the kept plan of an earlier run of this training, on every rank, or None."""
    communicator = engine.communicator
    own = cache.read(facts) if communicator.rank == 0 else None
    own = own and replace(own, contest=())  # no rank asks for it
    kept: cache.Settled | None = communicator.broadcast_object(own)
    if kept is not None:
        kept.plan.require_fit(engine.tensors, communicator.world_size)
    if own is not None:
        engine.recording.ran_on(own.cluster)
        console.log(log_lines.of_kept(own))
    return kept


class Comparison(Stepwise):
    """Logs a kept plan that is much slower than it was, and watches it from there."""

    def __init__(self, engine: Engine, wishes: Wishes, kept: cache.Settled) -> None:
        super().__init__(engine)
        self._wishes, self._kept = wishes, kept

    def start(self) -> None:
        """Begin with the engine's next step; every rank calls it."""
        self._engine.workload = self._kept.workload
        self.begin(self._compare())

    def _compare(self) -> Phases[None]:
        kept = self._kept
        timed = yield from self._steps(WARMUP + CHECKED)
        step_s = self._agreed(statistics.median(self._durations(timed[WARMUP:])))
        if step_s > DIFFERENT * kept.step_s:
            self._say(
                f"steps take {format_seconds(step_s)} where the kept plan took "
                f"{format_seconds(kept.step_s)} on {kept.date}; if batch or network are others "
                "now, cache=False measures again"
            )
        # With what this run takes: what it took in another says nothing of a change.
        watch_over(self._engine, self._wishes, Contender(kept.name, kept.plan, []), None)


def facts_of(
    engine: Engine, wishes: Wishes, hosts: Sequence[str], gradients: str
) -> dict[str, str]:
    """Return all facts on which the best plan depends; ``gradients`` is their fingerprint."""
    cluster = wishes.cluster.to_json() if wishes.cluster else b""
    return {
        **facts_of_job(engine.model_name, gradients, hosts, engine.device),
        "policy": wishes.policy or "",
        "channels": str(wishes.channels or ""),
        "exchange": wishes.exchange or "",
        "shardable": str(engine.shardable),
        "deferring": str(engine.defers),
        "cluster": hashlib.sha256(cluster).hexdigest()[:16] if cluster else "",
    }


def facts_of_job(
    model: str, gradients: str, hosts: Sequence[str], device: torch.device
) -> dict[str, str]:
    """Return what is the same in all trainings of a model on the same machines and versions.

    Args:
        model: its class.
        gradients: their fingerprint.
        hosts: the host name of every rank.
        device: of the parameters.
    """
    return {
        "model": model,
        "gradients": gradients,
        "ranks": str(len(hosts)),
        "hosts": " ".join(hosts),
        "device": device.type,
        "torch": str(torch.__version__),
        "syncopate": import_module("syncopate").__version__,
    }

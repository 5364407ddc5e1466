"""Cache: plans that self-planning settled on, for the next run of the same training.

A plan from the cache is installed before the first step, so the next run measures nothing and adds
its gradients in the same order from its first step on: it gets the same bits as any other run from
the same cache. One file for each training, named by a hash of everything that could make another
plan better: model, hosts, ranks, device, backend, versions and what the user asked for.

``SYNCOPATE_CACHE`` names the folder, or is ``off``; else it is ``syncopate`` in the user's cache
folder. Only rank 0 reads and writes it.
"""

from __future__ import annotations

import datetime
import glob
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.engine.selfplan.contest import Contender
from syncopate.errors import ArtifactError

VARIABLE = "SYNCOPATE_CACHE"
OFF = ("off", "0", "")

_LOGGER = logging.getLogger("syncopate")


class Settled(Artifact, frozen=True, kw_only=True):
    """The plan that self-planning chose, and the measurements behind it.

    Attributes:
        facts: what it is good for; the file's name is their hash.
        plan: the plan that stayed.
        name: which contender it was.
        step_s: what its steps took.
        ddp_step_s: what those of DDP's buckets took, measured in turns with it.
        workload: the model as measured.
        cluster: the machines as measured.
        date: when, in UTC.
        contest: all contenders, those that dropped out early included.
    """

    KIND: ClassVar[str] = "settled plan"

    facts: dict[str, str]
    plan: Plan
    name: str
    step_s: float
    ddp_step_s: float
    workload: Workload
    cluster: Cluster
    date: str
    contest: tuple[Contender, ...] = ()


def folder() -> Path | None:
    """Return where plans are kept; None where the user wants none, or has no home."""
    named = os.environ.get(VARIABLE)
    if named is not None and named.lower() in OFF:
        return None
    where = Path(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "syncopate"))
    try:
        return where.expanduser()
    except RuntimeError as error:
        _LOGGER.warning("no plan is kept in %s: %s", where, error)
        return None


def path_of(facts: Mapping[str, str]) -> Path | None:
    """Return the file of a training; None where nothing is kept."""
    where = folder()
    if where is None:
        return None
    digest = hashlib.sha256(msgspec.json.encode(dict(facts), order="sorted")).hexdigest()[:16]
    return where / f"{_stem(facts)}-{digest}.json"


def _stem(facts: Mapping[str, str]) -> str:
    return "".join(c if c.isalnum() else "-" for c in facts.get("model", "model"))[:40]


def read(facts: Mapping[str, str]) -> Settled | None:
    """Return the kept plan of a training, or None; a damaged file is named in the log."""
    path = path_of(facts)
    kept = None if path is None else _loaded(path)
    # A hash is not a proof, and files get copied.
    return kept if kept is not None and kept.facts == dict(facts) else None


def find(facts: Mapping[str, str]) -> Iterator[Settled]:
    """Yield what is kept for trainings of which ``facts`` are true, the newest first.

    Args:
        facts: some of a training's; its model among them.
    """
    where = folder()
    paths = [] if where is None else where.glob(f"{glob.escape(_stem(facts))}-*.json")
    found = [kept for path in paths if (kept := _loaded(path)) is not None]
    for kept in sorted(found, key=lambda kept: kept.date, reverse=True):
        if facts.items() <= kept.facts.items():
            yield kept


def _loaded(path: Path) -> Settled | None:
    try:
        return Settled.load(path) if path.exists() else None
    except (ArtifactError, OSError) as error:
        _LOGGER.warning("the kept plan is not used: %s", error)
        return None


def keep(
    facts: dict[str, str],
    best: Contender,
    ddp: Contender,
    measured: tuple[Workload, Cluster],
    contest: Iterable[Contender],
) -> Path | None:
    """Write the plan that stays and what it rests on; return the file, None where none is kept."""
    workload, cluster = measured
    return write(
        Settled(
            facts=facts,
            plan=best.plan,
            name=best.name,
            step_s=best.step_s,
            ddp_step_s=ddp.step_s,
            workload=workload,
            cluster=cluster,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            contest=tuple(contest),
        )
    )


def write(settled: Settled) -> Path | None:
    """Write the chosen plan and return its file; a folder that cannot be written is logged."""
    path = path_of(settled.facts)
    if path is None:
        return None
    try:
        return settled.save(path)
    except ArtifactError as error:
        _LOGGER.warning("the plan is not kept for the next run: %s", error)
        return None

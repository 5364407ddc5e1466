"""Turn: what one rank does, and tells: prepares a model, lets self-planning settle, or trains.

Every turn has processes of its own, so that peak memory is one variant's, and a variant that fails
disturbs no other. All variants begin with the same weights and see the same batches.
"""

from __future__ import annotations

import datetime
import faulthandler
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from syncopate.artifacts.artifact import Artifact
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.collectives import Communicator
from syncopate.engine.selfplan import cache
from syncopate.profiling.profile import profile
from syncopate.units import parse_rate

from . import works
from .results import Setting, Turn
from .variants import COMPARED, SELF, VARIANTS, Asked, state_bytes

PREPARE, SETTLE, TRAIN = "prepare", "settle", "train"

_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")
_MOST_STEPS = 2000
_SETTLING = 4
"""How many times as long as a turn self-planning may take: it trains some hundred steps."""

_LOST_S = 300.0
"""How long torch's own collectives wait for a rank."""


class Job(Artifact, frozen=True, kw_only=True):
    """What the ranks are to do.

    Attributes:
        what: ``"prepare"``, ``"settle"`` or ``"train"``.
        work: the model's name.
        variant: the variant's name.
        setting: of all turns.
        plan: what the variant trains by, where it is given a plan.
        calibration_s: how long to calibrate; 0 for not at all.
        limit_s: after so long a rank gives up, and says where it was; self-planning has longer.
        folder: where every rank writes what it has to tell.
    """

    KIND = "training-benchmark-job"

    what: str
    work: str
    variant: str
    setting: Setting
    folder: str
    plan: Plan | None = None
    calibration_s: float = 0.0
    limit_s: float = 600.0

    def told(self, rank: int) -> Path:
        """Return where a rank writes what it tells."""
        return Path(self.folder) / f"rank{rank}.json"

    @property
    def weights(self) -> Path:
        """Where rank 0 writes the weights of a real model, before and after its first steps."""
        return Path(self.folder) / "weights.pt"


class Told(Artifact, frozen=True, kw_only=True):
    """What one rank has to tell; what was not asked for is left out.

    Attributes:
        error: why it could not; empty where it could.
        cluster: the lab as calibrated.
        workload: the model as profiled.
        steps_s: seconds of every counted step.
        peak_bytes: the most memory its process ever held.
        state_bytes: bytes of its optimizer's state.
        digest: hash of all weights after the last step.
        busy: the share of all processors' time that was not idle in the counted steps.
        plan: what it trained by.
        settled: what self-planning kept, as far as this rank knows.
    """

    KIND = "training-benchmark-told"

    error: str = ""
    cluster: Cluster | None = None
    workload: Workload | None = None
    steps_s: tuple[float, ...] = ()
    peak_bytes: int = 0
    state_bytes: int = 0
    digest: str = ""
    busy: float | None = None
    plan: Plan | None = None
    settled: cache.Settled | None = None


def run(job: Job) -> int:
    """Be one rank of a job: join the others, do it, and tell; return the exit code."""
    limit_s = job.limit_s * (_SETTLING if job.what == SETTLE else 1)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LOST_S))
        told = perform(job)
    except Exception as error:  # a variant that fails is a result
        traceback.print_exc()
        Told(error=_sentence(error)).save(job.told(rank))
        return 1
    told.save(job.told(rank))
    dist.destroy_process_group()
    return 0


def perform(job: Job) -> Told:
    """Do the job as one rank of the process group that there is."""
    return _JOBS[job.what](job)


def collected(job: Job, told: list[Told], off: float | None) -> Turn:
    """Return a turn of what all ranks told of it."""
    assert job.what == TRAIN
    return Turn(
        steps_s=tuple(one.steps_s for one in told),
        peak_bytes=tuple(one.peak_bytes for one in told),
        state_bytes=tuple(one.state_bytes for one in told),
        digests=tuple(one.digest for one in told),
        off=off,
        busy=told[0].busy,
    )


def distance(weights: Path, reference: Path) -> float:
    """Return how far weights are from the reference's, over how far training moved those.

    Args:
        weights: file of ``(before, after)``, both tensors by parameter name.
        reference: the same of the variant that is compared with.
    """
    _, mine = torch.load(weights)
    before, theirs = torch.load(reference)
    apart = sum(float((mine[n].double() - theirs[n]).square().sum()) for n in theirs)
    moved = sum(float((before[n].double() - theirs[n]).square().sum()) for n in theirs)
    return (apart / moved) ** 0.5 if moved else float("inf")


def _sentence(error: Exception) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _made(job: Job) -> works.Trained:
    work = works.WORKS[job.work]
    setting, world_size = job.setting, dist.get_world_size()
    workload = works.replayed(work, setting.ratio, world_size, parse_rate(setting.rate))
    return works.make(
        work, workload, rank=dist.get_rank(), world_size=world_size, quick=setting.quick
    )


def _asked(job: Job, model: nn.Module) -> Asked:
    name = job.setting.optimizer or works.WORKS[job.work].optimizer
    return Asked(model, *works.OPTIMIZERS[name], job.plan)


def _prepare(job: Job) -> Told:
    """Calibrate the lab, where that is asked for, and profile the model."""
    cluster = None
    if job.calibration_s:
        with Communicator() as communicator:
            cluster = calibrate(communicator, collectives=_COLLECTIVES, budget_s=job.calibration_s)
    trained = _made(job)
    optimizer = _asked(job, trained.model).plain()
    workload = profile(trained.task, warmup=2, iterations=5, optimizer=optimizer)
    return Told(cluster=cluster, workload=workload)


def stepper(
    trained: works.Trained,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    clip: bool = False,
) -> Callable[[], float]:
    """Return one iteration as users write it; it returns its seconds.

    Args:
        trained: what computes.
        model: as the variant made it.
        optimizer: likewise.
        clip: whether it clips gradients by their norm, and a scheduler steps.
    """
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step)) if clip else None

    def step() -> float:
        start_s = time.perf_counter()
        inputs, targets = next(trained.batches)
        optimizer.zero_grad()
        trained.loss(model(inputs), targets).backward()
        if scheduler is not None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return time.perf_counter() - start_s

    return step


def _settle(job: Job) -> Told:
    """Train until self-planning has settled."""
    trained = _made(job)
    model, optimizer = VARIANTS[SELF].build(_asked(job, trained.model))
    step, engine = stepper(trained, model, optimizer, clip=job.setting.clip), model.syncopate
    steps_s = []
    while engine.planning and len(steps_s) < _MOST_STEPS:
        steps_s.append(step())
    engine.detach()
    where = cache.folder()
    kept = sorted(where.glob("*.json")) if where is not None else []
    return Told(
        steps_s=tuple(steps_s),
        plan=engine.plan,
        settled=cache.Settled.load(kept[0]) if kept else None,
    )


def _train(job: Job) -> Told:
    """Take a turn."""
    trained = _made(job)
    real = works.WORKS[job.work].real
    before = _weights(trained.model) if real and dist.get_rank() == 0 else {}
    model, optimizer = VARIANTS[job.variant].build(_asked(job, trained.model))
    step = stepper(trained, model, optimizer, clip=job.setting.clip)
    several = 1 if job.setting.quick else works.WORKS[job.work].steps
    # Not later: what is still on its way after a step must not get uncounted time.
    dist.barrier()
    warmup, counted = VARIANTS[job.variant].steps(
        job.setting.warmup * several, job.setting.iterations * several
    )
    early = min(COMPARED, warmup)
    for _ in range(early):
        step()
    after = _weights(trained.model) if before else {}
    for _ in range(warmup - early):
        step()
    spent = _processors()
    steps_s = tuple(step() for _ in range(counted))
    busy = _busy(spent, _processors())
    peak_bytes = _peak_bytes()
    engine = getattr(model, "syncopate", None)
    # A read of a weight gets it up to date, or is refused.
    with engine.global_weights() if engine is not None else nullcontext():
        digest = _digest(trained.model)
    told = Told(
        steps_s=steps_s,
        peak_bytes=peak_bytes,
        state_bytes=state_bytes(optimizer),
        digest=digest,
        busy=busy,
        plan=engine.plan if engine is not None else None,
    )
    if before:
        torch.save((before, after), job.weights)
    dist.barrier()
    if engine is not None:
        engine.detach()
    return told


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def _digest(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for _, parameter in model.named_parameters():
        digest.update(memoryview(parameter.detach().contiguous().flatten().numpy()).cast("B"))
    return digest.hexdigest()


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    print("this kernel does not tell VmHWM", file=sys.stderr)
    return 0


def _processors() -> tuple[int, int] | None:
    """Return what all processors of this machine spent so far: idle, and in all; in ticks."""
    try:
        head = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return None
    ticks = [int(word) for word in head.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _busy(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] == before[1]:
        return None
    return 1 - (after[0] - before[0]) / (after[1] - before[1])


_JOBS: dict[str, Callable[[Job], Told]] = {PREPARE: _prepare, SETTLE: _settle, TRAIN: _train}

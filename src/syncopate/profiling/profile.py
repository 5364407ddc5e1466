"""Profile: what one training iteration of a model asks of the network, as a workload.

Hooks stamp every gradient when backward has finished it and every module's forward. After some
iterations of warm-up, medians over the measured ones are taken, so that a few disturbed iterations
do not matter.
"""

from __future__ import annotations

import datetime
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch import Tensor
from torch.nn.parameter import is_lazy

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.workload import Workload
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.messages.piggyback import riding_bytes
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.output import Progress, say
from syncopate.profiling.beside import ROUNDS, Backward, Iterate, interference_beside
from syncopate.profiling.samples import Iteration, slowest, workload
from syncopate.profiling.stamps import StampedModel
from syncopate.profiling.state import preserved, trainable
from syncopate.profiling.unshardable import looked_at_whole
from syncopate.tracing.clocks import clock_for
from syncopate.units import dtype_name
from syncopate.zoo.task import Task


def profile(
    task: Task,
    *,
    warmup: int = 3,
    iterations: int = 10,
    device: torch.device | str | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    group: dist.ProcessGroup | None = None,
    progress: Progress | None = None,
) -> Workload:
    """Measure ``task`` and return its workload, tensors in true ready order.

    When ``torch.distributed`` is initialised every rank must call this: they measure at the same
    time, side by side as they will train, and all return the same workload, that of the slowest
    rank at every moment ([Note: slowest rank] in ``samples``). On several hosts they also measure
    what overlap costs (:mod:`syncopate.profiling.beside`).

    Parameters without ``requires_grad`` are left out. Trainable ones that never got a gradient
    stand last, with no time, and are named in ``metadata["unused"]``. The model, the optimizer and
    the random state are as before afterwards.

    Args:
        task: model, batch and loss; no data-parallel wrapper.
        warmup: iterations before measuring.
        iterations: iterations measured.
        device: where to measure; where the model is when left out.
        optimizer: whose step the update time is, and which says what tensors are looked at whole.
            The name of a class of ``torch.optim`` or of a kind (``"tensor"``) says only the latter.
        group: the ranks that measure together; all of them when left out.
        progress: called before every iteration.

    Raises:
        CalibrationError: nothing to train, or the ranks have different models.
        InvalidValueError: a count out of range, an absent device, or a loss without a gradient.
        UnknownNameError: no optimizer of that name.
    """
    _require_counts(warmup, iterations)
    parameters = require_measurable(task)
    whole = looked_at_whole(parameters, optimizer)
    stepped = None if isinstance(optimizer, str) else optimizer
    home = next(iter(parameters.values())).device
    where = home if device is None else _require_device(device)
    task = task.to(where) if where != home else task
    try:
        with preserved(task.model, stepped):
            measured, interference = _measure(
                task,
                warmup=warmup,
                iterations=iterations,
                updater=stepped or torch.optim.SGD(parameters.values(), lr=1e-6),
                group=group,
                progress=progress,
            )
        facts = _facts(task, parameters, where, warmup, iterations)
    finally:
        if where != home:
            task.model.to(home)
    own = measured, facts, whole, riding_bytes(task.model.buffers())
    found = _agree(task.title, parameters, own, group)
    return structs.replace(found, interference=interference)


def _require_counts(warmup: int, iterations: int) -> None:
    for what, count, least in (("warmup", warmup, 0), ("iterations", iterations, 1)):
        if count < least:
            raise InvalidValueError(what, count, f"an integer >= {least}")


def require_measurable(task: Task) -> dict[str, Tensor]:
    """Refuse a task that has no workload; return the trainable parameters.

    Raises:
        CalibrationError: nothing to train, or parameters without a shape.
        InvalidValueError: a data-parallel wrapper, or a model under ``fully_shard``.
    """
    if isinstance(task.model, torch.nn.parallel.DistributedDataParallel):
        raise InvalidValueError(
            f"the model of {task.title}",
            "a DistributedDataParallel",
            "the module inside it, .module, because a workload has no communication",
        )
    _require_unsharded(task)
    parameters = trainable(task.model)
    lazy = [name for name, parameter in parameters.items() if is_lazy(parameter)]
    if lazy:
        raise CalibrationError(
            f"{lazy[0]!r} of {task.title} has no shape yet; run one forward through the lazy "
            "modules first"
        )
    if not parameters:
        raise CalibrationError(
            f"{task.title} has no trainable parameter, so nothing to communicate; "
            "set requires_grad on those to be trained"
        )
    return parameters


def _require_unsharded(task: Task) -> None:
    """Refuse a model under ``fully_shard``, whose parameters are shards."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # loaded where a model is
    if fsdp is not None and any(isinstance(m, fsdp.FSDPModule) for m in task.model.modules()):
        raise InvalidValueError(
            f"the model of {task.title}",
            "one under fully_shard",
            "the module before fully_shard is applied: its workload is that of fully_shard, too "
            "(syncopate plan --exchange fsdp)",
        )


def _require_device(device: torch.device | str) -> torch.device:
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        known = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0]
        raise InvalidValueError(
            "device", str(device), f"one that is here ({', '.join(known)}); torch says: {reason}"
        ) from None
    return torch.empty(0, device=where).device


def _measure(
    task: Task,
    *,
    warmup: int,
    iterations: int,
    updater: torch.optim.Optimizer,
    group: dist.ProcessGroup | None,
    progress: Progress | None,
) -> tuple[list[Iteration], Interference | None]:
    """Return the iterations, and what overlap costs where ranks are on several hosts."""
    clock = clock_for(next(task.model.parameters()).device)
    measured = []
    if not task.model.training:
        task.model.train()
    with torch.enable_grad(), StampedModel(task.model, clock) as stamped:
        for index in range(warmup + iterations):
            say(progress, f"profile {task.title}", index / (warmup + iterations))
            if dist.is_initialized():
                dist.barrier(group)
            measured.append(iterate(task, stamped, updater))
        say(progress, f"profile {task.title}", 1.0)
        again = partial(_backward_of, task, stamped, updater)
        return measured[warmup:], _beside(task, again, group, progress)


def _beside(
    task: Task, again: Iterate, group: dist.ProcessGroup | None, progress: Progress | None
) -> Interference | None:
    """Return what overlap costs; None where ranks are on one host, or there is one alone."""
    if len(set(_all_gather(socket.gethostname(), group))) == 1:
        return None
    nbytes = sum(p.numel() * p.element_size() for p in trainable(task.model).values())
    with Communicator(group) as communicator:
        return interference_beside(
            communicator,
            nbytes,
            again,
            lambda turn: say(progress, f"{task.title} beside traffic", turn / ROUNDS),
        )


def _backward_of(
    task: Task,
    stamped: StampedModel,
    updater: torch.optim.Optimizer,
    begun: Callable[[], None],
) -> Backward:
    """Run one iteration; return its backward."""
    iteration = iterate(task, stamped, updater, begun)
    start_s = stamped.clock.host_s(stamped.backward_start)
    span = None if start_s is None else (start_s, start_s + iteration.backward_s)
    return Backward(iteration.backward_s, span)


def iterate(
    task: Task,
    stamped: StampedModel,
    updater: torch.optim.Optimizer,
    begun: Callable[[], None] = lambda: None,
) -> Iteration:
    """Run one iteration as a training loop does and return its durations.

    Args:
        task: what to train.
        stamped: its model, within its block.
        updater: steps at the end.
        begun: called as backward begins.

    Raises:
        InvalidValueError: a loss without a gradient.
    """
    clock = stamped.clock
    stamped.start_iteration()
    clock.finish()
    began_s = time.perf_counter()
    start = clock.stamp()
    loss = task.loss()
    if not loss.requires_grad:
        raise InvalidValueError(
            f"the loss of {task.title}",
            "a tensor without gradient",
            "computed from a trainable parameter, outside torch.no_grad()",
        )
    backward_start = stamped.start_backward()
    begun()
    loss.backward()  # type: ignore[no-untyped-call]
    backward_end = clock.stamp()
    updater.step()
    updater.zero_grad()
    end = clock.stamp()
    clock.finish()
    return Iteration(
        forward_s=clock.between_s(start, backward_start),
        backward_s=clock.between_s(backward_start, backward_end),
        update_s=clock.between_s(backward_end, end),
        ready_s=stamped.ready_s(),
        module_forward_s=stamped.module_forward_s(),
        used=stamped.names,
        began_s=began_s,
        host=socket.gethostname(),
    )


def _agree(
    title: str,
    parameters: Mapping[str, Tensor],
    own: tuple[list[Iteration], dict[str, str], frozenset[str], int],
    group: dist.ProcessGroup | None,
) -> Workload:
    """Turn every rank's own into the workload that all return.

    Args:
        title: of the task.
        parameters: those that are trained, by name.
        own: the iterations, facts, names of whole parameters, and bytes of buffers.
        group: the ranks.
    """
    sizes = {name: (p.numel(), dtype_name(p.dtype)) for name, p in parameters.items()}
    ranks = _all_gather((sizes, *own), group)
    for rank, (theirs, *_) in enumerate(ranks):
        if theirs != ranks[0][0]:
            name = min(set(theirs.items()) ^ set(ranks[0][0].items()))[0]
            raise CalibrationError(
                f"rank {rank} has another model than rank 0: {name!r} differs in presence, size "
                "or dtype; every rank must build the same model"
            )
    together = [slowest(same) for same in zip(*(one for _, one, *_ in ranks), strict=True)]
    _, _, facts, whole, buffers_nbytes = ranks[0]
    hosts = Counter(one[0].host for _, one, *_ in ranks)
    counts = {"ranks": str(len(ranks)), "ranks_per_host": str(max(hosts.values()))}
    found = workload(title, sizes, together, facts | counts, whole)
    known: Workload = structs.replace(found, buffers_nbytes=buffers_nbytes)
    return known


def _all_gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    if not dist.is_initialized():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def _facts(
    task: Task,
    parameters: Mapping[str, Tensor],
    where: torch.device,
    warmup: int,
    iterations: int,
) -> dict[str, str]:
    dtypes = sorted({dtype_name(p.dtype) for p in parameters.values()})
    facts = {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        "dtype": ", ".join(dtypes),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "clock": clock_for(where).name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "warmup": str(warmup),
        "iterations": str(iterations),
    }
    batch = batch_size(task.inputs)
    return facts | ({"batch": str(batch)} if batch is not None else {})


def batch_size(inputs: Any) -> int | None:
    """Return the first dimension of the first tensor among the inputs."""
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    if isinstance(inputs, tuple | list):
        return next((size for item in inputs if (size := batch_size(item)) is not None), None)
    return int(inputs.shape[0]) if isinstance(inputs, Tensor) and inputs.dim() else None

"""Estimate: the workload of a model on a device that is not at hand.

The model runs one iteration on torch's meta device, where tensors have shapes and no values, with
the hooks of :mod:`syncopate.profiling.profile` and the clock of
:mod:`syncopate.profiling.roofline`. Gradients, their ready order and what forward needs when are
the model's own. Times are an assumption, and the workload says so: its metadata's ``times``.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn

from syncopate.artifacts.workload import TIMES, Workload
from syncopate.collectives.messages.piggyback import riding_bytes
from syncopate.errors import CalibrationError, InvalidValueError
from syncopate.profiling.builder import as_task, story
from syncopate.profiling.devices import Device, device_named
from syncopate.profiling.profile import batch_size, iterate, require_measurable
from syncopate.profiling.roofline import Roofline, RooflineClock, Work
from syncopate.profiling.samples import Iteration, workload
from syncopate.profiling.stamps import StampedModel
from syncopate.profiling.unshardable import looked_at_whole
from syncopate.units import dtype_name
from syncopate.zoo.task import Task

EFFICIENCY = 0.65
"""Share of a device's peak and bandwidth that training reaches, where nothing else is known: the
roofline of ResNet-50 in float32 takes 0.69 of the time that an RTX 2080 Ti takes at batch 64 (253.1
images/s, HKBU-HPML/ddl-benchmarks, 2020-05-29), and 0.63 of that of a V100 at batch 128 (443 ms,
the profile of PipeDream)."""

META = torch.device("meta")


@dataclass(frozen=True)
class LayerWork:
    """The floating-point operations of one gradient's layer, a multiply-add counted as two.

    Attributes:
        name: of the parameter.
        forward: its share of those of the module that owns it.
        backward: from the ready time of the gradient before it to its own.
    """

    name: str
    forward: float
    backward: float


@dataclass(frozen=True)
class Estimated:
    """The expected work and times of a model on a device.

    Attributes:
        workload: with times by the roofline.
        layers: operations by gradient, in ready order.
        forward: operations of forward, with the loss.
        backward: operations of backward.
    """

    workload: Workload
    layers: tuple[LayerWork, ...]
    forward: float
    backward: float


def estimate(
    model: Task | Callable[[], Any],
    on: Device | str,
    *,
    efficiency: float = EFFICIENCY,
    compute: str = "",
    batch: int | None = None,
    optimizer: str | None = None,
) -> Workload:
    """Return the workload of a model on a device that is not at hand; nothing is computed.

    Update is that of plain SGD. Shapes are all that counts: values are never looked at.

    Args:
        model: a task, which stays as it is; or a function that returns one, or a tuple like one,
            called on the meta device, where weights take no memory.
        on: a device, or the name of one of :data:`~syncopate.profiling.devices.DEVICES`.
        efficiency: share of its peak and of its memory's bandwidth that is reached, in (0, 1].
        compute: type in which products of float32 are computed, such as ``"tf32"`` or, under
            autocast, ``"bfloat16"``; empty for that of the tensors.
        batch: put in the place of the batch that the inputs have.
        optimizer: what will train the model, by its name in ``torch.optim``: it says which tensors
            are looked at whole.

    Raises:
        UnknownNameError: no such device, optimizer, or peak of the type.
        InvalidValueError: an efficiency or batch out of range, or a loss without a gradient.
        CalibrationError: nothing to train, or a model that reads the values of tensors.

    Example:
        >>> from syncopate.zoo import lenet5
        >>> estimate(lenet5, "v100", batch=64).nbytes == estimate(lenet5, "k80").nbytes
        True
    """
    on = device_named(on) if isinstance(on, str) else on
    roofline = Roofline(on, efficiency, compute)
    return estimated(on_meta(model), roofline, batch=batch, optimizer=optimizer).workload


def estimated(
    task: Task, roofline: Roofline, *, batch: int | None = None, optimizer: str | None = None
) -> Estimated:
    """Return a workload and its operations by layer; see :func:`estimate`.

    Args:
        task: on the meta device.
        roofline: how long operations take.
        batch: put in the place of the batch that the inputs have.
        optimizer: by its name.

    Raises:
        CalibrationError, InvalidValueError, UnknownNameError: as :func:`estimate`.
    """
    parameters = require_measurable(task)
    whole = looked_at_whole(parameters, optimizer)
    task = task if batch is None else _with_batch(task, batch)
    clock = RooflineClock(roofline)
    # On a device torch updates all tensors at once.
    updater = torch.optim.SGD(parameters.values(), lr=1e-6, foreach=True)
    task.model.train()
    stamped = StampedModel(task.model, clock)
    try:
        with META, torch.enable_grad(), stamped, clock:
            iteration = iterate(task, stamped, updater)
    except RuntimeError as error:
        if not _lacks_values(error):
            raise
        raise _reads_values(task.title, error) from error
    sizes = {name: (p.numel(), dtype_name(p.dtype)) for name, p in parameters.items()}
    counted = _operations(iteration, stamped, clock)
    facts = _facts(task, parameters, roofline) | {
        "flops": f"forward {counted.forward_s:.4g}, backward {counted.backward_s:.4g}"
    }
    found = workload(task.title, sizes, [iteration], facts, whole)
    layers = tuple(
        LayerWork(one.name, one.forward_s, one.backward_s)
        for one in workload(task.title, sizes, [counted], {}).tensors
    )
    return Estimated(
        structs.replace(found, buffers_nbytes=riding_bytes(task.model.buffers())),
        layers,
        counted.forward_s,
        counted.backward_s,
    )


def on_meta(model: Task | Callable[[], Any]) -> Task:
    """Return a task on the meta device.

    Args:
        model: a task, of which a copy without values is made; or a function that returns one. One
            that reads the values of what it makes is called again, where tensors have values.

    Raises:
        InvalidValueError: the function returned something that is no task.
    """
    if isinstance(model, Task):
        shapes = {id(t): _shape_of(t) for t in (*model.model.parameters(), *model.model.buffers())}
        return replace(model, model=copy.deepcopy(model.model, shapes)).to(META)
    name = getattr(model, "__name__", "the builder")
    try:
        with META:
            found = model()
    except RuntimeError as error:
        if not _lacks_values(error):
            raise
        found = model()
    return as_task(found, name).to(META)


def _shape_of(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and kind without values."""
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(shape, requires_grad=tensor.requires_grad)
    return shape


def _lacks_values(error: RuntimeError) -> bool:
    """Say whether torch refused because tensors on the meta device have no values.

    It does so where a value is read, and where an operator knows values alone; torch names the
    device in both.
    """
    return "meta" in str(error)


def _reads_values(title: str, error: Exception) -> CalibrationError:
    return CalibrationError(
        f"{title} cannot be estimated: {story(error)}. Its forward reads values of tensors, or "
        "asks for a device or for autocast on one, and on torch's meta device there are shapes "
        "alone; profile it where it runs"
    )


def _with_batch(task: Task, batch: int) -> Task:
    """Return a task whose inputs and targets have another batch, which is their first dimension."""
    if batch < 1:
        raise InvalidValueError("batch", batch, "an integer >= 1")
    old = batch_size(task.inputs)
    if not old:
        rule = f"left out: the inputs of {task.title} have no tensor with a batch"
        raise InvalidValueError("batch", batch, rule)

    def resized(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.dim() or value.shape[0] != old:
                return value
            return value.new_empty(batch, *value.shape[1:])
        if isinstance(value, Mapping):
            return {key: resized(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(resized(item) for item in value)
        return value

    return replace(task, inputs=resized(task.inputs), targets=resized(task.targets))


def _operations(iteration: Iteration, stamped: StampedModel, clock: RooflineClock) -> Iteration:
    """Return an iteration with operations in the place of its seconds."""
    with clock.counting("flops"):
        ready, last = stamped.ready_s(), clock.stamp()
        start = stamped.backward_start
        return Iteration(
            forward_s=clock.between_s(Work(), start),
            backward_s=clock.between_s(start, last),
            update_s=0.0,
            # Gradients that no operation separates keep the order in which they were ready.
            ready_s={name: ready[name] for name in iteration.ready_s},
            module_forward_s=stamped.module_forward_s(),
            used=iteration.used,
        )


def _facts(task: Task, parameters: Mapping[str, Tensor], roofline: Roofline) -> dict[str, str]:
    dtypes = sorted({dtype_name(p.dtype) for p in parameters.values()})
    computed = roofline.compute or dtypes[-1]
    device = roofline.device
    facts = {
        "device": device.name,
        "dtype": ", ".join(dtypes),
        TIMES: (
            f"an assumption: the roofline of {device.name} "
            f"({device.peak(computed) / 1e12:.4g} TFLOP/s in {computed}, "
            f"{device.memory_bytes_per_s / 1e9:.4g} GB/s; {device.source}), "
            f"{roofline.efficiency:.0%} of both reached, no operation shorter than "
            f"{roofline.kernel_s * 1e6:.2g} us; nothing was run"
        ),
        "torch": str(torch.__version__),
        "clock": RooflineClock.name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    batch = batch_size(task.inputs)
    return facts | ({"batch": str(batch)} if batch is not None else {})

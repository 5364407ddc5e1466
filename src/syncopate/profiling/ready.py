"""Ready: the workload of a model that is known by name, on a device that need not be at hand."""

from __future__ import annotations

from functools import partial

from msgspec import structs

from syncopate.artifacts.workload import TIMES, Workload
from syncopate.errors import InvalidValueError
from syncopate.profiling.devices import Device
from syncopate.profiling.estimate import EFFICIENCY, estimate
from syncopate.zoo.ready import ready

ASSUMES = "assumes"
"""What a workload's metadata call what is assumed of its training."""


def workload_of(
    name: str,
    on: Device | str,
    *,
    batch: int | None = None,
    efficiency: float = EFFICIENCY,
    compute: str | None = None,
) -> Workload:
    """Return the workload of a model that is known by name, as :func:`~syncopate.estimate` does.

    Args:
        name: ``"resnet50"``, ``"bert-large"``, ``"decoder-1b"`` or ``"decoder-8b"``.
        on: a device, or the name of one, such as ``"h100"``.
        batch: samples of a rank; as :data:`~syncopate.zoo.ready.READY` says when left out.
        efficiency: share of the device's peak and bandwidth that is reached.
        compute: type of its products, instead of the usual one.

    Raises:
        UnknownNameError: no such model, device, or peak of the type.
        InvalidValueError: an efficiency or batch out of range.

    Example:
        >>> workload_of("bert-large", "h100").nbytes
        1340697832
    """
    known = ready(name)
    if batch is not None and batch < 1:
        raise InvalidValueError("batch", batch, "an integer >= 1")
    count = known.batch if batch is None else batch
    kind = known.compute if compute is None else compute
    found = estimate(partial(known.build, count), on, efficiency=efficiency, compute=kind)
    assumes = known.assumes
    if count != known.batch:
        assumes += f"; here {count} samples"
    metadata = found.metadata | {
        ASSUMES: assumes,
        TIMES: f"{found.metadata[TIMES]}; {assumes}",
    }
    return structs.replace(found, metadata=metadata)

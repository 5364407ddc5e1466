"""The options that name a workload: a file, or a model that is known by name on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError

MODELS = ("resnet50", "bert-large", "decoder-1b", "decoder-8b")
"""Names of :data:`syncopate.zoo.ready.READY`, which needs torch."""


def workload_option(
    *,
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", help="Workload file, from `syncopate profile`."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"Instead of a file, one of {', '.join(MODELS)}, with --device. Needs torch."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="On what --model is computed, such as h100, a100 or v100."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a rank with --model; as usual otherwise.")
    ] = None,
) -> Workload:
    """Return the workload that the options name.

    Raises:
        InvalidValueError: none or both are named, or a device or batch without a model.
        ArtifactError: the file is no workload.
        UnknownNameError: no such model or device.
    """
    if model is None:
        for option, value in (("--device", device), ("--batch", batch)):
            if value is not None:
                raise InvalidValueError(option, value, "given with --model")
        if workload is None:
            raise InvalidValueError("--workload", None, "given, or else --model and --device")
        return Workload.load(workload)
    if workload is not None:
        raise InvalidValueError("--workload", str(workload), "the only one of it and --model")
    if device is None:
        raise InvalidValueError("--device", None, "given with --model, such as h100")
    from syncopate.profiling.ready import workload_of

    return workload_of(model, device, batch=batch)

"""``syncopate profile``: times a model's gradients in ready order, writes a workload."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

import syncopate
from syncopate.artifacts.workload import Workload, kind_named
from syncopate.cli.common import ranks
from syncopate.cli.common.console import (
    ProgressFunction,
    is_leader,
    out,
    progress_bar,
    require_one_writer,
    say_written,
)
from syncopate.errors import CalibrationError, InvalidValueError, SyncopateError


def profile(
    builder: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="An importable function that builds the model; see above.",
            show_default=False,
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the workload; - prints it.")
    ] = Path("workload.json"),
    iterations: Annotated[int, typer.Option(help="Measured iterations.")] = 10,
    warmup: Annotated[int, typer.Option(help="Iterations before measuring.")] = 3,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:0; where the model is otherwise.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="What will train the model, by its name in torch.optim, or tensor where it is "
            "another one that looks at whole tensors, which are not cut into shards then."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the workload as JSON instead of tables.")
    ] = False,
    local: Annotated[
        int | None,
        typer.Option(help="Profile on this many ranks of this machine at once, as in training."),
    ] = None,
) -> None:
    """Time forward, backward and every gradient of a model, and write the workload.

    MODULE:FUNCTION returns a syncopate.zoo.Task, (model, inputs), (model, inputs, targets), or
    (model, inputs, targets, loss_fn). The output may be the loss, or have it as `loss`. On several
    ranks, started with --local or torchrun, all profile at once and the slowest rank counts. Have
    as many on a host as will train there.

    For example:

      syncopate profile syncopate.zoo:resnet20

      syncopate profile mymodels:build_gpt -o gpt.json --iterations 20 --local 4

      syncopate profile mymodels:build_gpt --optimizer Muon
    """
    _require_counts(iterations, warmup)
    if optimizer is not None:
        kind_named(optimizer)
    require_one_writer(json, ("--output", output))
    code = ranks.start_if_asked(local)
    if code is not None:
        raise typer.Exit(code)
    with progress_bar("profiling") as progress:
        workload = _profile(builder, (warmup, iterations), device, optimizer, progress)
    if is_leader():
        _show(workload, output, json)


def _require_counts(iterations: int, warmup: int) -> None:
    for option, value, least in (("--iterations", iterations, 1), ("--warmup", warmup, 0)):
        if value < least:
            raise InvalidValueError(option, value, f"an integer >= {least}")


def _profile(
    builder: str,
    counts: tuple[int, int],
    device: str | None,
    optimizer: str | None,
    progress: ProgressFunction,
) -> Workload:
    from syncopate.profiling.builder import load_task, story

    task = load_task(builder)
    with ranks.joined() if ranks.started() else nullcontext():
        try:
            return syncopate.profile(
                task,
                warmup=counts[0],
                iterations=counts[1],
                device=device,
                optimizer=optimizer,
                progress=progress,
            )
        except SyncopateError:
            raise
        except Exception as error:
            # Whatever the model raises; what it is told by is the model's to say.
            raise CalibrationError(f"profiling {builder} raised {story(error)}") from error


def _show(workload: Workload, output: Path, json: bool) -> None:
    workload.save(output)
    if json:
        typer.echo(workload.to_json().decode(), nl=False)
        say_written(output)
        return
    from syncopate.reports.terminal import workload_report

    out(beside=output).print(workload_report(workload))
    say_written(output)

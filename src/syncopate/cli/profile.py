"""``syncopate profile``: times a model's gradients in ready order, writes a workload.

With ``--on`` or ``--device-peak`` nothing is timed: the model has shapes alone, and the times are
those of a device that is not at hand, by its roofline.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import syncopate
from syncopate.artifacts.workload import TIMES, Workload, kind_named
from syncopate.cli.common import ranks
from syncopate.cli.common.console import (
    err,
    is_leader,
    out,
    progress_bar,
    require_outputs,
    save_and_show,
)
from syncopate.cli.common.options import grouped
from syncopate.errors import CalibrationError, InvalidValueError, SyncopateError
from syncopate.output import Progress

if TYPE_CHECKING:
    from syncopate.profiling.estimate import Estimated
    from syncopate.profiling.roofline import Roofline

_LAYERS = 5


class Absent(NamedTuple):
    """The options for a device that is not at hand."""

    on: Annotated[
        str | None,
        typer.Option(
            help="Estimate for a device that is not here, such as h100, a100, v100 or rtx2080ti: "
            "the model gets shapes alone, and times by published peaks."
        ),
    ] = None
    device_peak: Annotated[
        str | None,
        typer.Option(help="The same with a peak of your own, such as 312TFLOPS, for every dtype."),
    ] = None
    device_bandwidth: Annotated[
        str | None,
        typer.Option(help="With --device-peak: bandwidth of its memory, such as 2039GB/s."),
    ] = None
    efficiency: Annotated[
        float | None,
        typer.Option(help="Share of peak and bandwidth that is reached; 0.65 otherwise."),
    ] = None
    compute: Annotated[
        str | None,
        typer.Option(
            help="Type in which products of float32 are computed: tf32, or bfloat16 under autocast."
        ),
    ] = None
    batch: Annotated[
        int | None, typer.Option(help="Batch in the place of the one that the inputs have.")
    ] = None

    @property
    def is_meant(self) -> bool:
        """Whether there is a device that is not at hand."""
        return self.on is not None or self.device_peak is not None

    def require_sound(self) -> None:
        """Refuse options that do not go together.

        Raises:
            InvalidValueError: names one of them.
        """
        names = ("--device-peak", "--device-bandwidth", "--efficiency", "--compute", "--batch")
        given = list(zip(names, self[1:], strict=True))
        for name, value in given[1:]:
            if value is not None and not self.is_meant:
                raise InvalidValueError(name, value, "left out without --on or --device-peak")
        for name, value in given[:2]:
            if value is not None and self.on is not None:
                raise InvalidValueError(name, value, "left out beside --on, which has its own")
        if self.device_peak is not None and self.device_bandwidth is None:
            raise InvalidValueError(names[1], None, "given with --device-peak, such as 2039GB/s")


class Here(NamedTuple):
    """The options for a measurement on this machine."""

    iterations: Annotated[int, typer.Option(help="Measured iterations.")] = 10
    warmup: Annotated[int, typer.Option(help="Iterations before measuring.")] = 3
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:0; where the model is otherwise.")
    ] = None
    local: Annotated[
        int | None,
        typer.Option(help="Profile on this many ranks of this machine at once, as in training."),
    ] = None

    def require_sound(self) -> None:
        """Refuse counts out of range.

        Raises:
            InvalidValueError: names one.
        """
        for option, value, least in (
            ("--iterations", self.iterations, 1),
            ("--warmup", self.warmup, 0),
        ):
            if value < least:
                raise InvalidValueError(option, value, f"an integer >= {least}")

    def require_unsaid(self) -> None:
        """Refuse every one of them, where nothing is measured.

        Raises:
            InvalidValueError: names one that was given.
        """
        for name, value, unsaid in zip(self._fields, self, Here(), strict=True):
            if value != unsaid:
                rule = "left out: with --on nothing runs here"
                raise InvalidValueError(f"--{name}", value, rule)


@grouped(here=Here, absent=Absent)
def profile(
    *,
    builder: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="An importable function that builds the model; see above.",
            show_default=False,
        ),
    ],
    here: Here,
    absent: Absent,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the workload; - prints it.")
    ] = Path("workload.json"),
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
) -> None:
    """Time forward, backward and every gradient of a model, and write the workload.

    MODULE:FUNCTION returns a syncopate.zoo.Task, (model, inputs), (model, inputs, targets), or
    (model, inputs, targets, loss_fn). The output may be the loss, or have it as `loss`. On several
    ranks, started with --local or torchrun, all profile at once and the slowest rank counts. Have
    as many on a host as will train there.

    With --on, or --device-peak, nothing runs: the model has shapes alone, and takes no memory. Its
    times are an assumption, which the workload and the last line say.

    For example:

      syncopate profile syncopate.zoo:resnet20

      syncopate profile mymodels:build_gpt -o gpt.json --optimizer Muon --local 4

      syncopate profile mymodels:build_gpt --on h100 --batch 16 -o gpt.json

      syncopate profile mymodels:build --device-peak 90TFLOPS --device-bandwidth 1TB/s
    """
    here.require_sound()
    absent.require_sound()
    if optimizer is not None:
        kind_named(optimizer)
    require_outputs(json, ("--output", output))
    if absent.is_meant:
        here.require_unsaid()
        _show_estimated(_estimate(builder, absent, optimizer), output, json)
        return
    ranks.start_if_asked(here.local)
    with progress_bar("profiling") as progress:
        workload = _profile(builder, here, optimizer, progress)
    if is_leader():
        _show(workload, output, json)


def _profile(builder: str, here: Here, optimizer: str | None, progress: Progress) -> Workload:
    from syncopate.profiling.builder import load_task, story

    task = load_task(builder)
    with ranks.joined() if ranks.started() else nullcontext():
        try:
            return syncopate.profile(
                task,
                warmup=here.warmup,
                iterations=here.iterations,
                device=here.device,
                optimizer=optimizer,
                progress=progress,
            )
        except SyncopateError:
            raise
        except Exception as error:
            # The model may raise any error.
            raise CalibrationError(f"profiling {builder} raised {story(error)}") from error


def _show(workload: Workload, output: Path, json: bool) -> None:
    from syncopate.reports.terminal import workload_report

    save_and_show(workload, output, json, lambda: workload_report(workload))


def _estimate(builder: str, absent: Absent, optimizer: str | None) -> Estimated:
    """Return the workload of a model on a device that is not at hand."""
    roofline = _roofline(absent)
    from syncopate.profiling.builder import load_task, story
    from syncopate.profiling.estimate import estimated, on_meta

    task = on_meta(lambda: load_task(builder))
    try:
        return estimated(task, roofline, batch=absent.batch, optimizer=optimizer)
    except SyncopateError:
        raise
    except Exception as error:
        raise CalibrationError(f"estimating {builder} raised {story(error)}") from error


def _roofline(absent: Absent) -> Roofline:
    from syncopate.profiling.devices import ANY, Device, device_named, parse_peak
    from syncopate.profiling.estimate import EFFICIENCY
    from syncopate.profiling.roofline import Roofline

    if absent.on is not None:
        device = device_named(absent.on)
    else:
        device = Device(
            "a device given by hand",
            {ANY: parse_peak("--device-peak", absent.device_peak or "")},
            parse_peak("--device-bandwidth", absent.device_bandwidth or ""),
            "given on the command line",
        )
    efficiency = EFFICIENCY if absent.efficiency is None else absent.efficiency
    return Roofline(device, efficiency, absent.compute or "")


def _show_estimated(found: Estimated, output: Path, json: bool) -> None:
    _show(found.workload, output, json)
    console = err() if json else out(beside=output)
    most = sorted(found.layers, key=lambda layer: -(layer.forward + layer.backward))[:_LAYERS]
    text = ", ".join(f"{layer.name} {(layer.forward + layer.backward) / 1e9:.4g}" for layer in most)
    console.print(
        f"operations: forward {found.forward / 1e9:.4g} GFLOP, backward "
        f"{found.backward / 1e9:.4g} GFLOP; most in {text}",
        f"times are {found.workload.metadata[TIMES]}",
        sep="\n",
        soft_wrap=True,
        markup=False,
    )

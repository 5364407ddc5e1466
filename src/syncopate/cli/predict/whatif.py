"""``syncopate whatif``: a training on other clusters and with other settings, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from syncopate.artifacts.cluster import NETWORKS
from syncopate.artifacts.plan import EXCHANGES
from syncopate.artifacts.results.whatif import BEST, DDP, Prices
from syncopate.artifacts.workload import Workload
from syncopate.cli.common.console import (
    err,
    progress_bar,
    require_outputs,
    save_and_show,
)
from syncopate.cli.common.ending import code_of, ended_once
from syncopate.cli.common.machines import RacksOption, UplinkOption, racks_of
from syncopate.cli.common.options import grouped, items
from syncopate.cli.common.sources import Base, Trained, base_cluster, trained
from syncopate.errors import InvalidValueError
from syncopate.output import write_output
from syncopate.recipe import WIRE_DTYPES

if TYPE_CHECKING:
    from syncopate.artifacts.results.whatif import WhatIf
    from syncopate.planning.whatif.study import Study

_Value = TypeVar("_Value")


def _base(
    *,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", "-c", help="Today's cluster, from `syncopate calibrate`."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help=f"Instead of it, a typical network: {', '.join(NETWORKS)}."),
    ] = None,
    racks: RacksOption = None,
    uplink: UplinkOption = None,
) -> Base:
    return Base(cluster, network, racks_of(racks, uplink))


def _machines(
    *,
    nodes: Annotated[
        str | None,
        typer.Option(help="Hosts, as 4,8,16; 4..64 doubles, 4..64:4 goes by fours."),
    ] = None,
    gpus_per_node: Annotated[str | None, typer.Option(help="GPUs on each host, as 1,8.")] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="A host's link: as sold, 10g,25g,100g, or what arrives, 9.4gbit."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="Of a message between hosts, as 20us,5us.")
    ] = None,
    oversubscription: Annotated[
        str | None, typer.Option(help="Of the outermost level, as 1,2,4.")
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            help="Of one level, as rack.bandwidth=40g,100g or device.latency=5us; may be repeated."
        ),
    ] = None,
    gpu_speed: Annotated[
        str | None,
        typer.Option(
            help="Compute speed, as 1,2 times the profiled one, or a second profile's file."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Samples of a rank in an iteration, as 32,64; a second profile's file gives the "
            "line between two."
        ),
    ] = None,
) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "bandwidth": bandwidth,
        "latency": latency,
        "oversubscription": oversubscription,
        "gpu_speed": _profiles(gpu_speed, named=True),
        "batch": _profiles(batch, named=False),
        "levels": _once("--level", map(_level, level or ())) or None,
    }


def _once(option: str, given: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Return what an option says of each name, none of them twice."""
    found: dict[str, _Value] = {}
    for name, value in given:
        if name in found:
            raise InvalidValueError(option, name, f"given once for {name}")
        found[name] = value
    return found


def _level(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals:
        rule = "LEVEL.bandwidth=RATES or LEVEL.latency=TIMES, such as rack.bandwidth=40g,100g"
        raise InvalidValueError("--level", text, rule)
    return name, values


def _profiles(text: str | None, *, named: bool) -> list[Any] | None:
    """Return the values of an option, of which some are the files of profiles."""
    if text is None:
        return None
    found: list[Any] = []
    for item in items(text):
        if item.endswith(".json"):
            profile = Workload.load(item)
            found.append((Path(item).stem, profile) if named else profile)
        else:
            found.append(item)
    return found


class How(NamedTuple):
    """The options that say how gradients travel."""

    exchange: Annotated[
        str | None,
        typer.Option(
            help=f"{BEST}, or some of {', '.join(EXCHANGES)}; the best like DDP otherwise."
        ),
    ] = None
    policy: Annotated[str | None, typer.Option(help="Of buckets, as best,wfbp,mg-wfbp.")] = None
    algorithm: Annotated[str | None, typer.Option(help="Of every bucket, as ring,blueconnect.")] = (
        None
    )
    wire_dtype: Annotated[
        str | None, typer.Option(help=f"Send gradients as none, {', '.join(WIRE_DTYPES)}.")
    ] = None
    pull_period: Annotated[
        str | None, typer.Option(help="Pull weights every so many steps (SSD-SGD), as 0,1,4.")
    ] = None
    servers: Annotated[
        str | None, typer.Option(help="Parameter servers, with --exchange served, as 1,2,4.")
    ] = None
    local_sgd: Annotated[
        str | None, typer.Option(help="Average weights every so many steps, as 0,8.")
    ] = None


@dataclass(frozen=True)
class _Asked:
    """How the question is asked."""

    today: str | None
    keep: float
    prices: Prices | None
    uncertain: dict[str, float]
    samples: int | None


def _asked(
    *,
    today: Annotated[
        str | None,
        typer.Option(help=f"How gradients travel today: {DDP}, or {BEST} for the best plan."),
    ] = None,
    keep: Annotated[
        float, typer.Option(help="The efficiency to keep: which link is needed for it.")
    ] = 0.9,
    prices: Annotated[
        Path | None, typer.Option(help="What hours of GPUs, nodes and links cost: a TOML file.")
    ] = None,
    uncertain: Annotated[
        str | None,
        typer.Option(help="How far inputs may be off, as bandwidth=10%,latency=50%,compute=5%."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="The batch of a rank, where profile or run do not say it."),
    ] = None,
) -> _Asked:
    given = _once("--uncertain", map(_share, items(uncertain)))
    return _Asked(today, keep, None if prices is None else Prices.load(prices), given, samples)


def _share(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    number = value.strip().removesuffix("%")
    try:
        share = float(number) / (100 if value.strip().endswith("%") else 1)
    except ValueError:
        rule = "INPUT=SHARE, such as bandwidth=10% or latency=0.5"
        raise InvalidValueError("--uncertain", text, rule) from None
    return name.strip(), share


@grouped(base=_base, machines=_machines, how=How, asked=_asked)
def whatif(
    *,
    base: Base,
    machines: dict[str, Any],
    how: How,
    asked: _Asked,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A workload, from `syncopate profile`; the directory of a run that was traced; or "
            "a timeline.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write all figures; - prints them.")
    ] = Path("whatif.json"),
    page: Annotated[
        Path | None, typer.Option(help="Where to write one HTML page with the curves.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Predict a training on other networks, nodes, devices and exchanges, and say what to change.

    Every combination of the values is a point: the best plan and DDP's buckets, each with
    throughput, efficiency, the physical bound and an interval. Then come answers: from how many
    nodes on the network limits, which single change gains most, which link keeps an efficiency, and
    which uncertain input would change that (docs/whatif.md). Ctrl-C keeps what was done. Needs no
    ranks and no torch.

    For example:

      syncopate whatif workload.json --network 10gbe --nodes 4..64

      syncopate whatif runs/a --bandwidth 10g,25g,100g --nodes 4..64 --gpu-speed 1,2

      syncopate whatif workload.json -c cluster.json --bandwidth 10g,25g --prices prices.toml

      syncopate whatif workload.json --network 25gbe --nodes 128 --gpus-per-node 8 --keep 0.95

      syncopate whatif workload.json -c cluster.json --exchange best,sharded --pull-period 0,1,4

      syncopate whatif workload.json --network 10gbe --nodes 16 --batch 32,64 --page whatif.html
    """
    require_outputs(json, ("--output", output), ("--page", page))
    if page is not None:
        from syncopate.reports.pages.page import require_html

        require_html()
    found = trained(file, asked.samples)
    vary = {axis: given for axis, given in (machines | how._asdict()).items() if given is not None}
    study = _study(found, base, vary, asked)
    with ended_once():
        code = _run(study)
        result = study.result(_beside(found, study))
        _show(result, output, page, json)
    if code:
        raise typer.Exit(code)


def _study(found: Trained, base: Base, vary: dict[str, Any], asked: _Asked) -> Study:
    from syncopate.planning.whatif.study import Study, Terms

    cluster, remarks = base_cluster(found, base, vary)
    terms = Terms(
        today=asked.today or found.today,
        keep=asked.keep,
        prices=asked.prices,
        uncertain=asked.uncertain,
        remarks=(*found.remarks, *remarks),
    )
    return Study(found.workload, cluster, vary, terms)


def _beside(found: Trained, study: Study) -> tuple[str, ...]:
    """Return the run's own measurement, where the run is the predicted base."""
    if found.iteration_s is None or study.base.setting.ranks != found.ranks:
        return ()
    from syncopate.units import format_seconds

    predicted_s = study.base.by(study.today).prediction.iteration_s
    off = predicted_s / found.iteration_s - 1
    return (
        f"the run itself took {format_seconds(found.iteration_s)} an iteration; predicted for as "
        f"many ranks here: {format_seconds(predicted_s)}, {off:+.0%}",
    )


def _run(study: Study) -> int:
    """Work on a study; return the exit code: not 0 where it was interrupted with a point done."""
    try:
        with progress_bar("what if") as progress:
            study.run(progress)
    except KeyboardInterrupt as interrupt:
        if not study.done:
            raise
        err().print(f"interrupted: {study.done} of {study.count} points are kept", style="yellow")
        return code_of(interrupt)
    return 0


def _show(result: WhatIf, output: Path, page: Path | None, json: bool) -> None:
    from syncopate.reports.whatif import whatif_report

    if page is not None:
        from syncopate.reports.pages.whatif import whatif_page

        write_output(page, whatif_page(result).encode())
    save_and_show(result, output, json, lambda: whatif_report(result), page)

"""``syncopate convert``: recorded trainings and clusters, in the files of other tools."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncopate.cli.common.console import say_written
from syncopate.cli.common.machines import Sources, sources
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import Table, note, read_nodes, read_recorded, table_options
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import STANDARD_OUTPUT, is_standard_output, write_output

if TYPE_CHECKING:
    from syncopate.artifacts.cluster import Cluster
    from syncopate.artifacts.decision_table import CollectiveDecisions
    from syncopate.tracing.run import Run

NCCL_TUNER = "nccl-tuner"
OPEN_MPI = "open-mpi"
RULES = (NCCL_TUNER, OPEN_MPI)
"""What a cluster may be converted to."""
_OR_RULES = " or ".join(RULES)

TIMELINE = "timeline"
PERFETTO = "perfetto"
HTA = "hta"
CHAKRA = "chakra"
DLC = "dlc"
OF_RANKS = (HTA, CHAKRA, DLC)
"""What has a file of each rank or node."""
TIMELINES = (TIMELINE, PERFETTO, *OF_RANKS)
"""What a recorded training may be converted to."""


@grouped(given=sources, table=table_options)
def convert(
    *,
    given: Sources,
    table: Table,
    to: Annotated[
        str, typer.Option(help=f"Of a training {' or '.join(TIMELINES)}, of a cluster {_OR_RULES}.")
    ] = TIMELINE,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="File to write; - prints it. For hta, chakra, dlc a folder."
        ),
    ] = Path(STANDARD_OUTPUT),
    protocol: Annotated[
        str | None,
        typer.Option(help="nccl-tuner: ll, ll128 or simple for every size; by size otherwise."),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="nccl-tuner: channels to use; the plug-in's own otherwise.")
    ] = None,
) -> None:
    """Write a recorded training, or the decisions for a cluster, as the files of other tools.

    A training is a timeline, a table, or one file of each rank: of `syncopate record`, of torch's
    flight recorder, or of torch.profiler. What is known of it is told by its content, and a note on
    standard error says what the source does not tell.

    A cluster becomes rules that NCCL's or Open MPI's own tuning reads. Where the best algorithm has
    no counterpart there, a note says what stands for it. Needs no ranks and no torch.

    For example:

      syncopate convert traces/rank-*.json -o timeline.json

      syncopate convert timeline.json --to perfetto -o perfetto.json

      syncopate convert timeline.json --to chakra -o traces

      syncopate convert runs/a --to dlc -o dlc

      syncopate convert cluster.json --to nccl-tuner -o nccl_tuner.conf

      NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf torchrun

      syncopate convert cluster.json --to open-mpi -o rules.json

      mpirun --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename rules.json
    """
    if to not in (*RULES, *TIMELINES):
        raise UnknownNameError("format", to, (*TIMELINES, *RULES))
    for option, value in (("--protocol", protocol), ("--channels", channels)):
        if value is not None and to != NCCL_TUNER:
            raise InvalidValueError(option, value, f"left out: it belongs to --to {NCCL_TUNER}")
    if to in OF_RANKS and is_standard_output(output):
        raise InvalidValueError("--output", str(output), f"a folder: {to} has a file of each rank")
    if to in RULES:
        files = {"": _rules(given.cluster(), to, protocol or "", channels).encode()}
    else:
        files = _recorded(given.recorded(), to, table)
    say_written(*(write_output(output / name, content) for name, content in files.items()))


def _served(given: tuple[Path, ...]) -> dict[str, bytes]:
    """Return the files of a parameter server's nodes, by their names below the output."""
    from syncopate.tracing.served.files import dlc_files

    served = read_nodes(*given).served
    assert served is not None
    files, remarks = dlc_files(served)
    for remark in remarks:
        note(remark)
    return files


def _recorded(given: tuple[Path, ...], to: str, table: Table) -> dict[str, bytes]:
    """Return the files of a training, by their names below the output; an empty one is itself."""
    if to == DLC:
        return _served(given)
    from msgspec.structs import replace

    from syncopate.analysis.collectives import collectives
    from syncopate.tracing.foreign.exports.chakra import to_chakra
    from syncopate.tracing.foreign.exports.hta import to_hta
    from syncopate.tracing.perfetto import to_perfetto

    timeline, run = read_recorded(*given, table=table, every=True)
    if to in OF_RANKS:
        once = replace(timeline, spans=timeline.kept)
        kinds = {span: one.collective for one in collectives(once) for span in one.spans}
        return to_hta(timeline, kinds) if to == HTA else to_chakra(timeline, kinds)
    if to == PERFETTO:
        return {"": to_perfetto(timeline, beside=_messages(run))}
    return {"": timeline.to_json()}


def _messages(run: Run | None) -> Iterable[dict[str, Any]]:
    """Return the messages of a parameter server's nodes, for Perfetto."""
    if run is None or run.served is None:
        return ()
    from syncopate.tracing.served.perfetto import Shown, served_events

    since_s = run.origin_s if run.first else -math.inf
    shown = Shown(run.ranks, run.timeline.world_size, run.origin_s, since_s)
    return served_events(run.served, shown)


def _rules(cluster: Cluster, to: str, protocol: str, channels: int | None) -> str:
    """Return the file of another library's tuning; remark what has no counterpart there."""
    from syncopate.costs.decide.tabulate import decision_table
    from syncopate.reports.rules.nccl_tuner import nccl_tuner
    from syncopate.reports.rules.open_mpi import open_mpi

    def restrict(collective: str, names: tuple[str, ...]) -> CollectiveDecisions | None:
        found = decision_table(cluster, (collective,), {collective: names}).collectives
        return found[0] if found else None

    table = decision_table(cluster)
    if to == NCCL_TUNER:
        made = nccl_tuner(table, restrict, protocol=protocol, channels=channels)
    else:
        made = open_mpi(table, restrict)
    for remark in made.notes:
        note(remark)
    return made.text

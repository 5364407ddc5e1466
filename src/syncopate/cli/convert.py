"""``syncopate convert``: trainings and clusters, to and from the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import syncopate
from syncopate.cli.common.console import note, progress_bar, require_outputs, say_written
from syncopate.cli.common.machines import Sources
from syncopate.cli.common.options import grouped
from syncopate.cli.common.timelines import read_recorded, table_options
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.output import STANDARD_OUTPUT, is_standard_output, write_output
from syncopate.runs.defaults import Table
from syncopate.units import parse_seconds

if TYPE_CHECKING:
    from syncopate.artifacts.cluster import Cluster
    from syncopate.artifacts.results.decision_table import CollectiveDecisions

NCCL_TUNER = "nccl-tuner"
OPEN_MPI = "open-mpi"
RULES = (NCCL_TUNER, OPEN_MPI)
"""What a cluster may be converted to."""
_OR_RULES = " or ".join(RULES)

CLUSTER = "cluster"
"""What logs of other tools are converted to."""

TIMELINE = "timeline"
PERFETTO = "perfetto"
HTA = "hta"
CHAKRA = "chakra"
DLC = "dlc"
OF_RANKS = (HTA, CHAKRA, DLC)
"""What has a file of each rank or node."""
WORKLOAD = "workload"
TIMELINES = (TIMELINE, WORKLOAD, PERFETTO, *OF_RANKS)
"""What a recorded training may be converted to."""


class Beside(NamedTuple):
    """The options for logs of other tools."""

    latency: Annotated[
        str | None,
        typer.Option(help="Logs: latency between hosts, such as 20us; fitted to them otherwise."),
    ] = None
    ranks_per_host: Annotated[
        int | None, typer.Option(help="Logs: ranks on each host, where they do not tell.")
    ] = None
    collective: Annotated[
        str | None,
        typer.Option(help="Logs of nccl-tests: what was tested, where they do not tell."),
    ] = None


class Tuner(NamedTuple):
    """The options for NCCL's rules."""

    protocol: Annotated[
        str | None,
        typer.Option(help="nccl-tuner: ll, ll128 or simple for every size; by size otherwise."),
    ] = None
    channels: Annotated[
        int | None, typer.Option(help="nccl-tuner: channels to use; the plug-in's own otherwise.")
    ] = None

    def require_meant(self, to: str) -> None:
        """Refuse them where other files are written.

        Raises:
            InvalidValueError: names the one that was given.
        """
        for name, value in zip(self._fields, self, strict=True):
            if value is not None and to != NCCL_TUNER:
                raise InvalidValueError(
                    f"--{name}", value, f"left out: it belongs to --to {NCCL_TUNER}"
                )


_To = Annotated[
    str | None,
    typer.Option(
        help=f"Of logs {CLUSTER} or {_OR_RULES}, of a training {' or '.join(TIMELINES)}, of a "
        f"cluster {_OR_RULES}; {CLUSTER} of logs and {TIMELINE} of others otherwise."
    ),
]
_Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="File to write; - prints it. For hta, chakra, dlc a folder."
    ),
]


@grouped(given=Sources, table=table_options, beside=Beside, tuner=Tuner)
def convert(
    *,
    given: Sources,
    table: Table,
    beside: Beside,
    tuner: Tuner,
    to: _To = None,
    output: _Output = Path(STANDARD_OUTPUT),
) -> None:
    """Write a training, a cluster's decisions, or what other tools measured, as other files.

    Logs of nccl-tests, iperf3, ib_write_bw and ib_write_lat become a cluster, several of one
    together. Latency is fitted to them; where none tells it, --latency does, or --network names a
    typical one.

    A training is a timeline, a table, or one file of each rank: of `syncopate record`, of torch's
    flight recorder, or of torch.profiler. What is known of it is told by its content, and a note on
    standard error says what the source does not tell. As a workload it can be planned for, without
    a change of the script that was recorded.

    A cluster becomes rules that NCCL's or Open MPI's own tuning reads. Where the best algorithm has
    no counterpart there, a note says what stands for it. Needs no ranks and no torch.

    For example:

      syncopate convert all_reduce.log -o cluster.json

      syncopate convert one_host.log ib_write_bw.log ib_write_lat.log --nodes 64 -o cluster.json

      syncopate convert traces/rank-*.json -o timeline.json

      syncopate convert traces/rank-*.json --to workload -o workload.json

      syncopate convert timeline.json --to perfetto -o perfetto.json

      syncopate convert timeline.json --to chakra -o traces

      syncopate convert runs/a --to dlc -o dlc

      syncopate convert cluster.json --to nccl-tuner -o nccl_tuner.conf

      NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=nccl_tuner.conf torchrun

      syncopate convert cluster.json --to open-mpi -o rules.json

      mpirun --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename rules.json
    """
    logs = _are_logs(given, beside, to)
    to = to or (CLUSTER if logs else TIMELINE)
    if to not in (CLUSTER, *RULES, *TIMELINES):
        raise UnknownNameError("format", to, (*TIMELINES, CLUSTER, *RULES))
    tuner.require_meant(to)
    _require_output(to, output)
    if to in (CLUSTER, *RULES):
        cluster = _from_logs(given, beside) if logs else given.cluster()
        files = {"": cluster.to_json() if to == CLUSTER else _rules(cluster, to, tuner).encode()}
    else:
        files = _recorded(given.recorded(), to, table)
    say_written(*(write_output(output / name, content) for name, content in files.items()))


def _require_output(to: str, output: Path) -> None:
    """Refuse an output that is read, or that is no place for what is written."""
    if to not in OF_RANKS:
        require_outputs(False, ("--output", output))
    elif is_standard_output(output):
        raise InvalidValueError("--output", str(output), f"a folder: {to} has a file of each rank")


def _are_logs(given: Sources, beside: Beside, to: str | None) -> bool:
    """Say whether the files are logs of other tools: as options say, or else as one begins."""
    meant = [name for name, value in zip(Beside._fields, beside, strict=True) if value is not None]
    if not given.files:
        if meant:
            option = f"--{meant[0].replace('_', '-')}"
            raise InvalidValueError("FILE", None, f"given with {option}: a log of another tool")
        return False
    if meant or to == CLUSTER:
        return True
    from syncopate.calibration.logs.read import is_log

    return to in (None, *RULES) and any(is_log(path) for path in given.files)


def _from_logs(given: Sources, beside: Beside) -> Cluster:
    """Return what logs tell, and remark what they do not."""
    cluster = syncopate.read_logs(
        given.files or (),
        nodes=given.nodes,
        ranks_per_host=beside.ranks_per_host,
        latency_s=None if beside.latency is None else parse_seconds(beside.latency),
        network=given.network,
        collective=beside.collective or "",
    )
    for warning in cluster.warnings:
        note(warning)
    for what in ("latency", "devices", "overlap"):
        if what in cluster.metadata:
            note(f"{what}: {cluster.metadata[what]}")
    return cluster


def _served(given: list[Path]) -> dict[str, bytes]:
    """Return the files of a parameter server's nodes, by their names below the output."""
    from syncopate.runs.reading import read_nodes
    from syncopate.tracing.served.to_dlc import dlc_files

    with progress_bar("reading") as advance:
        run = read_nodes(*given, progress=advance)
    assert run.served is not None
    files, remarks = dlc_files(run.served)
    for remark in (*run.remarks, *remarks):
        note(remark)
    return files


def _recorded(given: list[Path], to: str, table: Table) -> dict[str, bytes]:
    """Return the files of a training, by their names below the output; an empty one is itself."""
    if to == DLC:
        return _served(given)
    from msgspec.structs import replace

    from syncopate.analysis.collectives import collectives
    from syncopate.tracing.foreign.exports.chakra import to_chakra
    from syncopate.tracing.foreign.exports.hta import to_hta
    from syncopate.tracing.perfetto import to_perfetto
    from syncopate.tracing.served.perfetto import served_events

    found = read_recorded(*given, table=table, every=to != WORKLOAD).of_ranks()
    timeline, run = found.timeline, found.run
    if to == WORKLOAD:
        from syncopate.analysis.workload import assumed, recorded_workload

        workload = recorded_workload(timeline)
        note(assumed(timeline, workload))
        return {"": workload.to_json()}
    if to in OF_RANKS:
        once = replace(timeline, spans=timeline.kept)
        kinds = {span: kind for kind, spans in collectives(once) for span in spans}
        return to_hta(timeline, kinds) if to == HTA else to_chakra(timeline, kinds)
    if to == PERFETTO:
        return {"": to_perfetto(timeline, beside=served_events(run))}
    return {"": timeline.to_json()}


def _rules(cluster: Cluster, to: str, tuner: Tuner) -> str:
    """Return the file of another library's tuning; remark what has no counterpart there."""
    from syncopate.costs.decide.tabulate import decision_table
    from syncopate.reports.rules.nccl_tuner import nccl_tuner
    from syncopate.reports.rules.open_mpi import open_mpi

    def restrict(collective: str, names: tuple[str, ...]) -> CollectiveDecisions | None:
        found = decision_table(cluster, (collective,), {collective: names}).collectives
        return found[0] if found else None

    table = decision_table(cluster)
    if to == NCCL_TUNER:
        made = nccl_tuner(table, restrict, protocol=tuner.protocol or "", channels=tuner.channels)
    else:
        made = open_mpi(table, restrict)
    for remark in made.notes:
        note(remark)
    return made.text

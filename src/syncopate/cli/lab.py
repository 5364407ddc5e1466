"""``syncopate lab``: emulated hosts, racks and link speeds on this machine."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncopate.cli.common.console import out, remark, require_outputs, say_written
from syncopate.cli.common.options import grouped
from syncopate.errors import InvalidValueError
from syncopate.lab.topology import PLACEMENTS, Topology, require_rate
from syncopate.output import is_standard_output
from syncopate.units import format_bytes, parse_rate

if TYPE_CHECKING:
    from syncopate.lab.network import LinkCounter

lab = typer.Typer(
    name="lab",
    help="Emulate hosts, racks and link speeds on this machine; run a command on every rank.",
    epilog="Needs root on Linux. Rates are emulated, latency is this machine's own.",
    no_args_is_help=True,
)

_COMMAND = {"allow_interspersed_args": False}
"""Everything after the command's name belongs to the command, with or without ``--`` before it."""

_LabId = Annotated[str | None, typer.Option("--lab", help="Which one, when several stand.")]


def _topology(
    *,
    hosts: Annotated[int, typer.Option("--hosts", "-n", help="Number of hosts.")] = 2,
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", "-r", help="Ranks on each host.")
    ] = 1,
    rate: Annotated[
        str, typer.Option(help="Line rate of each host's link, each direction.")
    ] = "1gbit",
    slow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another rate for one host, such as 2=100mbit; may be repeated."),
    ] = None,
    racks: Annotated[int, typer.Option(help="Racks; divides the hosts evenly.")] = 1,
    uplink: Annotated[
        str | None,
        typer.Option(help="Rate between a rack and the core; as much as its hosts' otherwise."),
    ] = None,
    placement: Annotated[
        str, typer.Option(help=f"How hosts fill racks: {' or '.join(PLACEMENTS)} between racks.")
    ] = "blocked",
) -> Topology:
    topology = Topology(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        rate_bytes_per_s=_rate("--rate", rate),
        racks=racks,
        uplink_bytes_per_s=None if uplink is None else _rate("--uplink", uplink),
        placement=placement,
    )
    slow = dict(_host_rate(item) for item in slow_host or ())
    return topology.with_host_rates(slow) if slow else topology


def _rate(option: str, text: str) -> float:
    rate = parse_rate(text)
    require_rate(option, rate)
    return rate


def _host_rate(text: str) -> tuple[int, float]:
    host, equals, rate = text.partition("=")
    if not equals or not host.strip().isdecimal():
        raise InvalidValueError("--slow-host", text, "HOST=RATE, such as 2=100mbit")
    return int(host), _rate("--slow-host", rate)


@lab.command(context_settings=_COMMAND)
@grouped(topology=_topology)
def run(
    *,
    topology: Topology,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What every rank runs.")],
    counters: Annotated[
        bool, typer.Option("--counters", help="Print the bytes that each link carried.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write how ranks ended and bytes per link; - prints."
        ),
    ] = None,
    cluster_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the emulated cluster, nominal figures; - prints it."
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds the other ranks may go on after one failed.")
    ] = 10.0,
) -> None:
    """Run COMMAND on every rank of an emulated cluster, with torchrun's environment variables.

    Hosts are named host0, host1, ...; their link is eth0. Ctrl-C goes to every rank. The exit
    code is that of the rank that failed first, 128 + n after signal n.

    For example:

      syncopate lab run --hosts 4 -- python train.py

      syncopate lab run -n 4 -r 2 --rate 10gbit --racks 2 --uplink 4gbit -- python train.py

      syncopate lab run -n 4 --slow-host 2=100mbit --counters -- syncopate calibrate
    """
    from syncopate.lab.lab import Lab, LabReport
    from syncopate.lab.network import since

    require_outputs(False, ("--json", json), ("--cluster-out", cluster_out))
    piped = json if is_standard_output(json) else cluster_out
    with Lab(topology) as lab:
        if cluster_out is not None:
            lab.cluster().save(cluster_out)
        before = lab.counters()
        # The ranks' own output makes room, too.
        with redirect_stdout(sys.stderr) if is_standard_output(piped) else nullcontext():
            outcome = lab.run(command, grace_s=grace)
        links = since(before, lab.counters())
    if counters:
        _print_links(links, piped)
    if json is not None:
        report = LabReport(topology=topology, command=tuple(command), outcome=outcome, links=links)
        report.save(json)
    say_written(cluster_out, json)
    style = "red" if outcome.exit_code else "dim"
    remark(f"lab of {topology.describe()}: {outcome.summary()}", style)
    raise typer.Exit(outcome.exit_code)


@lab.command()
@grouped(topology=_topology)
def up(*, topology: Topology) -> None:
    """Make a lab that stands until `lab down`, and say how to use it.

    For example:

      syncopate lab up --hosts 4 --rate 1gbit
    """
    from syncopate.lab.lab import Lab

    with Lab(topology, standing=True) as standing:
        out().print(standing.run_id)
    remark(
        f"{topology.describe()}; try `syncopate lab exec host0 -- bash`, end it with "
        f"`syncopate lab down {standing.run_id}`"
    )


@lab.command("exec", context_settings=_COMMAND)
def execute(
    *,
    host: Annotated[str, typer.Argument(metavar="HOST", help="Such as host0.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run there.")],
    lab_id: _LabId = None,
) -> None:
    """Run COMMAND on one host of a standing lab.

    For example:

      syncopate lab exec host0 -- bash

      syncopate lab exec host1 -- torchrun --nnodes 2 --node-rank 1 --master-addr host0 train.py
    """
    from syncopate.lab import support
    from syncopate.lab.ranks import host_environment, launch_command, require_command
    from syncopate.lab.state import standing

    support.require()
    if command[0] == "--":
        command = command[1:]
    state = standing(lab_id)
    number = re.fullmatch(r"host([0-9]+)", host)
    if number is None or int(number[1]) >= state.topology.hosts:
        raise InvalidValueError("HOST", host, f"in host0..host{state.topology.hosts - 1}")
    require_command(command)
    line = launch_command(state.run_id, state.topology, int(number[1]), command, parent=0)
    os.execve(line[0], line, host_environment(state.run_id, os.environ))


@lab.command()
def show() -> None:
    """List the labs on this machine: running, standing, and dead ones that `lab clean` removes.

    For example:

      syncopate lab show
    """
    from syncopate.lab.state import recorded
    from syncopate.reports.tables import ReportTable

    table = ReportTable("lab", "status", "owner", "topology", box=None)
    for state, status in recorded():
        owner = f"pid {state.owner_pid}" if status == "running" else ""
        table.add_row(state.run_id, status, owner, state.topology.describe())
    if table.row_count:
        out().print(table)
    else:
        remark("no labs")


@lab.command()
def down(
    *,
    lab_id: Annotated[
        str | None, typer.Argument(metavar="[LAB]", help="Which one, when several stand.")
    ] = None,
) -> None:
    """Take down a standing lab, and end all that still runs in it.

    For example:

      syncopate lab down
    """
    from syncopate.lab import support
    from syncopate.lab.lab import take_down
    from syncopate.lab.state import standing

    support.require()
    state = standing(lab_id)
    take_down(state.run_id, state.topology)
    remark(f"took down {state.run_id}")


@lab.command()
def clean() -> None:
    """Remove what runs left behind that were killed; leave running and standing labs alone.

    For example:

      syncopate lab clean
    """
    from syncopate.lab import state, support

    support.require()
    removed = state.clean()
    remark(f"removed {', '.join(removed)}" if removed else "nothing to remove")


def _print_links(links: tuple[LinkCounter, ...], beside: Path | None) -> None:
    from syncopate.reports.tables import ReportTable

    table = ReportTable("link", box=None)
    for name in ("sent", "bytes sent", "received", "bytes received"):
        table.add_column(name, justify="right")
    for link in links:
        sent, received = format_bytes(link.tx_bytes), format_bytes(link.rx_bytes)
        table.add_row(link.name, sent, str(link.tx_bytes), received, str(link.rx_bytes))
    out(beside).print(table)

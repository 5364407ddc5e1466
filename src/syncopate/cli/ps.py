"""``syncopate ps``: the scheduler and the servers of a parameter server, or all of it here."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.common.console import remark, show
from syncopate.cli.common.options import grouped
from syncopate.cli.common.ranks import take_ports
from syncopate.errors import InvalidValueError
from syncopate.metrics.place import VARIABLE, place_of
from syncopate.paramserver.job import UPDATERS, Job, job_from, updaters_from
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import ON_WORKER_LOSS, WAIT
from syncopate.units import parse_bytes

ps = typer.Typer(
    name="ps",
    help="Run a parameter server: a scheduler, servers, and workers that are your script.",
    epilog="Options that are left out come from the DMLC_ variables that launchers set.",
    no_args_is_help=True,
)

_COMMAND = {"allow_interspersed_args": False}

_Servers = Annotated[int | None, typer.Option("--servers", help="Number of servers.")]
_Workers = Annotated[int | None, typer.Option("--workers", help="Number of workers.")]
_LocalServers = Annotated[int, typer.Option("--servers", help="Number of servers.")]
_LocalWorkers = Annotated[int, typer.Option("--workers", help="Number of workers.")]
_Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The job's key: encrypts, and keeps others out."),
]


def _place(
    *,
    host: Annotated[
        str | None, typer.Option("--host", help="Host or address of the scheduler.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the scheduler.")] = None,
    servers: _Servers = None,
    workers: _Workers = None,
    job_name: Annotated[
        str | None, typer.Option("--job", help="Name of the job; others are refused.")
    ] = None,
    key: _Key = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses that are not local without a key.")
    ] = False,
) -> dict[str, object]:
    """Return what the options say, by the name of the job's field."""
    given: dict[str, object] = {"uri": host, "port": port, "servers": servers, "workers": workers}
    given |= {"name": job_name, "key": key, "insecure": insecure or None}
    return {name: value for name, value in given.items() if value is not None}


def _metrics(
    *,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Publish Prometheus metrics: a port of this machine, host:port, or a directory.",
        ),
    ] = None,
) -> None:
    """Take note of where metrics are to be had; every part of a process looks there."""
    if metrics is not None:
        place_of(metrics, "--metrics")
        os.environ[VARIABLE] = metrics


def _limits(
    *,
    silence: Annotated[
        float, typer.Option(help="Seconds of silence after which a process is lost.")
    ] = 6.0,
    join: Annotated[float, typer.Option(help="Seconds to wait for all to come.")] = 300.0,
    restart: Annotated[
        float, typer.Option(help="Seconds in which a lost server with state may come back.")
    ] = 60.0,
    max_payload: Annotated[str, typer.Option(help="Largest payload that is accepted.")] = "64MiB",
) -> Limits:
    payload_bytes = parse_bytes(max_payload)
    if payload_bytes < 1:
        raise InvalidValueError("--max-payload", max_payload, "at least 1 byte")
    return Limits(
        heartbeat_s=min(Limits().heartbeat_s, silence / 4),
        silence_s=silence,
        join_s=join,
        restart_s=restart,
        payload_bytes=payload_bytes,
        slice_bytes=min(Limits().slice_bytes, payload_bytes),
    ).require_valid()


@ps.command()
@grouped(place=_place, limits=_limits, metrics=_metrics)
def scheduler(
    *,
    place: dict[str, object],
    limits: Limits,
    metrics: None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Keep the run here, to go on after a crash."),
    ] = None,
) -> None:
    """Run the scheduler of a job, to the job's end.

    A scheduler that is killed and started again at its address with the same --state goes on where
    it was; the others wait for it as long as for a server (--restart).

    For example:

      syncopate ps scheduler --host 10.0.0.1 --servers 2 --workers 4 --key job.key
    """
    from syncopate.paramserver.scheduler import Scheduler

    job = _job("scheduler", place)

    def show(here: dict[str, int], complete: bool) -> None:
        count = (
            f"{here['server']} of {job.servers} servers, "
            f"{here['worker']} of {max(job.workers, here['worker'])} workers"
        )
        remark(f"scheduler at {job.uri}:{job.port}: {count}{'' if complete else ', waiting'}")

    Scheduler(job, limits, state=state).run(show)


def _allow(names: list[str] | None) -> list[str] | None:
    """Take note of classes that servers may import; every server looks there."""
    if names:
        os.environ[UPDATERS] = ",".join((*updaters_from(os.environ), *names))
    return names


_Updaters = Annotated[
    list[str] | None,
    typer.Option(
        "--updater",
        callback=_allow,
        metavar="MODULE:CLASS",
        help="A class that workers may ask servers to import and update by; may be repeated.",
    ),
]


@ps.command()
@grouped(place=_place, limits=_limits, metrics=_metrics)
def server(
    *,
    place: dict[str, object],
    limits: Limits,
    metrics: None,
    updater: _Updaters = None,
    own_host: Annotated[
        str | None, typer.Option("--own-host", help="Where the others reach this server.")
    ] = None,
    own_port: Annotated[
        int, typer.Option("--own-port", help="Port of this server; 0: any free one, of --ports.")
    ] = 0,
    ports: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Ports to take a free one of, for firewalls."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Keep state here, to go on after a crash."),
    ] = None,
) -> None:
    """Run one server of a job, to the job's end.

    A server that is killed and started again with the same --state goes on where it was; the
    workers notice nothing but the pause.

    For example:

      syncopate ps server --host 10.0.0.1 --key job.key --state /var/lib/train/server-0
    """
    from syncopate.paramserver.server import ParameterServer
    from syncopate.paramserver.wire.faults import faults_from

    take_ports(ports)
    job = _job("server", place | ({} if own_host is None else {"host": own_host}))
    ParameterServer(
        job,
        port=own_port,
        state=state,
        limits=limits,
        faults=faults_from(os.environ),
        updaters=updaters_from(os.environ),
    ).run()


_OnWorkerLoss = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(ON_WORKER_LOSS)}: what a lost worker means to the others, instead of "
        "what the script's rules say."
    ),
]


@ps.command(context_settings=_COMMAND)
def local(
    *,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="What every worker runs.")
    ],
    servers: _LocalServers = 1,
    workers: _LocalWorkers = 2,
    key: _Key = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Keep scheduler's and servers' state here."),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            help="How often to start again what dies: scheduler and servers with --state, workers "
            "with --on-worker-loss wait."
        ),
    ] = 0,
    on_worker_loss: _OnWorkerLoss = None,
    updater: _Updaters = None,
) -> None:
    """Run scheduler, servers and workers on this machine.

    When a process fails the others are stopped, and its exit code is this command's. With
    --on-worker-loss continue the others go on without a worker that dies, and with wait they wait
    until it is started again (--restarts).

    For example:

      syncopate ps local --servers 2 --workers 4 -- python train.py
    """
    from syncopate.paramserver.launch import LocalJob

    if restarts and state is None and on_worker_loss != WAIT:
        rule = "0 without --state or --on-worker-loss wait"
        raise InvalidValueError("--restarts", restarts, rule)
    if restarts < 0:
        raise InvalidValueError("--restarts", restarts, "0 or more")
    # No other process on this machine knows the name, and so none joins.
    name = f"local-{secrets.token_hex(16)}"
    loss = on_worker_loss or ""
    job = Job(
        servers=servers, workers=workers, key=key, name=name, on_worker_loss=loss
    ).require_valid()
    running = LocalJob(job, command, state=state, restarts=restarts)
    remark(
        f"parameter server on this machine: {job.servers} servers, {job.workers} workers, "
        f"scheduler at port {running.job.port}"
    )
    ended = running.run(remark)
    if ended.exit_code:
        remark(f"{ended.who} ended with exit code {ended.exit_code}; its last lines:", "red")
        for line in ended.last_lines:
            remark(f"  {line}", "red")
    raise typer.Exit(ended.exit_code)


@ps.command()
def status(
    *,
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST:PORT]", help="The scheduler; otherwise as the DMLC_ variables say."
        ),
    ] = None,
    job_name: Annotated[str | None, typer.Option("--job", help="Name of the job.")] = None,
    key: _Key = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that is not local without a key.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Ask the scheduler of a job who is there, how far each is, and who is silent.

    For example:

      syncopate ps status 10.0.0.1:9091 --key job.key

      syncopate ps status --json
    """
    from syncopate.paramserver.status import status as asked

    given: dict[str, object] = {"name": job_name, "key": key, "insecure": insecure or None}
    role = os.environ.get("DMLC_ROLE", "scheduler")
    told = {name: value for name, value in given.items() if value is not None}
    if address is not None:
        there = Job().at(address)
        told |= {"uri": there.uri, "port": there.port}
    show(asked(_job(role, told)), json)


@ps.command("key")
def make_key(
    *, path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that is not there yet.")]
) -> None:
    """Make a job key: copy it to every host of the job, and keep it secret.

    For example:

      syncopate ps key job.key
    """
    from syncopate.paramserver.wire import security

    security.make_key(path)
    remark(f"wrote {path}")


def _job(role: str, given: dict[str, object]) -> Job:
    import msgspec

    return msgspec.structs.replace(job_from(os.environ, role), **given).require_valid()

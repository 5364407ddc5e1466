"""Job: where the scheduler is and how many take part, as MXNet's launchers tell it.

================================  ==================================================================
variable                          what it says
================================  ==================================================================
``DMLC_ROLE``                     ``scheduler``, ``server`` or ``worker``
``DMLC_PS_ROOT_URI``              the scheduler's host
``DMLC_PS_ROOT_PORT``             the scheduler's port
``DMLC_NUM_SERVER``               how many servers
``DMLC_NUM_WORKER``               how many workers
``DMLC_NODE_HOST``                a server's own address, where the others reach it
``DMLC_RANK``                     the rank that a server or worker wants; else a worker wants
                                  ``RANK``, as torchrun sets it; else by arrival
``SYNCOPATE_PS_JOB``              the job's name; processes of another job are refused
``SYNCOPATE_PS_KEY``              the job's key file: everything is encrypted, no other is let in
``SYNCOPATE_PS_INSECURE``         ``1``: no key is asked for where addresses are not local
``SYNCOPATE_PS_UPDATERS``         classes that a server may import, with commas between them
``SYNCOPATE_PS_ON_WORKER_LOSS``   ``abort``, ``continue`` or ``wait``, overrides scripts
================================  ==================================================================

torchrun also says how often it has started its workers again, and how often it does so at most
(``TORCHELASTIC_RESTART_COUNT``, ``TORCHELASTIC_MAX_RESTARTS``).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.paramserver.wire.addresses import endpoint, is_local
from syncopate.protocol.membership.launch import ONCE, Launch
from syncopate.protocol.rules import ABORT, CLOSED, ON_WORKER_LOSS, Opens, Rules

ROLES = ("scheduler", "server", "worker")

UPDATERS = "SYNCOPATE_PS_UPDATERS"
"""The variable that names the classes that a server may import."""

_LOCAL = "127.0.0.1"
_PORT = 9091


def updaters_from(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that :data:`UPDATERS` allows."""
    return tuple(name for name in environment.get(UPDATERS, "").split(",") if name)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as each of its processes knows it.

    Attributes:
        uri: the scheduler's host name or address.
        port: the scheduler's port.
        servers: how many.
        workers: how many.
        name: of the job.
        host: this process's own address; empty: found out.
        rank: the rank it wants; -1: any.
        key: the job's key file; None: nothing is encrypted.
        insecure: whether no key is needed where addresses are not local.
        launch: what a worker's launcher says.
        on_worker_loss: what a lost worker means, instead of what the workers' rules say; empty: as
            they say.
        opens: which places a worker's rules open to processes that come while the job runs.
    """

    uri: str = _LOCAL
    port: int = _PORT
    servers: int = 1
    workers: int = 1
    name: str = "syncopate"
    host: str = ""
    rank: int = -1
    key: Path | None = None
    insecure: bool = False
    launch: Launch = ONCE
    on_worker_loss: str = ""
    opens: Opens = CLOSED

    @property
    def scheduler(self) -> str:
        """Where the scheduler is, as ZeroMQ writes it."""
        return endpoint(self.uri, self.port)

    def at(self, address: str) -> Job:
        """Return this job with its scheduler at ``address``, as ``HOST:PORT``.

        Raises:
            InvalidValueError: it is no such address.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidValueError("HOST:PORT", address, "such as 10.0.0.1:9091")
        bare = host.removeprefix("[").removesuffix("]")
        return msgspec.structs.replace(self, uri=bare, port=int(port))

    def require_valid(self) -> Job:
        """Return this job.

        Raises:
            InvalidValueError: a number is out of range, or a key is missing.
            UnknownNameError: no such way to go on after a loss.
        """
        if self.on_worker_loss and self.on_worker_loss not in ON_WORKER_LOSS:
            raise UnknownNameError("on_worker_loss", self.on_worker_loss, ON_WORKER_LOSS)
        for what, count in (("servers", self.servers), ("workers", self.workers)):
            if not 0 < count < 2**16:
                raise InvalidValueError(what, count, "at least 1 and less than 65536")
        if not 0 < self.port < 2**16:
            raise InvalidValueError("port", self.port, "from 1 to 65535")
        if not -1 <= self.rank < 2**16:
            rule = "at least 0 and less than 65536, or -1 for any"
            raise InvalidValueError("rank", self.rank, rule)
        if self.key is None and not self.insecure:
            for host in (self.uri, self.host):
                if host and not is_local(host):
                    rule = "local without a key: give --key FILE (made by `syncopate ps key FILE`)"
                    raise InvalidValueError("address", host, f"{rule}, or --insecure")
        return self

    def told(self, rules: Rules) -> Rules:
        """Return the rules that a worker declares, which a script gave as ``rules``."""
        if not isinstance(rules, Rules):
            rule = "syncopate.protocol.rules.Rules, such as Rules(mode='asgd')"
            raise InvalidValueError("rules", rules, rule)
        loss = self.on_worker_loss or rules.on_worker_loss
        return msgspec.structs.replace(rules, on_worker_loss=loss)

    def under(self, rules: Rules) -> Job:
        """Return this job as a worker with ``rules`` joins it.

        Where others go on without a lost worker, they do not wait until it is started again; nor
        does the job begin again where another process takes its place.
        """
        if rules.on_worker_loss == ABORT:
            return self
        loss = rules.on_worker_loss
        return msgspec.structs.replace(self, launch=ONCE, opens=rules.opens, on_worker_loss=loss)

    def environment(self, role: str) -> dict[str, str]:
        """Return the variables from which a process of ``role`` reads this job."""
        given = {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.uri,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_SERVER": str(self.servers),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NODE_HOST": self.host,
            "SYNCOPATE_PS_JOB": self.name,
        }
        if self.rank >= 0:
            given["DMLC_RANK"] = str(self.rank)
        if self.key is not None:
            given["SYNCOPATE_PS_KEY"] = str(self.key)
        if self.insecure:
            given["SYNCOPATE_PS_INSECURE"] = "1"
        if self.on_worker_loss:
            given["SYNCOPATE_PS_ON_WORKER_LOSS"] = self.on_worker_loss
        return given


def job_from(environment: Mapping[str, str], role: str) -> Job:
    """Return the job that ``environment`` describes to a process of ``role``.

    Raises:
        UnknownNameError: ``DMLC_ROLE`` is no role.
        InvalidValueError: it is another role, or a variable has a value that it may not have.
    """
    said = environment.get("DMLC_ROLE", role)
    if said not in ROLES:
        raise UnknownNameError("role", said, ROLES, "DMLC_ROLE")
    if said != role:
        raise InvalidValueError("DMLC_ROLE", said, f"{role!r} for this process, or not set")
    key, worker = environment.get("SYNCOPATE_PS_KEY"), role == "worker"
    return Job(
        uri=environment.get("DMLC_PS_ROOT_URI", _LOCAL),
        port=_number(environment, "DMLC_PS_ROOT_PORT", _PORT),
        servers=_number(environment, "DMLC_NUM_SERVER", 1),
        workers=_number(environment, "DMLC_NUM_WORKER", 1),
        name=environment.get("SYNCOPATE_PS_JOB", "syncopate"),
        host=environment.get("DMLC_NODE_HOST", ""),
        rank=_number(environment, "DMLC_RANK", _number(environment, "RANK", -1) if worker else -1),
        key=Path(key) if key else None,
        insecure=environment.get("SYNCOPATE_PS_INSECURE", "0") != "0",
        launch=Launch(
            _number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
            _number(environment, "TORCHELASTIC_MAX_RESTARTS", 0),
        )
        if worker
        else ONCE,
        on_worker_loss=environment.get("SYNCOPATE_PS_ON_WORKER_LOSS", ""),
    )


def own_host(job: Job) -> str:
    """Return the address at which the others reach this process: that on the way to the scheduler.

    Raises:
        InvalidValueError: the scheduler's host name has no address.
    """
    if job.host:
        return job.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            job.uri, job.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        rule = f"a host that can be reached ({error.strerror or error})"
        raise InvalidValueError("DMLC_PS_ROOT_URI", job.uri, rule) from None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if not text:
        return default
    if not text.isdecimal():
        raise InvalidValueError(name, text, "a whole number")
    return int(text)

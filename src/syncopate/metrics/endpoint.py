"""Endpoint: the metrics of this process, served over HTTP or written to a file.

There is at most one in a process: a rank that is also a worker of a
parameter server has the figures of both. It has a thread of its own, and a caller that says nothing
keeps no other waiting for longer than seconds.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.metrics.place import VARIABLE, Place, Port, place_of
from syncopate.metrics.prometheus import CONTENT_TYPE, Metric, rendered
from syncopate.output import new_directory, write_output

PATH = "/metrics"
"""Where they are, below the address."""

EVERY_S = 5.0
"""How often a file is written."""

_CALLER_S = 3.0
"""How long a caller may take to say what it wants."""

Source = Callable[[], Iterable[Metric]]
"""Returns what one part of the process says now; any thread may call it."""

_log = logging.getLogger("syncopate")


class Endpoint:
    """Metrics of this process at one place.

    Args:
        place: where.
        name: of the process, for its file: ``"rank-0"``.

    Attributes:
        address: the URL or the file.

    Raises:
        InvalidValueError: the port is taken, or no address of this machine.
        ArtifactError: the directory cannot be written to.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._sources: list[Source] = []
        self._ends = threading.Event()
        self._server: HTTPServer | None = None
        self._process = os.getpid()
        self._file: Path | None = None
        self._complained = False
        if isinstance(place, Port):
            self._server = _listening(place, self.text)
            host, port = self._server.server_address[:2]
            self.address = f"http://{_written(str(host))}:{port}{PATH}"
            target: Callable[[], None] = self._server.serve_forever
        else:
            self._file = new_directory(place) / f"{name}.prom"
            self.address = str(self._file)
            target = self._write_on
        self._thread = threading.Thread(target=target, name="syncopate-metrics", daemon=True)
        self._thread.start()

    def add(self, source: Source) -> None:
        """Publish what ``source`` says, too."""
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        """Publish that no more; a file has what it said last."""
        if source in self._sources:
            self._write()
            self._sources.remove(source)

    def text(self) -> bytes:
        """Return what all sources say now."""
        return rendered(metric for source in list(self._sources) for metric in source())

    def close(self) -> None:
        """Publish no more; a file stays, as it was last."""
        if self._ends.is_set() or os.getpid() != self._process:
            return
        self._ends.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._thread.join()

    def _write_on(self) -> None:
        while not self._ends.wait(EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        """Write the file, where there is one and something to say."""
        if self._file is None or not self._sources:
            return
        try:
            write_output(self._file, self.text())
        except SyncopateError as error:
            if not self._complained:
                _log.warning("%s: %s", VARIABLE, error)
            self._complained = True


def _listening(place: Port, text: Callable[[], bytes]) -> HTTPServer:
    """Return a server of metrics that listens, and answers when it is let.

    Raises:
        InvalidValueError: it cannot listen there.
    """

    class Answer(BaseHTTPRequestHandler):
        """Answers one caller."""

        timeout = _CALLER_S

        def do_GET(self) -> None:
            """Say the metrics."""
            if self.path.partition("?")[0] not in (PATH, "/"):
                self.send_error(404, f"only {PATH} is here")
                return
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: a fetch every few seconds is usual."""

    class Server(HTTPServer):
        """Knows both versions of IP, and says nothing of callers that hang up."""

        address_family = socket.AF_INET6 if ":" in place.host else socket.AF_INET

        def handle_error(self, *_: object) -> None:
            """Let a caller go."""

        def server_bind(self) -> None:
            """Bind, and look no name up, which may take long."""
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()

    try:
        return Server((place.host, place.port), Answer)
    except OSError as error:
        rule = f"a free port of an address of this machine ({error.strerror or error})"
        raise InvalidValueError("metrics", f"{place.host}:{place.port}", rule) from None


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_current: list[Endpoint] = []


@atexit.register
def _end() -> None:
    for one in _current:
        one.close()


def endpoint(place: Place, name: str) -> Endpoint:
    """Return the endpoint of this process, begun where there is none.

    Raises:
        InvalidValueError, ArtifactError: as :class:`Endpoint`.
    """
    if _current and _current[0]._process != os.getpid():
        _current.clear()  # the thread of the process that this is a copy of is not here
    if not _current:
        _current.append(Endpoint(place, name))
        _log.info("metrics: %s", _current[0].address)
    return _current[0]


def wanted(environment: Mapping[str, str], name: str) -> Endpoint | None:
    """Return the endpoint that the environment asks for; None: it asks for none.

    What is asked for and cannot be had is logged: others wait for this process.

    Args:
        environment: :data:`~syncopate.metrics.place.VARIABLE` says where; the rank's number on its
            host is added to a port.
        name: of the process, for its file.
    """
    given = environment.get(VARIABLE, "")
    if not given:
        return None
    try:
        return endpoint(place_of(given, VARIABLE, local_rank(environment)), name)
    except SyncopateError as error:
        _log.warning("%s; no metrics are published", error)
        return None


def local_rank(environment: Mapping[str, str]) -> int:
    """Return the number of this rank on its host; 0 where no launcher says it."""
    text = environment.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else 0

"""Streams: what plain TCP sockets reach between the same hosts, the ceiling in practice.

Each stream goes from one host to the next over one connection, in a thread of its own, without
torch. All hosts of a lab read one clock, so a stream lasts from its first byte sent to its last
received.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

from syncopate.collectives import Communicator

from .results import Stream
from .timing import Effort

_CHUNK_BYTES = 1 << 20
_LIMIT_S = 60.0


class Ring:
    """One connection from every host to the next; every rank makes it, one rank per host."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        with socket.create_server(("", 0)) as server:
            server.settimeout(_LIMIT_S)
            mine = (socket.gethostname(), server.getsockname()[1])
            everyone = communicator.all_gather_object(mine)
            following = everyone[(communicator.rank + 1) % communicator.world_size]
            self._right = socket.create_connection(following, timeout=_LIMIT_S)
            self._left, _ = server.accept()
        self._left.settimeout(_LIMIT_S)
        self._chunk = memoryview(bytes(_CHUNK_BYTES))
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def close(self) -> None:
        """Close both connections."""
        self._right.close()
        self._left.close()

    def measure(self, sizes: Sequence[int], effort: Effort) -> tuple[Stream, ...]:
        """Return streams of every size: host 0 to host 1 alone, and every host to the next."""
        found = []
        for nbytes in (size for size in sizes if size <= effort.largest_bytes):
            for everyone in (False, True):
                self._stream(nbytes, everyone)
                samples = [self._stream(nbytes, everyone) for _ in range(effort.fewest)]
                found.append(Stream(nbytes=nbytes, everyone=everyone, samples_s=tuple(samples)))
        return tuple(found)

    def _stream(self, nbytes: int, everyone: bool) -> float:
        """Return how long the slowest stream took, the same on all ranks."""
        communicator = self._communicator
        sends = everyone or communicator.rank == 0
        receives = everyone or communicator.rank == 1
        communicator.barrier()
        begin_s = time.perf_counter()
        sender = threading.Thread(target=self._send, args=(nbytes,)) if sends else None
        if sender:
            sender.start()
        if receives:
            self._receive(nbytes)
        end_s = time.perf_counter()
        if sender:
            sender.join()
        times = communicator.all_gather_object((begin_s, end_s))
        receivers = range(len(times)) if everyone else (1,)
        return max(times[to][1] - times[to - 1][0] for to in receivers)

    def _send(self, nbytes: int) -> None:
        while nbytes > 0:
            self._right.sendall(self._chunk[: min(nbytes, _CHUNK_BYTES)])
            nbytes -= _CHUNK_BYTES

    def _receive(self, nbytes: int) -> None:
        while nbytes > 0:
            got = self._left.recv_into(self._buffer[: min(nbytes, _CHUNK_BYTES)])
            if not got:
                raise ConnectionError("the host before closed its stream")
            nbytes -= got

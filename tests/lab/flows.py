"""A program for the ranks of a lab: TCP flows between ranks, timed where they arrive.

``python flows.py BYTES SRC>DST...``; each receiver prints ``SRC>DST first last bytes``: when its
flow began and ended, on the clock that all ranks of a lab share, and what came in between.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_PORT = 6000
_HANGS_S = 600.0  # it imports nothing of the tests
_CHUNK_BYTES = 1 << 18


def send(flow: int, host: int, nbytes: int) -> None:
    """Send ``nbytes`` to a host, which may not listen yet."""
    deadline_s = time.monotonic() + _HANGS_S
    while True:
        try:
            connection = socket.create_connection((f"host{host}", _PORT + flow), timeout=30)
            break
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
    data = memoryview(bytes(_CHUNK_BYTES))
    with connection:
        while nbytes > 0:
            nbytes -= connection.send(data[: min(nbytes, _CHUNK_BYTES)])


def receive(flow: int, name: str) -> None:
    """Take one flow and print when it came."""
    with socket.create_server(("", _PORT + flow)) as server:
        connection, _ = server.accept()
    buffer = bytearray(_CHUNK_BYTES)
    connection.recv_into(buffer)
    begin_s = time.monotonic()
    total = 0
    while got := connection.recv_into(buffer):
        total += got
    print(name, begin_s, time.monotonic(), total, flush=True)


def main() -> None:
    """Run this rank's part of every flow at once."""
    rank, per_host = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    nbytes, flows = int(sys.argv[1]), sys.argv[2:]
    threads = []
    for number, flow in enumerate(flows):
        src, dst = map(int, flow.split(">"))
        if rank == src:
            threads.append(threading.Thread(target=send, args=(number, dst // per_host, nbytes)))
        if rank == dst:
            threads.append(threading.Thread(target=receive, args=(number, flow)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

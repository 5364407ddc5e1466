"""The mesh: real TCP connections between threads that stand for ranks."""

from __future__ import annotations

import itertools
import mmap
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncopate.collectives.health.blame import PeerError
from syncopate.collectives.mesh import links
from syncopate.collectives.mesh.links import Mesh
from syncopate.collectives.transport import failure_kind
from tests.children import HANGS_S

LONG = 16 << 20
"""Bytes that fit into no socket's buffer."""

BEYOND_32_BITS = (1 << 32) + 5
"""Bytes whose number does not fit into 32 bits."""


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


@pytest.fixture
def ranks() -> Iterator[Callable[..., list[Mesh]]]:
    made: list[Mesh] = []

    def make(world_size: int, timeout_s: float = 30.0) -> list[Mesh]:
        connections: list[dict[int, socket.socket]] = [{} for _ in range(world_size)]
        for a, b in itertools.combinations(range(world_size), 2):
            connections[a][b], connections[b][a] = connected()
        made.extend(Mesh(of_rank, timeout_s) for of_rank in connections)
        return made

    yield make
    for each in made:
        each.close()


def view(value: int, nbytes: int = 8) -> memoryview:
    return memoryview(bytearray([value]) * nbytes)


def test_a_message_arrives_under_its_tag(ranks: Callable[..., list[Mesh]]) -> None:
    a, b = ranks(2)
    for tag in (1, 2, 3):
        a.send(view(tag), 1, tag).wait()
    third, first, second = view(0), view(0), view(0)
    b.receive(third, 0, 3).wait()
    waiting = b.receive(second, 0, 2)
    b.receive(first, 0, 1).wait()
    waiting.wait()
    assert (first[0], second[0], third[0]) == (1, 2, 3)


def test_messages_with_one_tag_keep_their_order(ranks: Callable[..., list[Mesh]]) -> None:
    a, b = ranks(2)
    places = [view(0) for _ in range(5)]
    early = [b.receive(place, 0, 7) for place in places[:2]]
    for value in range(1, 6):
        a.send(view(value), 1, 7).wait()
    a.send(view(9), 1, 8).wait()
    b.receive(view(0), 0, 8).wait()  # reads past all the others
    for message in early:
        message.wait()
    for place in places[2:]:
        b.receive(place, 0, 7).wait()
    assert [place[0] for place in places] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_no_ring_of_ranks_waits_for_itself(
    world_size: int, ranks: Callable[..., list[Mesh]]
) -> None:
    everyone = ranks(world_size)

    def rank(me: int) -> list[int]:
        landed = [view(0, LONG) for _ in range(2)]
        before, after = (me - 1) % world_size, (me + 1) % world_size
        sends = [everyone[me].send(view(me + 1, LONG), after, tag) for tag in (0, 1)]
        receives = [everyone[me].receive(place, before, tag) for tag, place in enumerate(landed)]
        for message in (*reversed(receives), *sends):
            message.wait()
        return [place[0] for place in landed] + [place[-1] for place in landed]

    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(rank, range(world_size)))
    assert results == [[(me - 1) % world_size + 1] * 4 for me in range(world_size)]


def test_a_long_send_is_over_when_the_other_side_has_read(
    ranks: Callable[..., list[Mesh]],
) -> None:
    a, b = ranks(2)
    message = a.send(view(5, LONG), 1, 0)
    landed = view(0, LONG)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(b.receive(landed, 0, 0).wait)
        message.wait()
        reading.result()
    assert landed == view(5, LONG)


@pytest.mark.parametrize("nbytes", [64 << 10, (64 << 10) + 1, (1 << 20) - 1, (5 << 20) + 3])
@pytest.mark.parametrize("busy", [False, True])
def test_a_message_that_comes_in_pieces_is_read_to_its_end(
    nbytes: int, busy: bool, ranks: Callable[..., list[Mesh]]
) -> None:
    """Whatever one waits for at a time, the last piece may be shorter; see [Note: low water]."""
    a, b = ranks(2)
    if busy:
        b.send(view(9, LONG), 0, 7)
    content = memoryview(bytes(i % 251 for i in range(nbytes)))
    landed, short = view(0, nbytes), view(0)

    def trickle() -> None:
        raw = a._links[1].socket
        whole = memoryview(links._HEADER.pack(3, nbytes) + content)
        for begin in range(0, len(whole), 300_000):
            raw.sendall(whole[begin : begin + 300_000])
            time.sleep(0.002)
        a.send(view(4), 1, 3)

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(trickle)
        b.receive(landed, 0, 3).wait()
        b.receive(short, 0, 3).wait()
        sender.result()
    assert landed == content
    assert short == view(4)


@pytest.mark.parametrize("early", [False, True])
def test_another_length_is_refused(early: bool, ranks: Callable[..., list[Mesh]]) -> None:
    a, b = ranks(2)
    a.send(view(1, 8), 1, 0).wait()
    if early:
        a.send(view(2, 8), 1, 1).wait()
        b.receive(view(0, 8), 0, 1).wait()  # reads past the other
    with pytest.raises(RuntimeError, match=r"rank 0 sent 8 bytes where 12 were expected"):
        b.receive(view(0, 12), 0, 0).wait()


def test_a_message_of_more_than_4_gib_says_its_length(ranks: Callable[..., list[Mesh]]) -> None:
    """Only what the kernel takes at once is sent; memory that is only read takes no room."""
    a, b = ranks(2)
    memory = mmap.mmap(-1, BEYOND_32_BITS, access=mmap.ACCESS_READ)
    with memory, memoryview(memory) as whole:
        for part in a.send(whole, 1, 3).parts:  # type: ignore[attr-defined]
            part.release()
    came = b._links[0].socket.recv(links._HEADER.size, socket.MSG_WAITALL)
    assert links._HEADER.unpack(came) == (3, BEYOND_32_BITS)


def test_a_length_of_more_than_4_gib_is_read_whole(ranks: Callable[..., list[Mesh]]) -> None:
    a, b = ranks(2)
    a._links[1].socket.sendall(links._HEADER.pack(3, BEYOND_32_BITS))
    with pytest.raises(RuntimeError, match=f"sent {BEYOND_32_BITS} bytes where 8 were expected"):
        b.receive(view(0, 8), 0, 3).wait()


def test_a_short_message_where_a_long_one_is_expected_is_refused(
    ranks: Callable[..., list[Mesh]],
) -> None:
    """Though the receiver asked not to be woken before all of the long one is there."""
    a, b = ranks(2)
    a.send(view(1, 100), 1, 7).wait()
    with pytest.raises(RuntimeError, match=f"sent 100 bytes where {1 << 18} were expected"):
        b.receive(view(0, 1 << 18), 0, 7).wait()


def test_a_long_message_wakes_its_receiver_once(
    ranks: Callable[..., list[Mesh]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ranks(2)
    woken = []
    progress = Mesh.progress
    monkeypatch.setattr(
        Mesh, "progress", lambda self, *told: (woken.append(told), progress(self, *told))[1]
    )
    nbytes = 1 << 18
    for value in (1, 2, 3):
        with ThreadPoolExecutor(1) as sender:
            place = view(0, nbytes)
            message = b.receive(place, 0, value)
            sending = sender.submit(lambda v=value: a.send(view(v, nbytes), 1, v))
            message.wait()
            sending.result().wait()
        assert place == view(value, nbytes)
    assert len(woken) < 2 * 3  # a header and a payload would take two each


@pytest.mark.parametrize("pieces", [1, 3, 8, 11, 50])
@pytest.mark.parametrize("unit", [1, 6_000])
def test_a_message_that_is_not_the_one_awaited_is_kept_whole(
    pieces: int, unit: int, ranks: Callable[..., list[Mesh]]
) -> None:
    """It is read to where the awaited one belongs, and moved when its header is known."""
    a, b = ranks(2)
    sizes = {"awaited": 40 * unit, "posted": 12 * unit, "unposted": 5 * unit}
    awaited, posted, unposted = (view(0, nbytes) for nbytes in sizes.values())
    other = b.receive(posted, 0, 2)
    waiting = b.receive(awaited, 0, 3)
    messages = [
        (1, view(1, sizes["unposted"])),
        (2, view(2, sizes["posted"])),
        (3, view(3, sizes["awaited"])),
        (3, view(4, sizes["awaited"])),
    ]
    whole = b"".join(links._HEADER.pack(tag, len(data)) + data for tag, data in messages)
    step = pieces * unit

    def trickle() -> None:
        for begin in range(0, len(whole), step):
            a._links[1].socket.sendall(whole[begin : begin + step])
            time.sleep(0.001)

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(trickle)
        waiting.wait()
        other.wait()
        b.receive(unposted, 0, 1).wait()
        assert (unposted, posted, awaited) == tuple(data for _, data in messages[:3])
        b.receive(awaited, 0, 3).wait()
        sender.result()
    assert awaited == view(4, sizes["awaited"])


def test_a_lost_connection_names_the_rank(ranks: Callable[..., list[Mesh]]) -> None:
    a, b, c = ranks(3)
    c.close()
    for survivor in (a, b):
        with pytest.raises(RuntimeError, match="connection closed by rank 2") as raised:
            survivor.receive(view(0), 2, 0).wait()
        assert failure_kind(raised.value) == "closed"
    with pytest.raises(RuntimeError, match="closed by rank 2"):
        a.send(view(0, LONG), 2, 0).wait()


def test_the_lost_connection_need_not_be_that_of_whom_one_waits_for(
    ranks: Callable[..., list[Mesh]],
) -> None:
    a, b, _ = ranks(3)
    a.send(view(0, LONG), 1, 0)
    b.close()
    with pytest.raises(PeerError, match="closed by rank 1") as raised:
        a.receive(view(0), 2, 0).wait()
    assert raised.value.peer == 1


def test_an_interrupt_wakes_whoever_waits(ranks: Callable[..., list[Mesh]]) -> None:
    a, b = ranks(2)
    kinds = []

    def wait(own: Mesh, peer: int) -> None:
        try:
            own.receive(view(0), peer, 0).wait()
        except RuntimeError as error:
            kinds.append((peer, failure_kind(error)))

    threads = [threading.Thread(target=wait, args=pair) for pair in ((a, 1), (b, 0))]
    for thread in threads:
        thread.start()
    a.interrupt()
    for thread in threads:
        thread.join(HANGS_S)
    assert sorted(kinds) == [(0, "closed"), (1, "interrupted")]


def test_waiting_has_a_limit(ranks: Callable[..., list[Mesh]]) -> None:
    a, _ = ranks(2, timeout_s=0.2)
    with pytest.raises(RuntimeError, match=r"timed out after 0.2 s, waiting for rank 1") as raised:
        a.receive(view(0), 1, 0).wait()
    assert failure_kind(raised.value) == "timeout"
    with pytest.raises(RuntimeError, match="timed out"):
        a.send(view(0, LONG), 1, 0).wait()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it, others do not")
def test_a_mesh_says_what_it_sent_to_whom(ranks: Callable[..., list[Mesh]]) -> None:
    everyone = ranks(3)
    landed = view(0, LONG)
    message = everyone[0].send(view(1, LONG), 2, 0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(everyone[2].receive(landed, 0, 0).wait)
        message.wait()
        reading.result()
    deadline_s = time.monotonic() + HANGS_S
    while everyone[0].sent()[2].nbytes < LONG and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert everyone[0].sent()[2].nbytes >= LONG
    assert everyone[0].sent()[1].nbytes < LONG
    assert everyone[2].sent()[0].nbytes < LONG
    everyone[0].close()
    assert everyone[0].sent() == {}

"""The handshake: threads that stand for ranks connect to each other, strangers among them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncopate.collectives.mesh import admission, sockets
from syncopate.collectives.mesh.admission import Admission, Secret
from syncopate.collectives.mesh.handshake import Address, Met, meet

SECRET = Secret(b"k" * 32)
LIMIT_S = 60.0
"""Of a handshake; one that is delayed would reach the suite's own limit."""


class Ranks:
    """The listeners of some ranks, and the sockets that a test has opened."""

    def __init__(self) -> None:
        self.admissions: list[Admission] = []
        self.addresses: list[Address] = []
        self.opened: list[socket.socket] = []

    def listen(self, world_size: int) -> None:
        for _ in range(world_size):
            listener = sockets.listener("127.0.0.1")
            made = Admission([listener], SECRET, world_size)
            self.admissions.append(made)
            self.addresses.append(Address(*listener.getsockname()[:2], made.nonce))

    def meet(self, limit_s: float = LIMIT_S, secrets: dict[int, Secret] | None = None) -> list[Met]:
        def of(rank: int) -> Met:
            secret = (secrets or {}).get(rank, SECRET)
            return meet(rank, self.addresses, self.admissions[rank], secret, limit_s)

        with ThreadPoolExecutor(len(self.addresses)) as pool:
            met = list(pool.map(of, range(len(self.addresses))))
        self.opened += [found for each in met for found in each.found.values()]
        return met

    def stranger(self, rank: int, said: bytes = b"") -> socket.socket:
        made = socket.create_connection(self.addresses[rank][:2], timeout=10)
        self.opened.append(made)
        made.sendall(said)
        return made


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    for each in made.admissions:
        each.close()
    for opened in made.opened:
        opened.close()


def pairs(met: list[Met]) -> bool:
    """Say whether every two ranks have the two ends of one connection."""
    return all(
        met[a].found[b].getpeername() == met[b].found[a].getsockname()
        for a in range(len(met))
        for b in range(len(met))
        if a != b
    )


@pytest.mark.parametrize("world_size", [2, 5])
def test_every_two_ranks_connect(ranks: Ranks, world_size: int) -> None:
    ranks.listen(world_size)
    met = ranks.meet()
    assert [each.faults for each in met] == [[]] * world_size
    assert pairs(met)


def test_strangers_delay_nobody(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has a minute, as all ranks together have: nobody waits for even one."""
    monkeypatch.setattr(admission, "HELLO_S", LIMIT_S)
    ranks.listen(3)
    other_run = Secret(b"x" * 32)
    for rank in range(3):
        nonce = ranks.addresses[rank].nonce
        for _ in range(5):
            ranks.stranger(rank)
        ranks.stranger(rank, SECRET.hello(nonce, 2)[:-1])
        ranks.stranger(rank, b"GET / HTTP/1.1\r\n\r\n")
        ranks.stranger(rank, other_run.hello(nonce, 2))
    met = ranks.meet()
    assert [each.faults for each in met] == [[]] * 3
    assert pairs(met)
    for made in ranks.admissions:
        assert set(made.refused) <= {
            "said something else than a rank does",
            "a rank of another run",
        }


def test_a_rank_of_another_run_is_no_rank(ranks: Ranks) -> None:
    ranks.listen(3)
    met = ranks.meet(1.0, {2: Secret(b"x" * 32)})
    for rank in (0, 1):
        assert ranks.admissions[rank].refused["a rank of another run"] >= 1
        assert met[rank].faults == [f"rank 2 did not connect to rank {rank}"]
    assert [fault.split(" at ")[0] for fault in sorted(met[2].faults)] == [
        "rank 2 cannot connect to rank 0",
        "rank 2 cannot connect to rank 1",
    ]


def test_a_caller_that_was_cut_off_calls_again(ranks: Ranks) -> None:
    ranks.listen(2)
    first = ranks.admissions[0]
    admit: Callable[[], list] = first.admit
    cut = []

    def once() -> list:
        found = admit()
        if found and not cut:
            cut.append(found.pop())
            cut[0].connection.close()
        return found

    first.admit = once  # type: ignore[method-assign]
    met = ranks.meet()
    assert len(cut) == 1
    assert [each.faults for each in met] == [[], []]
    assert pairs(met)


def test_a_listener_that_does_not_know_the_secret_is_no_rank(ranks: Ranks) -> None:
    ranks.listen(2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        ranks.addresses[0] = Address(*server.getsockname(), b"n" * 16)

        def answer_wrongly() -> None:
            for _ in range(5):
                found, _ = server.accept()
                found.sendall(bytes(32))
                ranks.opened.append(found)

        answering = pool.submit(answer_wrongly)
        met = meet(1, ranks.addresses, ranks.admissions[1], SECRET, LIMIT_S)
        answering.result()
    assert not met.found
    assert met.faults[0].endswith("another program answered")

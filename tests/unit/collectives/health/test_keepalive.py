"""Keep-alive: who is there, who left, who died, who came back; a lab tests silence itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from syncopate.collectives.health import keepalive
from syncopate.collectives.health.keepalive import Hub, KeepAlive, News, Spoke
from syncopate.collectives.mesh import sockets
from syncopate.collectives.mesh.admission import Secret
from syncopate.errors import InvalidValueError
from tests.children import HANGS_S

STORE = ("127.0.0.1", 1)
SECRET = Secret(b"k" * 32)


def spoke(hub: Hub, rank: int) -> Spoke:
    return Spoke(lambda: hub.meeting, rank, 6.0, SECRET)


def comes_true(condition: Callable[[], bool], *ends: KeepAlive) -> bool:
    deadline_s = time.monotonic() + HANGS_S
    while not condition() and time.monotonic() < deadline_s:
        for end in ends:
            end.look()
        time.sleep(0.01)
    return condition()


def lines(hub: Hub) -> int:
    return len(hub._lines)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = Hub(STORE, 6.0, SECRET, 4)
    yield made
    made.close()


@pytest.mark.parametrize("news", [News(left=True), News(failed=True)])
def test_a_rank_that_dies_is_lost_and_one_that_said_that_it_ends_is_not(
    hub: Hub, news: News
) -> None:
    """A rank that failed closes because another died: counting it as dead blames the wrong one."""
    ending, dying = spoke(hub, 1), spoke(hub, 2)
    assert comes_true(lambda: lines(hub) == 2, hub)
    ending.tell(news)
    ending.close()
    dying.close()
    assert comes_true(lambda: lines(hub) == 0, hub)
    assert hub.lost.keys() == {2}
    assert hub.silent == {}


def test_what_a_rank_says_before_it_is_greeted_counts(hub: Hub) -> None:
    leaving, dying = spoke(hub, 1), spoke(hub, 2)
    leaving.tell(News(left=True))
    leaving.close()
    dying.close()
    assert comes_true(lambda: bool(hub.lost) and not lines(hub), hub)
    assert hub.lost[2][0] == socket.gethostname()
    assert hub.lost.keys() == {2}


def test_all_hear_of_a_death(hub: Hub) -> None:
    dying, end = spoke(hub, 1), spoke(hub, 2)
    assert comes_true(lambda: lines(hub) == 2, hub)
    assert hub.connected
    assert end.connected
    dying.close()
    assert comes_true(lambda: bool(end.lost), hub, end)
    assert end.lost[1][0] == socket.gethostname()
    assert not end.news.silent


def test_a_hub_that_comes_late_is_waited_for(hub: Hub) -> None:
    answers = iter([None, None, hub.meeting])
    end = Spoke(lambda: next(answers), 1, 6.0, SECRET)
    assert end.connected


def test_what_is_unread_does_not_take_the_reason_back(hub: Hub) -> None:
    """A kernel resets a connection that is closed with something left to read."""
    end = spoke(hub, 1)
    assert comes_true(lambda: lines(hub) == 1, hub)
    end.tell(News(failed=True))
    hub.tell(News(ranks=(2,), reason="rank 2 was lost"))
    hub.close()
    assert comes_true(lambda: not end.connected, end)
    assert end.news.reason == "rank 2 was lost"


def test_a_hub_says_why_before_it_ends(hub: Hub) -> None:
    end = spoke(hub, 3)
    assert comes_true(lambda: lines(hub) == 1, hub)
    hub.tell(News(ranks=(2,), reason="rank 2 was lost"))
    hub.tell(News(left=True))
    hub.close()
    assert comes_true(lambda: bool(end.lost), end)
    assert (end.news.ranks, end.news.reason) == ((2,), "rank 2 was lost")
    end.look()


def test_a_rank_that_comes_late_hears_it_too(hub: Hub) -> None:
    hub.tell(News(ranks=(2,), reason="rank 2 was lost"))
    end = spoke(hub, 1)
    assert comes_true(lambda: bool(end.news.reason), hub, end)


def test_silence_ends_when_the_host_comes_back(hub: Hub, monkeypatch) -> None:
    """A closed connection stands for a silent one: the kernel takes seconds to report those."""
    monkeypatch.setattr(sockets, "SILENCE", frozenset({0}))
    end = spoke(hub, 1)
    assert comes_true(lambda: lines(hub) == 1, hub)
    assert end._line is not None
    end._line.connection.shutdown(socket.SHUT_RDWR)
    assert comes_true(lambda: hub.silent == {1: socket.gethostname()}, hub)
    assert comes_true(lambda: bool(end.silent), end)
    assert comes_true(lambda: not hub.silent and not end.silent, hub, end)


def test_strangers_keep_nobody_waiting_and_are_nobodys_death(hub: Hub) -> None:
    (address,) = hub.meeting.addresses
    nonce = bytes.fromhex(hub.meeting.nonce)
    said = (
        b"",
        b"GET / HTTP/1.1\r\n\r\n" + bytes(200),
        Secret(b"x" * 32).hello(nonce, 1),
        SECRET.hello(b"another listener", 1),
        SECRET.hello(nonce, 4),
    )
    strangers = [socket.create_connection(address, timeout=10) for _ in said]
    for stranger, words in zip(strangers, said, strict=True):
        stranger.sendall(words)
    end = spoke(hub, 1)
    assert comes_true(lambda: lines(hub) == 1 and hub._admission.refused.total() == 4, hub)
    for stranger in strangers[1:]:
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    strangers[0].close()
    assert comes_true(lambda: hub._admission.refused["closed without a hello"] == 1, hub, end)
    assert end.connected
    assert not hub.lost
    assert not end.lost
    for stranger in strangers:
        stranger.close()


def test_the_hub_listens_on_the_way_to_the_store_and_nowhere_else(hub: Hub) -> None:
    assert [host for host, _ in hub.meeting.addresses] == ["127.0.0.1"]


def test_a_rank_that_was_not_welcomed_comes_again(hub: Hub) -> None:
    """Its connection may have been one too many."""
    end = spoke(hub, 1)
    (listener,) = hub._admission._listeners
    listener.setblocking(True)
    listener.accept()[0].close()
    listener.setblocking(False)
    assert comes_true(lambda: lines(hub) == 1, hub, end)
    assert not end.lost
    assert not hub.lost


def test_a_hub_that_died_before_it_welcomed_anybody_is_lost() -> None:
    hub = Hub(STORE, 6.0, SECRET, 4)
    end = spoke(hub, 1)
    hub._admission.close()
    assert comes_true(lambda: bool(end.lost), end)
    assert end.lost.keys() == {keepalive.HUB}


def test_a_rank_that_was_not_welcomed_yet_hears_that_the_hub_leaves(hub: Hub) -> None:
    end = spoke(hub, 1)
    hub.tell(News(left=True))
    hub.close()
    assert comes_true(lambda: not end.connected, end)
    assert end.news.left
    for _ in range(3):
        end.look()
    assert not end.lost


@pytest.mark.parametrize(
    ("text", "seconds"), [("", keepalive.SILENCE_S), ("0", 0.0), ("12.5", 12.5)]
)
def test_the_environment_says_how_long(monkeypatch, text: str, seconds: float) -> None:
    monkeypatch.setenv(keepalive.VARIABLE, text)
    assert keepalive.silence_s() == seconds


@pytest.mark.parametrize("text", ["1", "-3", "soon", "inf", "nan"])
def test_other_times_are_refused(monkeypatch, text: str) -> None:
    monkeypatch.setenv(keepalive.VARIABLE, text)
    with pytest.raises(InvalidValueError, match=r"seconds >= 2, or 0"):
        keepalive.silence_s()

"""Tap: what a node notes of its messages, and what it learns of its peers from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncopate.errors import ArtifactError
from syncopate.paramserver.wire.tap import Tap
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import SCHEDULER
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import Rules
from syncopate.tracing import capture
from syncopate.tracing.served.read import node_files, served_of

ROSTER = msg.Roster("run", 0, ("tcp://a",), ("token 0", "token 1"))
SLICES = (Slice(0, "w", "float32", 0, 4),)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (("_current", []), ("_subjects", set()), ("_nodes", set())):
        monkeypatch.setattr(capture, name, value)
    monkeypatch.delenv(capture.VARIABLE, raising=False)
    yield
    for one in capture._current:
        one.stop()


def read(directory: Path) -> Any:
    remarks: list[str] = []
    return served_of(node_files(directory, remarks), remarks)


def seen(directory: Path, node: str) -> list[tuple[str, bool, str, int]]:
    found = read(directory).messages[node]
    return [(m.kind, m.sends, m.peer, m.nbytes) for m in found]


def test_a_server_learns_who_a_connection_belongs_to(tmp_path: Path) -> None:
    with capture.trace(tmp_path):
        tap = Tap("server")
        tap.sent(SCHEDULER, msg.Register(2, "job", "server", "t"), (0, 90, 0.5, 1.0))
        tap.received(SCHEDULER, ROSTER, 70, 2.0)
        tap.received(b"one", msg.Push(0, 1), 20, 3.0)  # not known yet
        tap.received(b"one", msg.Hello("run", 1, "token 1"), 30, 4.0)
        tap.received(b"two", msg.Hello("run", 0, "a guess"), 30, 5.0)
        tap.received(b"two", msg.Declare("d", Rules(), (Slice(9, "x", "float32", 0, 1),)), 9, 5.5)
        tap.received(b"one", msg.Declare("d", Rules(mode="asgd"), SLICES), 50, 6.0)
        tap.received(b"two", None, 7, 7.0)
        tap.sent(b"one", msg.Ack(0, 1, 1, query=4), (msg.SOON, 10, 7.5, 8.0))
        tap.worked("update", 0, (1, 0, None), 8.5)
        tap.worked("search", 0, (1, 5, b"one"), 8.6)
    assert seen(tmp_path, "s0") == [
        ("Register", True, "scheduler", 90),
        ("Roster", False, "scheduler", 70),
        ("Push", False, "w1", 20),
        ("Hello", False, "w1", 30),
        ("Hello", False, "", 30),
        ("Declare", False, "", 9),
        ("Declare", False, "w1", 50),
        ("unreadable", False, "", 7),
        ("Ack", True, "w1", 10),
    ]
    found = read(tmp_path)
    assert [*found.keys] == [0]
    assert not found.synchronous
    ack = found.messages["s0"][-1]
    assert (ack.asked, ack.number, ack.other, ack.priority) == (True, 1, 1, msg.SOON)
    assert (ack.queued_s, ack.time_s) == (7.5, 8.0)
    assert [(w.kind, w.peer, w.number, w.start_s) for w in found.work] == [
        ("update", "", 1, 8.5),
        ("search", "w1", 1, 8.6),
    ]


def test_a_scheduler_learns_it_from_what_they_register_as(tmp_path: Path) -> None:
    with capture.trace(tmp_path):
        tap = Tap("scheduler")
        tap.joined("run", 0, 2, 1)
        tap.received(b"a", msg.Register(2, "job", "worker", "token 1"), 90, 1.0)
        tap.sent(b"a", msg.Roster("run", 1, (), ()), (0, 80, 2.0, 2.0))
        tap.close()
    assert seen(tmp_path, "scheduler") == [
        ("Register", False, "w1", 90),
        ("Roster", True, "w1", 80),
    ]


def test_a_trace_may_begin_and_end_while_a_node_is_at_work(tmp_path: Path) -> None:
    tap = Tap("worker")
    tap.received(SCHEDULER, ROSTER, 70, 1.0)
    tap.sent(0, msg.Declare("d", Rules(), SLICES), (0, 50, 1.0, 1.5))
    one = capture.trace(tmp_path)
    tap.sent(0, msg.Pull(0, 0, 1), (0, 10, 2.0, 2.0))
    one.stop()
    tap.sent(0, msg.Pull(0, 1, 2), (0, 10, 3.0, 3.0))  # nobody captures
    one.start()
    tap.received(0, msg.Weights(0, 1, 2), 26, 4.0)
    one.stop()
    assert seen(tmp_path, "w0") == [("Pull", True, "s0", 10), ("Weights", False, "s0", 26)]
    assert read(tmp_path).keys[0].tensor == "w"


def test_any_number_of_strangers_takes_no_memory(tmp_path: Path) -> None:
    with capture.trace(tmp_path):
        tap = Tap("scheduler")
        tap.joined("run", 0, 1, 1)
        for number in range(5000):
            tap.received(b"%d" % number, msg.Register(2, "j", "worker", "t"), 9, 1.0)
    assert len(tap._peers) == len(tap._roles) == 4096
    assert len(seen(tmp_path, "scheduler")) == 5000


def test_a_directory_that_cannot_be_is_refused_before_a_node_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(capture.VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ArtifactError, match=capture.VARIABLE):
        Tap("server")

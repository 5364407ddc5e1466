"""Commits: a thread writes them whole, one by one, and waits for room where a disk is full."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

import pytest

from syncopate.errors import ArtifactError
from syncopate.paramserver.storage import state
from syncopate.paramserver.storage.state import Committer, Identity, StateFolder
from syncopate.protocol.slice import Position
from tests.children import HANGS_S
from tests.unit.paramserver.full_disk import refuse_as_full
from tests.unit.paramserver.storage.test_state import _newest, _record, _same, _write


def test_a_committer_says_what_is_on_disk(tmp_path):
    woken = threading.Event()
    committer = Committer(StateFolder(tmp_path), "run", woken.set)
    committer.begin({0: _record(1, 1.0)})
    assert woken.wait(HANGS_S)
    assert committer.finished() == {0: Position(1, {0: 1, 1: 1})}
    assert committer.finished() is None
    assert not committer.busy
    committer.close()
    _same(_newest(StateFolder(tmp_path)), {0: _record(1, 1.0)})


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    woken = threading.Event()
    committer = Committer(StateFolder(tmp_path / "file"), "run", woken.set)
    committer.begin({0: _record(1, 1.0)})
    assert woken.wait(HANGS_S)
    with pytest.raises(ArtifactError, match="cannot write"):
        committer.finished()
    committer.close()


def test_a_commit_that_ends_otherwise_is_said(tmp_path, monkeypatch):
    """A server that waited for it would acknowledge nothing for ever."""
    folder, woken = StateFolder(tmp_path), threading.Event()
    monkeypatch.setattr(folder, "put", Mock(side_effect=MemoryError("no room for a segment")))
    committer = Committer(folder, "run", woken.set)
    committer.begin({0: _record(1, 1.0)})
    assert woken.wait(HANGS_S)
    with pytest.raises(MemoryError, match="no room for a segment"):
        committer.finished()
    committer.close()


def _full_disk(folder, monkeypatch, tries, what="put"):
    """Let writing fail so many times as it does on a full disk; return how often it was tried."""
    write, tried = getattr(folder, what), []

    def full(*given):
        tried.append(given)
        if len(tried) > tries:
            return write(*given)
        return refuse_as_full(folder.path)

    monkeypatch.setattr(folder, what, full)
    monkeypatch.setattr(state, "AGAIN_S", 0.01)
    return tried


def test_on_a_full_disk_a_commit_waits_for_room_and_says_so(tmp_path, monkeypatch, caplog):
    folder, ended = StateFolder(tmp_path), threading.Event()
    tried = _full_disk(folder, monkeypatch, 3)
    committer = Committer(folder, "run", ended.set)
    committer.begin({0: _record(4, 1.0)})
    assert ended.wait(HANGS_S)
    assert committer.finished() == {0: Position(4, {0: 4, 1: 4})}
    committer.close()
    assert len(tried) == 4
    assert caplog.messages == [
        f"{tmp_path}: cannot write: No space left on device; "
        "no push is acknowledged until there is room",
        f"{tmp_path}: there is room again",
    ]
    _same(_newest(StateFolder(tmp_path)), {0: _record(4, 1.0)})


@pytest.mark.parametrize("anew", [False, True])
def test_on_a_full_disk_an_identity_waits_for_room_too(tmp_path, monkeypatch, anew):
    """It is there before what it says of, and after what is written anew; each is written once."""
    folder, ended, order = StateFolder(tmp_path), threading.Event(), []
    _write(folder, {1: _record(3, 2.0)})
    first, last = ("replace", "save_identity") if anew else ("save_identity", "put")
    for what in (first, last):
        tried = _full_disk(folder, monkeypatch, 3, what)
        order.append((what, tried))
    committer = Committer(folder, "run", ended.set)
    identity = Identity(job="j", run="run", rank=0)
    committer.begin({0: _record(4, 1.0)}, identity=identity, anew=anew)
    assert ended.wait(HANGS_S)
    assert committer.finished() == {0: Position(4, {0: 4, 1: 4})}
    committer.close()
    assert [(what, len(tried)) for what, tried in order] == [(first, 4), (last, 4)]
    assert StateFolder(tmp_path).identity() == identity
    expected = {0: _record(4, 1.0)} | ({} if anew else {1: _record(3, 2.0)})
    _same(_newest(StateFolder(tmp_path)), expected)


def test_an_identity_alone_is_a_commit(tmp_path):
    woken = threading.Event()
    committer = Committer(StateFolder(tmp_path), "run", woken.set)
    committer.begin({}, identity=Identity(job="j", run="run", rank=0))
    assert woken.wait(HANGS_S)
    assert committer.finished() == {}
    committer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["server.json"]


def test_a_disk_that_stays_full_does_not_keep_a_server_from_ending(tmp_path, monkeypatch):
    folder = StateFolder(tmp_path)
    tried = _full_disk(folder, monkeypatch, 10**9)
    committer = Committer(folder, "run", lambda: None)
    committer.begin({0: _record(4, 1.0)})
    while len(tried) < 2:
        time.sleep(0.001)
    committer.close()
    with pytest.raises(ArtifactError, match="No space left"):
        committer.finished()

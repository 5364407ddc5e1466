"""Ranks: what a launcher's variables may say."""

from __future__ import annotations

import socket

import pytest

from syncopate import ranks
from syncopate.engine.checks.connect import require_process_group
from syncopate.errors import CollectiveError
from syncopate.ranks import require_sound

SOUND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_torchrun_says_is_sound():
    require_sound(SOUND, meet=True)
    require_sound({"RANK": "1", "WORLD_SIZE": "2"}, meet=False)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"RANK": "5"}, "RANK is '5'; it must be an integer from 0 to 1, as WORLD_SIZE is 2"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "\u0661"}, "RANK is"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; it must be an integer from 1 to 1048576"),
        ({"WORLD_SIZE": "9999999"}, "WORLD_SIZE is '9999999'; it must be an integer from 1 to"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not given; it must be the address"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'; it must be an integer from 1 to 65535"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is '99999'"),
    ],
)
def test_anything_else_is_refused_before_anybody_waits(monkeypatch, told, complaint):
    with pytest.raises(CollectiveError, match=complaint):
        require_sound(SOUND | told, meet=True)
    for name, value in (SOUND | told).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CollectiveError, match=complaint):
        require_process_group(None, 1.0)


def test_a_name_without_an_address_is_asked_for_again_and_then_refused(monkeypatch):
    asked = []

    def nowhere(name, port):
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(ranks, "_RESOLVE_S", 0.2)
    monkeypatch.setattr(ranks, "_AGAIN_S", 0.01)
    with pytest.raises(CollectiveError, match=r"MASTER_ADDR is 'pod-0.*this name has none"):
        require_sound(SOUND | {"MASTER_ADDR": "pod-0.train"}, meet=True)
    assert len(asked) > 1
    assert set(asked) == {"pod-0.train"}


def test_a_name_that_appears_late_is_waited_for(monkeypatch):
    answers = iter([OSError("not yet"), UnicodeError("nor now"), ["an address"]])

    def late(name, port):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", late)
    monkeypatch.setattr(ranks, "_AGAIN_S", 0.01)
    require_sound(SOUND | {"MASTER_ADDR": "pod-0.train"}, meet=True)

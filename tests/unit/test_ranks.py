"""Ranks: what a launcher's variables may say."""

from __future__ import annotations

import pytest

from syncopate.engine.checks.connect import require_process_group
from syncopate.errors import CollectiveError
from syncopate.ranks import require_sound

SOUND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}


def test_what_torchrun_says_is_sound():
    require_sound(SOUND, meet=True)
    require_sound({"RANK": "1", "WORLD_SIZE": "2"}, meet=False)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"RANK": "5"}, "RANK is '5'; it must be an integer from 0 to 1, as WORLD_SIZE is 2"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "\u0661"}, "RANK is"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; it must be an integer >= 1"),
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

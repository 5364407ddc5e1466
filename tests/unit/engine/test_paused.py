"""``no_sync``: its end restores what was before, however its block ends."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.engine.engine import Engine


@pytest.mark.parametrize("before", [False, True])
def test_communication_is_as_before_after_an_exception_in_the_block(before: bool) -> None:
    engine: Any = SimpleNamespace(readiness=SimpleNamespace(paused=before))
    block = Engine.paused(engine)
    block.__enter__()
    assert engine.readiness.paused
    error = ZeroDivisionError()
    with suppress(ZeroDivisionError):
        assert not block.__exit__(ZeroDivisionError, error, None)
    assert engine.readiness.paused is before

"""``no_sync``: its end restores what was before, however its block ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from syncopate.engine.engine import Engine


@pytest.mark.parametrize("before", [False, True])
def test_communication_is_as_before_after_an_exception_in_the_block(before: bool) -> None:
    engine: Any = SimpleNamespace(_readiness=SimpleNamespace(paused=before))

    def raises() -> None:
        with Engine.paused(engine):
            assert engine._readiness.paused
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raises()
    assert engine._readiness.paused is before

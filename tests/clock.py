"""Another clock for some modules: the test runner keeps the real one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest


def set_clock(
    monkeypatch: pytest.MonkeyPatch, *modules: str, **functions: Callable[..., object]
) -> None:
    """Give these modules a ``time`` of their own, in which these functions are replaced.

    A function that is replaced in ``time`` itself is replaced for the test runner too, whose
    threads read the clock at any moment.
    """
    own = SimpleNamespace(**vars(time) | functions)
    for name in modules:
        monkeypatch.setattr(sys.modules[name], "time", own)

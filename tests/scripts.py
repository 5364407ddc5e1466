"""Scripts of the benchmarks as modules, found as Python finds them where they are started."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def scripts(*names: str) -> Iterator[list[ModuleType]]:
    """Import modules of the benchmarks, such as ``"serving.work"``; the path is theirs inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield [importlib.import_module(name) for name in names]

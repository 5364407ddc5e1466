"""Settings of the lab's tests: they run where network namespaces do, and leave none behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncopate.lab import support

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = support.why_not()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))

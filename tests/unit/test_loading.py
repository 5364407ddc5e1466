"""What importing the package loads: what trains beside torch or in a rank, else next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import environment

_RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("before", "variables", "trains"),
    [
        pytest.param("", {}, False, id="nothing"),
        pytest.param("import torch", {}, True, id="torch was loaded"),
        pytest.param("", _RANK, True, id="a rank of a launcher"),
        pytest.param("", _RANK | {"SYNCOPATE_TRACE": "run"}, False, id="a rank that is recorded"),
        pytest.param("", {"WORLD_SIZE": "2"}, False, id="one variable is no rank"),
        pytest.param("import sys; sys.modules['torch'] = None", _RANK, False, id="no torch there"),
    ],
)
def test_training_is_loaded_where_it_is_needed(
    before: str, variables: dict[str, str], trains: bool
) -> None:
    program = f"""{before}
import sys
import syncopate
for name in ("torch", "syncopate.engine.distribute"):
    assert bool(sys.modules.get(name)) is {trains}, name
for name in ("torch._dynamo", "scipy", "syncopate.planning", "syncopate.calibration"):
    assert name not in sys.modules, name
assert callable(syncopate.make_plan)
"""
    told = {key: value for key, value in environment().items() if key not in _RANK}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=told | variables,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

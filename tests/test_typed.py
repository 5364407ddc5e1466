"""A user's program keeps its types through ``distribute``: mypy, strict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_a_program_keeps_its_types():
    command = [sys.executable, "-m", "mypy", "--strict", "tests/typed/training.py"]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    revealed = re.findall(r'Revealed type is "(.*)"', checked.stdout)
    assert [re.sub(r"\b(?:\w+\.)+(?=\w)", "", found) for found in revealed] == [
        "Net",
        "AdamW",
        "list[AdamW]",
        "Net",
        "Linear",
        "Linear",
        "Engine",
    ]

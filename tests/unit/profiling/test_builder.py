"""load_task: what it accepts, and what it says otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncopate.errors import CalibrationError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.profiling.builder import load_task

MODELS = """
import torch
from torch import nn
from syncopate.zoo.task import Task

constant = 3

def task():
    return Task(nn.Linear(2, 1), torch.ones(4, 2))

def pair():
    return nn.Linear(2, 1), torch.ones(4, 2)

def four():
    return nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1), nn.functional.mse_loss

def three():
    return nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1)

def five():
    return nn.Linear(2, 1), torch.ones(4, 2), torch.zeros(4, 1), nn.functional.mse_loss, "name"

def deep():
    return nn.Linear(-1, 1), torch.ones(4, 2)

def model():
    return nn.Linear(2, 1)

def swapped():
    return torch.ones(4, 2), nn.Linear(2, 1)

def broken():
    raise ValueError("no weights here")

class Builders:
    @staticmethod
    def task():
        return task()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "mymodels_.py").write_text(MODELS)
    (tmp_path / "crash_.py").write_text("1 / 0\n")
    (tmp_path / "needy_.py").write_text("import no_such_library_\n")
    (tmp_path / "script_.py").write_text("import sys\nsys.exit(2)\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.endswith("_"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["task", "pair", "three", "four", "Builders.task"])
@pytest.mark.parametrize("where", ["mymodels_", "mymodels_.py", "./mymodels_.py"])
def test_builders_are_found(folder: Path, where: str, name: str) -> None:
    assert load_task(f"{where}:{name}").loss().requires_grad


def test_a_file_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    assert load_task(f"{folder / 'mymodels_.py'}:pair").title == "pair"


def test_the_zoo() -> None:
    assert load_task("syncopate.zoo:lenet5").title == "lenet5"


@pytest.mark.parametrize(
    ("builder", "kind", "words"),
    [
        ("mymodels_", InvalidValueError, ["'mymodels_'", "module:function"]),
        ("mymodels_:", InvalidValueError, ["module:function"]),
        (":task", InvalidValueError, ["module:function"]),
        ("nowhere_:task", CalibrationError, ["no module named 'nowhere_'", "looked in"]),
        ("mymodels_.sub:task", CalibrationError, ["mymodels_"]),
        ("nowhere_.py:task", CalibrationError, ["no file nowhere_.py"]),
        (
            "mymodels_:tusk",
            UnknownNameError,
            ["'tusk'", "mymodels_", "deep, five, four", "task"],
        ),
        ("mymodels_:constant", InvalidValueError, ["mymodels_:constant", "3", "a function"]),
        ("mymodels_:broken", CalibrationError, ["ValueError", "no weights here", "mymodels_.py:"]),
        ("mymodels_:five", InvalidValueError, ["Tensor, function, str)", "(model, inputs)"]),
        ("mymodels_:deep", CalibrationError, ["RuntimeError: ", "(at mymodels_.py:"]),
        ("mymodels_:model", InvalidValueError, ["Linear", "(model, inputs)"]),
        ("mymodels_:swapped", InvalidValueError, ["torch.nn.Module"]),
        ("crash_:task", CalibrationError, ["ZeroDivisionError", "crash_.py:1"]),
        ("crash_.py:task", CalibrationError, ["ZeroDivisionError", "crash_.py:1"]),
        ("needy_:task", CalibrationError, ["importing needy_", "no_such_library_"]),
        ("script_:task", CalibrationError, ["SystemExit"]),
    ],
)
def test_refusals(folder: Path, builder: str, kind: type[SyncopateError], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        load_task(builder)
    for word in words:
        assert word in str(caught.value)

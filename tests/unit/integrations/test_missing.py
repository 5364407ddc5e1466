"""Classes of frameworks are loaded when they are asked for; a missing one is said in a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from syncopate import integrations
from syncopate.errors import MissingPackageError, SyncopateError
from tests.children import HANGS_S, environment


def test_naming_the_package_loads_no_framework() -> None:
    script = (
        "import sys, syncopate.integrations as found; dir(found)\n"
        "print({'torch', 'accelerate', 'lightning', 'transformers'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=HANGS_S,
    )
    assert said.stdout == "set()\n"
    assert set(integrations.__all__) <= set(dir(integrations))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = integrations.Nothing


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("SyncopateAccelerator", "accelerate"),
        ("SyncopateStrategy", "lightning"),
        ("SyncopateTrainer", "transformers"),
    ],
)
def test_a_missing_framework_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for loaded in [each for each in sys.modules if each.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(sys.modules, f"syncopate.integrations.{package}", raising=False)
    monkeypatch.delitem(vars(integrations), name, raising=False)
    with pytest.raises(SyncopateError) as raised:
        getattr(integrations, name)
    assert str(raised.value) == str(MissingPackageError(name, package))
    assert f"{name} needs {package}, which is not installed: " in str(raised.value)
    assert "'.[frameworks]'" in str(raised.value)


def test_another_missing_module_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_its_dependency(_: str) -> None:
        raise ModuleNotFoundError("No module named 'its_dependency'", name="its_dependency")

    monkeypatch.setattr(integrations, "import_module", without_its_dependency)
    monkeypatch.delitem(vars(integrations), "SyncopateStrategy", raising=False)
    with pytest.raises(ModuleNotFoundError, match="its_dependency") as raised:
        _ = integrations.SyncopateStrategy
    assert not isinstance(raised.value, SyncopateError)

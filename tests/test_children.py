"""Commands that tests start run this tree, whatever is installed and whatever was on the path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import syncopate
from tests.children import REPOSITORY, environment

SCRIPT = "import beside, syncopate, tests; print(syncopate.__file__); print(tests.__file__)"


def test_tests_import_this_tree():
    assert Path(syncopate.__file__).is_relative_to(REPOSITORY / "src")


def test_children_import_this_tree_and_keep_the_path(tmp_path, monkeypatch):
    for name in ("syncopate", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    found = environment(COLUMNS="300")
    assert "RANK" not in found
    assert found["COLUMNS"] == "300"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path.parent,
        env=found,
    )
    assert done.returncode == 0, done.stderr
    package, tests = map(Path, done.stdout.splitlines())
    assert package.is_relative_to(REPOSITORY / "src")
    assert tests.is_relative_to(REPOSITORY / "tests")


def test_without_a_path_nothing_empty_is_added(monkeypatch):
    """An empty entry would be the folder that the child happens to run in."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "" not in environment()["PYTHONPATH"].split(":")


def test_the_path_of_children_is_set_in_one_place():
    setters = {
        path.name
        for path in (REPOSITORY / "tests").rglob("*.py")
        if "PYTHONPATH" in path.read_text("utf-8")
    }
    assert setters == {"children.py", Path(__file__).name}

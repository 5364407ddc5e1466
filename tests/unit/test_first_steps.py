"""The notebook of first steps runs: in Jupyter's kernel, and as a program where there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.children import HANGS_S, REPOSITORY, environment

NOTEBOOK = REPOSITORY / "examples" / "first_steps.ipynb"


def test_its_cells_run_as_a_program_and_say_what_they_found():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        check=False,
        capture_output=True,
        text=True,
        cwd=NOTEBOOK.parent,
        env=environment(),
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr
    for said in ("mg-wfbp", "optimal", "buckets", "ms of an iteration"):
        assert said in done.stdout


def test_it_is_kept_without_what_a_run_printed():
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_it_runs_in_a_notebook(monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient: pip install '.[notebooks]'")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install '.[notebooks]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install '.[notebooks]'")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=HANGS_S, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    printed = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert all(printed)

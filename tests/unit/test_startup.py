"""What a Python process runs when it starts: nothing, unless SYNCOPATE_TRACE is set."""

from __future__ import annotations

import importlib.metadata
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import REPOSITORY, environment

SOURCE = REPOSITORY / "src"


def _python(code, *, trace=None, path=(), prepare=True):
    """Run code in a new process that reads ``syncopate.pth`` first, as an installed one does."""
    variables = {k: v for k, v in environment(*path).items() if k != "SYNCOPATE_TRACE"}
    variables |= {} if trace is None else {"SYNCOPATE_TRACE": str(trace)}
    begin = f"import site, sys; site.addsitedir({str(SOURCE)!r}); " if prepare else "import sys; "
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        check=False,
        capture_output=True,
        text=True,
        env=variables,
    )


SHOW = "print(sorted(name for name in sys.modules if name.startswith('syncopate')))"


RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("trace", [None, ""])
def test_nothing_is_loaded_where_the_variable_is_not_set(trace):
    assert _python(SHOW, trace=trace).stdout == "[]\n"


@pytest.mark.parametrize("variables", [{}, RANK], ids=["a process", "a rank of a launcher"])
def test_a_process_without_torch_loads_two_small_modules(tmp_path, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = _python(SHOW, trace=tmp_path / "run")
    assert done.stdout == "['syncopate', 'syncopate.startup']\n"
    assert not (tmp_path / "run").exists()


def test_torch_is_loaded_as_ever_and_what_fails_afterwards_is_said(tmp_path):
    """A torch that has nothing: it is found, asked for, and imported; recording it fails."""
    (tmp_path / "torch.py").write_text("size = 3\n")
    code = (
        "import importlib.util; assert importlib.util.find_spec('torch') is not None; "
        "assert 'torch' not in sys.modules; import torch; "
        "print(torch.size, type(torch.__loader__).__name__, torch.__spec__.loader is "
        "torch.__loader__, sum('syncopate' in type(one).__module__ for one in sys.meta_path))"
    )
    done = _python(code, trace=tmp_path / "run", path=[tmp_path])
    assert done.stdout == "3 SourceFileLoader True 0\n", done.stderr
    assert done.stderr.startswith("syncopate: nothing is recorded: ")
    assert done.returncode == 0


def test_the_installed_package_has_it():
    folder = Path(str(importlib.metadata.distribution("syncopate-torch").locate_file("")))
    if str(folder) not in site.getsitepackages():
        pytest.skip("this environment borrows its packages from another")
    code = "print('syncopate.startup' in sys.modules)"
    assert _python(code, trace="run", prepare=False).stdout == "True\n"
    assert _python(code, prepare=False).stdout == "False\n"

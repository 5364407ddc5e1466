"""The house stands: import arrows, purity, no cycles, sizes; and the checks can fail."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import syncopate
from tests import architecture
from tests.children import environment

ROOT = Path(syncopate.__file__).parent
REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "reproduce", "examples", "docs")


def test_imports_follow_the_arrows():
    assert architecture.arrow_violations(ROOT) == []


def test_pure_rooms_are_pure():
    assert architecture.purity_violations(ROOT) == []


def test_there_are_no_import_cycles():
    assert architecture.cycles(ROOT) == []


def test_no_room_is_crowded():
    assert architecture.crowded_rooms(ROOT) == []


def test_a_crowded_room_is_found(tmp_path):
    root = _house(tmp_path, {f"attic/box{number}.py": "" for number in range(17)})
    assert architecture.crowded_rooms(root) == ["attic: 17 modules, at most 16"]


def test_modules_functions_and_signatures_are_short():
    files = {
        str(path.relative_to(REPOSITORY)): path.read_text()
        for folder in FOLDERS
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    }
    assert architecture.size_violations(files) == []


def test_one_module_writes_the_files_of_all():
    """What it promises (nothing but regular files replaced, never a part written) holds for all."""
    files = {
        str(path.relative_to(REPOSITORY)): path.read_text()
        for folder in FOLDERS
        if folder != "tests"
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if not str(path).endswith(architecture.WRITERS)
    }
    assert architecture.writing_violations(files) == []


def test_writing_files_is_found():
    source = """
        path.write_text("x")
        open("a", "w")
        path.open(mode="rb+")
        os.open(path, os.O_WRONLY)
        temporary.rename(target)
        open("a", "rb")
        name.replace("a", "b")
    """
    lines = architecture.writing_violations({"m": textwrap.dedent(source)})
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4", "5", "6"]


def test_collectives_do_not_reach_below_torch_by_tricks():
    room = ROOT / "collectives"
    files = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(room.rglob("*.py"))}
    named = ast.get_docstring(ast.parse((room / "transport.py").read_text()))
    assert architecture.below_torch(files, named) == []


def test_tricks_are_found():
    source = """
        import ctypes
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        class Own:
            def _mine(self):
                self._kept = 1

        distributed_c10d._hash_ranks_to_str = None
        dist.group.WORLD.bound_device_id = None
        Own()._mine()
        Own()._kept
        dist._named()
        dist._world
    """
    found = architecture.below_torch({"m": textwrap.dedent(source)}, "``dist._named`` is known")
    assert found == [
        "m:2: ctypes",
        "m:10: assigns to distributed_c10d._hash_ranks_to_str",
        "m:11: assigns to dist.group.WORLD.bound_device_id",
        "m:10: private distributed_c10d._hash_ranks_to_str",
        "m:15: private dist._world",
    ]


def test_every_public_name_has_a_module():
    """The lazy table, the imports for type checkers and ``__all__`` say the same."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    typed = {
        alias.name: node.module.removeprefix("syncopate.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("syncopate.")
        for alias in node.names
    }
    assert typed == syncopate._MODULES
    assert sorted([*typed, "__version__"]) == sorted(syncopate.__all__)
    assert syncopate.__all__ == sorted(syncopate.__all__)
    assert all(getattr(syncopate, name) is not None for name in syncopate.__all__)
    assert set(syncopate.__all__) <= set(dir(syncopate))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = syncopate.nothing


def test_torch_stays_out_at_run_time():
    """Vocabulary, pure rooms, reports, the package and the command line start without torch."""
    rooms = architecture.WITHOUT_TORCH
    modules = [
        f"syncopate.{name}"
        for name in architecture.read(ROOT)
        if architecture.room_of(name) in rooms
    ]
    script = textwrap.dedent(f"""
        import importlib, sys
        importlib.import_module("syncopate.cli.app")
        assert "numpy" not in sys.modules, "the command line starts with numpy"
        for name in ["syncopate", *{modules!r}]:
            importlib.import_module(name)
            assert "torch" not in sys.modules, name
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr


def _house(root: Path, files: dict[str, str]) -> Path:
    package = root / "house"
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return package


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("costs/model/price.py", "import house.planning.registry", "costs may not import planning"),
        ("schedules/x.py", "def f():\n    from house import costs", "schedules may not import"),
        ("units.py", "from .costs import price", "units may not import costs"),
        ("costs/deep.py", "from ..engine import x", "costs may not import engine"),
        ("engine/x.py", "from house.paramserver import y", "engine may not import paramserver"),
        ("reports/x.py", "import house.costs", "reports may not import costs"),
        ("profiling/x.py", "from house.zoo.resnet import r", "may import zoo.ready, zoo.task, not"),
        ("engine/x.py", "from house.profiling import y", "only engine.selfplan may import"),
        ("engine/x.py", "import house", "engine may not import __init__"),
        ("__init__.py", "from house.units import x", "outside TYPE_CHECKING"),
        ("attic.py", "", "attic: unknown room"),
    ],
)
def test_a_forbidden_arrow_is_found(tmp_path, path, source, complaint):
    rooms = ("costs", "planning", "profiling", "engine", "paramserver", "zoo")
    files = {f"{room}/__init__.py": "" for room in rooms}
    root = _house(tmp_path, {**files, "zoo/resnet.py": "", "units.py": "", path: source})
    assert [complaint in line for line in architecture.arrow_violations(root)] == [True]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("planning/x.py", "from house.costs import price\nimport house.schedules"),
        ("engine/selfplan/x.py", "from house.profiling import y\nimport torch"),
        ("__init__.py", "if TYPE_CHECKING:\n    from house.units import x"),
        ("profiling/x.py", "from house.zoo.task import Task"),
        ("cli/x.py", "import house"),
        ("costs/x.py", "from . import price\nimport numpy"),
    ],
)
def test_an_allowed_arrow_passes(tmp_path, path, source):
    rooms = ("costs", "planning", "schedules", "calibration", "profiling", "engine", "zoo")
    files = {f"{room}/__init__.py": "" for room in rooms}
    root = _house(tmp_path, {**files, "zoo/task.py": "", "units.py": "", path: source})
    assert architecture.arrow_violations(root) == []
    assert architecture.purity_violations(root) == []


def test_impurity_is_found(tmp_path):
    root = _house(
        tmp_path,
        {
            "costs/a.py": "import torch.distributed",
            "planning/b.py": "def f():\n    import time",
            "reports/c.py": "from torch import nn",
            "zoo/d.py": "import torch, time",
            "artifacts.py": "import os",
        },
    )
    assert architecture.purity_violations(root) == [
        "costs.a:1: costs may not import torch",
        "planning.b:2: planning may not import time",
        "reports.c:1: reports may not import torch",
    ]


def test_a_cycle_is_found(tmp_path):
    root = _house(
        tmp_path,
        {
            "costs/__init__.py": "from house.costs.a import x",
            "costs/a.py": "from house.costs import b",
            "costs/b.py": "from . import c",
            "costs/c.py": "from house.costs.a import x",
        },
    )
    assert architecture.cycles(root) == ["costs.a -> costs.b -> costs.c -> costs.a"]


def test_a_cycle_for_types_alone_is_found(tmp_path):
    root = _house(
        tmp_path,
        {
            "costs/a.py": "from house.costs.b import x",
            "costs/b.py": "if TYPE_CHECKING:\n    from house.costs.a import x",
        },
    )
    assert architecture.cycles(root) == ["costs.a -> costs.b -> costs.a"]


def test_long_things_are_found():
    source = "def f(a, b, c, d, *e, f, g, h, i, **j):\n" + "    a = 1\n" * 60 + "x = 1\n" * 440
    assert architecture.size_violations({"m": source}) == [
        "m: 501 lines, at most 500",
        "m:1: f has 61 lines, at most 60",
        "m:1: f has 10 parameters, at most 8",
    ]
    door = "def distribute(a, b, c, d, e, f, g, h, i, j, k, l, m, n): ...\n"
    assert architecture.size_violations({"m": door}) == [
        "m:1: distribute has 14 parameters, at most 13"
    ]
    method = "class A:\n    def f(self, a, b, c, d, e, f, g, h): ...\n"
    assert architecture.size_violations({"m": method}) == []

"""The rules of the house, as functions over a source tree: who imports whom, and how large."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = {
    "units",
    "errors",
    "artifacts",
    "delay",
    "extensions",
    "output",
    "ports",
    "ranks",
    "reading",
    "recipe",
    "shown",
    "topology",
}
PURE = {"schedules", "costs", "planning", "simulation", "protocol", "analysis"}
EFFECTS = {
    "benchmarking",
    "c10d",
    "collectives",
    "calibration",
    "profiling",
    "engine",
    "integrations",
    "paramserver",
    "tracing",
    "lab",
    "metrics",
    "validation",
    "zoo",
}
PRESENTATION = {"reports", "runs", "cli"}
ROOMS = VOCABULARY | PURE | EFFECTS | PRESENTATION

ARROWS: dict[str, set[str]] = {
    **dict.fromkeys(VOCABULARY, VOCABULARY),
    "schedules": VOCABULARY,
    "costs": VOCABULARY | {"schedules"},
    "protocol": VOCABULARY,
    "simulation": VOCABULARY | {"schedules", "costs", "protocol"},
    "planning": VOCABULARY | {"schedules", "costs", "simulation"},
    "analysis": VOCABULARY,
    "zoo": VOCABULARY,
    "lab": VOCABULARY,
    "metrics": VOCABULARY,
    "collectives": VOCABULARY | PURE,
    "tracing": VOCABULARY | {"collectives"},
    "c10d": VOCABULARY | PURE | {"collectives"},
    "benchmarking": VOCABULARY | PURE | {"collectives", "tracing"},
    "calibration": VOCABULARY | PURE | {"collectives", "tracing"},
    "profiling": VOCABULARY | PURE | {"collectives", "tracing", "zoo"},
    "engine": VOCABULARY | PURE | {"calibration", "collectives", "metrics", "profiling", "tracing"},
    "integrations": VOCABULARY | {"engine"},
    "paramserver": VOCABULARY | PURE | {"collectives", "lab", "metrics", "tracing"},
    "validation": VOCABULARY
    | PURE
    | {"calibration", "collectives", "engine", "lab", "paramserver", "profiling", "tracing", "zoo"},
    "reports": VOCABULARY | {"analysis"},
    "runs": VOCABULARY
    | {"analysis", "costs", "metrics", "planning", "reports", "schedules", "simulation", "tracing"},
    "cli": ROOMS | {"__init__"},
    "__main__": {"cli"},
    "startup": {"tracing"},
    "__init__": ROOMS,
}
"""Room -> rooms it may import. Every room may import itself."""

ONLY = {
    ("profiling", "zoo"): {"zoo.ready", "zoo.task"},
    ("paramserver", "lab"): {"lab.stops"},
    ("runs", "metrics"): {"metrics.prometheus"},
}
"""(from, to) -> the only modules of the second room that the first may import."""

ONLY_FROM = {
    ("engine", "calibration"): "engine.selfplan",
    ("engine", "profiling"): "engine.selfplan",
}
"""(from, to) -> the only part of the first room that may import the second."""

WITHOUT_TORCH = VOCABULARY | PURE | {"reports"}
IMPURE = {
    "asyncio",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "zmq",
}
"""Modules of processes, clocks, files and chance, which no pure room may import."""

MAX_ROOM_MODULES = 16
MAX_MODULE_LINES = 500
LONG_MODULES = {
    "src/syncopate/artifacts/plan.py": 595,
    "src/syncopate/engine/selfplan/phases.py": 540,
}
"""Modules that are longer, for each is one idea that would be harder to follow in two files: an
artefact with all its rules, the phases of a first run."""
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
WRITERS = ("syncopate/output.py", "lab/launch.py", "background/process.py", "lab/state.py")
"""Modules that may write files by themselves: the one that does it for all, two that tell the
kernel something of a process, and one whose file is locked before it has its name."""
WRITING = {"write_text", "write_bytes", "rename", "mkstemp", "NamedTemporaryFile", "copyfile"}
"""Names of functions that write files, or put one in the place of another."""

FRONT_DOORS = {"distribute": 13, "ddp": 5, "fsdp2": 4, "replay": 11}
"""Calls that users write once, with one keyword for each thing they may give instead.

What their docstrings say of each of them makes no function long.
"""


@dataclass(frozen=True)
class Import:
    """One import statement: the module that holds it, its line and the full name it asks for."""

    module: str
    line: int
    target: str
    for_types: bool


@functools.cache
def parsed(source: str) -> ast.Module:
    """Parse a source, each but once however many rules look at it; no tree is to be changed."""
    return ast.parse(source)


def read(root: Path) -> dict[str, ast.Module]:
    """Parse the package at ``root``; return module name (without the package's) -> tree."""
    trees = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        trees[name] = parsed(path.read_text())
    return trees


def imports(root: Path, trees: Mapping[str, ast.Module]) -> list[Import]:
    """Return every import, deferred ones and those for type checking included."""
    found = []
    packages = {name for name in trees if (root / Path(*name.split("."))).is_dir()}
    for module, tree in trees.items():
        statements = _imports_and_ifs(tree)
        blocks = (n for n in statements if isinstance(n, ast.If) and _is_for_types(n))
        for_types = {id(n) for block in blocks for n in ast.walk(block)}
        for node in statements:
            for target in _targets(node, module, module in packages, root.name):
                found.append(Import(module, node.lineno, target, id(node) in for_types))
    return found


@functools.cache
def _imports_and_ifs(tree: ast.Module) -> tuple[ast.Import | ast.ImportFrom | ast.If, ...]:
    wanted = ast.Import | ast.ImportFrom | ast.If
    return tuple(node for node in ast.walk(tree) if isinstance(node, wanted))


def _is_for_types(node: ast.If) -> bool:
    test = node.test.attr if isinstance(node.test, ast.Attribute) else node.test
    return getattr(test, "id", test) == "TYPE_CHECKING"


def _targets(node: ast.stmt, module: str, is_package: bool, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = [package] if module == "__init__" else [package, *module.split(".")]
            drop = node.level - (is_package or module == "__init__")
            base = ".".join([*here[: len(here) - drop], *([base] if base else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def inside(target: str, trees: Mapping[str, ast.Module], package: str) -> str | None:
    """Return the module of the package that an import reaches, or None for another package's."""
    parts = target.split(".")
    if parts[0] != package:
        return None
    for length in range(len(parts), 1, -1):
        name = ".".join(parts[1:length])
        if name in trees:
            return name
    return "__init__"


def room_of(module: str) -> str:
    """Return the room of a module: the first part of its name."""
    return module.split(".", maxsplit=1)[0]


def arrow_violations(root: Path) -> list[str]:
    """Return imports along arrows that do not exist, and rooms that the house does not know."""
    trees = read(root)
    wrong = [f"{name}: unknown room" for name in trees if room_of(name) not in ARROWS]
    for item in imports(root, trees):
        target = inside(item.target, trees, root.name)
        here = room_of(item.module)
        if target is None or here not in ARROWS:
            continue
        there = room_of(target)
        if here == "__init__" and not item.for_types:
            wrong.append(f"{item.module}:{item.line}: imports {target} outside TYPE_CHECKING")
        elif here != there and there not in ARROWS[here]:
            wrong.append(f"{item.module}:{item.line}: {here} may not import {there} ({target})")
        elif (here, there) in ONLY and target not in ONLY[here, there]:
            allowed = ", ".join(sorted(ONLY[here, there]))
            wrong.append(f"{item.module}:{item.line}: {here} may import {allowed}, not {target}")
        elif not f"{item.module}.".startswith(ONLY_FROM.get((here, there), here) + "."):
            part = ONLY_FROM[here, there]
            wrong.append(f"{item.module}:{item.line}: only {part} may import {there} ({target})")
    return wrong


def crowded_rooms(root: Path) -> list[str]:
    """Return folders of more modules than a newcomer can take in, ``__init__`` not counted."""
    folders: dict[Path, int] = {}
    for path in root.rglob("*.py"):
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    return [
        f"{folder.relative_to(root)}: {count} modules, at most {MAX_ROOM_MODULES}"
        for folder, count in sorted(folders.items())
        if count > MAX_ROOM_MODULES
    ]


def purity_violations(root: Path) -> list[str]:
    """Return imports of torch, processes, clocks and files where they do not belong."""
    wrong = []
    for item in imports(root, read(root)):
        here, top = room_of(item.module), item.target.split(".")[0]
        if (top == "torch" and here in WITHOUT_TORCH) or (top in IMPURE and here in PURE):
            wrong.append(f"{item.module}:{item.line}: {here} may not import {top}")
    return wrong


def writing_violations(files: Mapping[str, str]) -> list[str]:
    """Return calls that write files by themselves, by name -> source."""
    wrong = []
    for name, source in files.items():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Call) and _writes(node):
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node.func)}")
    return wrong


def _writes(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    if function == "open" or function.endswith(".open"):
        arguments = call.args[function == "open" :]  # the first is the path
        given = [*arguments, *(keyword.value for keyword in call.keywords)]
        modes = {a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)}
        flags = any("O_WRONLY" in ast.unparse(a) or "O_RDWR" in ast.unparse(a) for a in given)
        return flags or any(re.fullmatch("[rbt]*[wxa+][rwxabt+]*", mode) for mode in modes)
    return function in {"os.replace", "os.rename"} or function.rpartition(".")[2] in WRITING


def cycles(root: Path) -> list[str]:
    """Return import cycles between modules, one line each; imports for types alone count."""
    trees = read(root)
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for item in imports(root, trees):
        target = inside(item.target, trees, root.name)
        if target is None or "__init__" in (target, item.module):
            continue
        if target != item.module:
            graph[item.module].add(target)
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for successor in sorted(graph[name]):
                visit(successor, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def size_violations(files: Mapping[str, str]) -> list[str]:
    """Return modules, functions and parameter lists that are too long, by name -> source."""
    wrong = []
    for name, source in files.items():
        lines = source.count("\n")
        most = LONG_MODULES.get(name, MAX_MODULE_LINES)
        if lines > most:
            wrong.append(f"{name}: {lines} lines, at most {most}")
        for node in ast.walk(parsed(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if node.name in FRONT_DOORS:
                length -= (ast.get_docstring(node) or "").count("\n")
            if length > MAX_FUNCTION_LINES:
                wrong.append(
                    f"{name}:{node.lineno}: {node.name} has {length} lines, "
                    f"at most {MAX_FUNCTION_LINES}"
                )
            count = _parameters(node.args)
            most = FRONT_DOORS.get(node.name, MAX_PARAMETERS)
            if count > most:
                wrong.append(
                    f"{name}:{node.lineno}: {node.name} has {count} parameters, at most {most}"
                )
    return wrong


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    own = sum(argument.arg not in ("self", "cls") for argument in named)
    return own + (arguments.vararg is not None) + (arguments.kwarg is not None)


def docstring_violations(root: Path) -> list[str]:
    """Return modules and public names without a docstring."""
    wrong = []
    for module, tree in read(root).items():
        if not ast.get_docstring(tree):
            wrong.append(f"{module}: no module docstring")
        wrong += [
            f"{module}:{node.lineno}: {name} has no docstring"
            for name, node in _public(tree)
            if not ast.get_docstring(node)
        ]
    return wrong


def _public(
    parent: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in parent.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_") or any(
            "overload" in ast.unparse(d) or "setter" in ast.unparse(d) for d in node.decorator_list
        ):
            continue
        yield f"{prefix}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from _public(node, f"{prefix}{node.name}.")


_OWN = {"self", "cls"}


def below_torch(files: Mapping[str, str], named: str) -> list[str]:
    """Return where a source reaches below torch's surface by tricks, one line each.

    A trick is: to import ctypes; to assign to what was imported from torch; and to use a private
    name of another object that nothing in ``files`` defines and ``named`` does not list.

    Args:
        files: sources by path.
        named: a text with the private names that are used knowingly.
    """
    trees = {path: parsed(source) for path, source in files.items()}
    own = {name for tree in trees.values() for name in _private_names(tree)}
    found = []
    for path, tree in sorted(trees.items()):
        from_torch = set(_imported_from_torch(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) and any(a.name == "ctypes" for a in node.names):
                found.append(f"{path}:{node.lineno}: ctypes")
            for target in _assigned(node):
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if root is not target and isinstance(root, ast.Name) and root.id in from_torch:
                    found.append(f"{path}:{node.lineno}: assigns to {ast.unparse(target)}")
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                mine = ast.unparse(node.value) in _OWN
                if not (mine or node.attr in own or f"{node.attr}``" in named):
                    found.append(f"{path}:{node.lineno}: private {ast.unparse(node)}")
    return found


def _private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module, its classes and their methods define."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        for target in _assigned(node):
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute) and ast.unparse(target.value) in _OWN:
                yield target.attr


def _imported_from_torch(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield alias.asname or "torch"


def _assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []

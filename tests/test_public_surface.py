"""The public surface is frozen: names, signatures, fields, and the options of the command line.

``tests/public_surface.json`` is what users rely on. When it should change, renew it with
``make docs`` (or ``python -m tests.test_public_surface``) and let the difference be reviewed.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import runpy
from functools import cached_property
from pathlib import Path
from typing import Any

import syncopate
from syncopate import integrations
from syncopate.artifacts.artifact import Artifact
from tests.children import run_script

REPOSITORY = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_name("public_surface.json")


def surface() -> dict[str, Any]:
    """Return everything that users see, as JSON."""
    names = {name: _describe(getattr(syncopate, name)) for name in syncopate.__all__}
    artefacts = {
        cls.KIND: cls.SCHEMA_VERSION
        for cls in (getattr(syncopate, name) for name in syncopate.__all__)
        if isinstance(cls, type) and issubclass(cls, Artifact)
    }
    return {
        "names": names,
        "integrations": integrations.__all__,
        "artefacts": artefacts,
        "commands": _commands(),
    }


def _describe(value: Any) -> Any:
    if not callable(value):
        return type(value).__name__
    if not inspect.isclass(value):
        return _signature(value)
    members: dict[str, str] = {"()": _signature(value)}
    for name in sorted(dir(value)):
        member = inspect.getattr_static(value, name)
        if name.startswith("_") or member is inspect.getattr_static(BaseException, name, None):
            continue
        if isinstance(member, property | cached_property):
            members[name] = "property"
        elif inspect.isroutine(member) or isinstance(member, classmethod | staticmethod):
            members[name] = _signature(getattr(value, name))
        else:
            members[name] = "attribute"
    return members


def _signature(value: Any) -> str:
    if inspect.isclass(value) and value.__init__ is Exception.__init__:
        return "(*args)"
    # Where a class is defined is no part of the surface; where an object lies even less.
    text = str(inspect.signature(value))
    return re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text))


def _commands() -> dict[str, Any]:
    commands = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))["commands"]()
    return {
        name: {
            " ".join([*parameter.opts, *parameter.secondary_opts]): {
                "default": None if parameter.default is None else str(parameter.default),
                "required": parameter.required,
            }
            for parameter in command.params
        }
        for name, command in commands
    }


def test_the_public_surface_is_the_frozen_one():
    assert surface() == json.loads(SNAPSHOT.read_text()), (
        "the public surface changed; if it should, run `make docs` and commit "
        "tests/public_surface.json"
    )


def test_a_change_of_the_surface_is_found(monkeypatch):
    frozen = json.loads(SNAPSHOT.read_text())

    def compare(workload: object, *, extra: int = 1) -> None:
        """Differ from the real one."""

    monkeypatch.setitem(vars(syncopate), "compare", compare)
    changed = surface()
    assert changed != frozen
    assert changed["names"]["compare"] == "(workload: 'object', *, extra: 'int' = 1) -> 'None'"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
    print(f"wrote {SNAPSHOT.name}")


def test_without_torch_its_names_are_left_out_or_say_what_is_missing():
    done = run_script(
        """
        import sys
        sys.modules["torch"] = None
        from syncopate import *
        import syncopate
        there = set(syncopate.__all__)
        assert {"whatif", "make_plan", "Cluster"} <= there <= set(globals())
        assert there <= set(dir(syncopate))
        left_out = set(syncopate._MODULES) - there
        assert {"distribute", "check", "calibrate"} <= left_out
        assert not left_out & set(dir(syncopate))
        for name in left_out:
            try:
                getattr(syncopate, name)
            except ModuleNotFoundError as error:
                assert error.name == "torch"
                told = f"syncopate.{name} needs torch, which is not installed: "
                assert str(error).startswith(told), error
                assert "pip install 'torch" in str(error)
            else:
                raise AssertionError(f"{name} needs no torch")
        """
    )
    assert done.returncode == 0, done.stderr


def test_without_pyzmq_only_its_name_is_left_out():
    done = run_script(
        """
        import sys
        sys.modules["zmq"] = None
        import syncopate
        assert set(syncopate._MODULES) - set(syncopate.__all__) == {"KVStore"}
        from syncopate import *
        from syncopate import KVStore
        """
    )
    assert "KVStore needs pyzmq, which is not installed" in done.stderr


def test_no_public_name_is_that_of_a_module():
    """A module of the package takes the place of such a name when it is loaded."""
    modules = {one.name for one in pkgutil.iter_modules(syncopate.__path__)}
    clashing = modules & set(syncopate.__all__)
    assert clashing == set()

"""Builder: ``module:function`` named on a command line becomes a task.

The function takes no arguments and returns a :class:`~syncopate.zoo.Task`, ``(model, inputs)``,
``(model, inputs, targets)`` or ``(model, inputs, targets, loss_fn)``. Targets without a loss
function have the usual one. Modules are found as ``python -m`` finds them, the current directory
first; a file may be named by its path.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from syncopate.errors import CalibrationError, InvalidValueError, UnknownNameError
from syncopate.zoo.task import Task, usual_loss

_FORMS = "module:function or path/to/file.py:function, such as syncopate.zoo:resnet20"
_RESULTS = "a syncopate.zoo.Task, (model, inputs), or (model, inputs, targets[, loss_fn])"
_OURS = Path(__file__).parents[1]


def load_task(builder: str) -> Task:
    """Import the builder, call it and return its task.

    Args:
        builder: ``"module:function"`` or ``"path/to/file.py:function"``.

    Raises:
        InvalidValueError: the text has another form, names something that cannot be called, or
            the function returned something that is no task.
        UnknownNameError: the module has no such function.
        CalibrationError: the module does not exist or raised while imported, or the function
            raised.
    """
    where, colon, name = builder.rpartition(":")
    if not (colon and where and name):
        raise InvalidValueError("builder", builder, _FORMS)
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    function = _find(module, where, name)
    try:
        result = function()
    except Exception as error:
        raise CalibrationError(f"{builder} raised {story(error)}") from error
    return as_task(result, builder)


def _import_module(name: str) -> ModuleType:
    _search_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise CalibrationError(
                f"no module named {error.name!r}; looked in {Path.cwd()} and where Python looks. "
                f"A builder is {_FORMS}"
            ) from None
        raise CalibrationError(f"importing {name} raised {story(error)}") from error
    except (Exception, SystemExit) as error:
        raise CalibrationError(f"importing {name} raised {story(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):
        raise CalibrationError(f"no file {path}; looked from {Path.cwd()}. A builder is {_FORMS}")
    path = path.resolve()
    _search_first(path.parent)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CalibrationError(f"{path} cannot be imported as a Python module")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    # Dataclasses and pickles of the file look their module up while it is being executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CalibrationError(f"importing {path} raised {story(error)}") from error
    finally:
        if previous is not None:
            sys.modules[name] = previous
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _find(module: ModuleType, where: str, name: str) -> Callable[[], Any]:
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise UnknownNameError("function", name, _public_callables(module), where) from None
    if not callable(value):
        raise InvalidValueError(
            f"{where}:{name}",
            value,
            f"a function without arguments that returns {_RESULTS}",
        )
    function: Callable[[], Any] = value
    return function


def _public_callables(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(names) or ["none"]


def as_task(result: Any, builder: str) -> Task:
    """Return what a builder returned as a task.

    Raises:
        InvalidValueError: it is no task, and no tuple like one.
    """
    if isinstance(result, Task):
        return result
    if isinstance(result, tuple) and len(result) in {2, 3, 4}:
        model, inputs, targets = (*result, None)[:3]
        loss_fn = result[3] if len(result) == 4 else usual_loss if len(result) == 3 else None
        return Task(model, inputs, targets, loss_fn, builder.rpartition(":")[2])
    found = type(result).__name__
    if isinstance(result, tuple):
        found = f"({', '.join(type(item).__name__ for item in result)})"
    raise InvalidValueError(f"the result of {builder}", found, _RESULTS)


def story(error: BaseException) -> str:
    """Return what went wrong, and the last line of the user's own at which it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(Path(frame.filename))]
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    at = ""
    if frames:
        frame = (own or frames)[-1]
        at = f" (at {os.path.basename(frame.filename)}:{frame.lineno})"
    return f"{type(error).__name__}: {first.strip()}{at}"


def _is_library(path: Path) -> bool:
    return "site-packages" in path.parts or path.is_relative_to(_OURS) or "<" in path.name

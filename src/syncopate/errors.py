"""Errors: everything Syncopate refuses, and why, in one small hierarchy.

Every message names the value, the rule it broke and what would have been accepted. The command
line prints the message alone and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import ClassVar

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return a text in which a terminal finds nothing to obey but new lines and tabs.

    Control characters, separators of lines, and those that turn the direction of writing, are
    shown as Python writes them. Names from files that others wrote may hold them.

    Example:
        >>> print(visible("a\x1b[31mb"))
        a\x1b[31mb
    """
    return _OBEYED.sub(lambda found: ascii(found.group())[1:-1], text)


def one_line(text: str) -> str:
    r"""Return a text as :func:`visible` does, its new lines shown too.

    For names of files, and names from files: one with a new line would print a line of its own,
    which reads as if we had written it.

    Example:
        >>> print(one_line("a\nerror: b"))
        a\nerror: b
    """
    return visible(text).replace("\n", r"\n")


def encodable(text: str) -> str:
    r"""Return a text that UTF-8 can hold; names of files may have bytes that are no letters.

    Example:
        >>> print(encodable("runs/\udcff"))
        runs/\udcff
    """
    return text.encode(errors="backslashreplace").decode()


class SyncopateError(Exception):
    """Base of every error that is meant for the user; the message is complete by itself.

    A message is one line, except where it may quote what other programs said.
    """

    _many_lines: ClassVar[bool] = False
    exit_code = 1

    def __str__(self) -> str:
        told = super().__str__()
        return visible(told) if self._many_lines else one_line(told)


_SHOWN = 200
"""So many characters of a value are shown."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} .. ({len(text)} characters)"


class InvalidValueError(SyncopateError, ValueError):
    """A value outside what its parameter accepts.

    Args:
        what: the parameter or field, as the user knows it.
        value: what was given, None for nothing; its beginning is shown where it is long.
        rule: what would have been accepted.
    """

    exit_code = 2

    def __init__(self, what: str, value: object, rule: str) -> None:
        given = "not given" if value is None else _shown(value)
        super().__init__(f"{what} is {given}; it must be {rule}")
        self.what = what
        self.value = value
        self.rule = rule


class UnknownNameError(SyncopateError, ValueError):
    """A name that no registry knows.

    Args:
        kind: what the name names: ``"algorithm"``, ``"policy"``, ...
        name: what was given.
        known: the names that exist.
        scope: where they were looked for, such as ``"all_reduce"``; may be empty.
    """

    exit_code = 2

    def __init__(self, kind: str, name: object, known: Iterable[str], scope: str = "") -> None:
        where = f" for {scope}" if scope else ""
        super().__init__(f"unknown {kind} {name!r}{where}; known: {', '.join(known)}")
        self.kind = kind
        self.name = name


class ArtifactError(SyncopateError):
    """A file that cannot be trusted: missing, damaged, newer, or of another kind.

    Args:
        path: the file.
        reason: what is wrong with it and what was expected.
        field: the place in the file, such as ``"$.levels[0].size"`` or ``"line 3"``; empty for the
            whole file.
    """

    exit_code = 2

    def __init__(self, path: object, reason: str, field: str = "") -> None:
        at = f" at {field}" if field else ""
        super().__init__(f"{path}{at}: {reason}")
        self.path = str(path)
        self.field = field
        self.reason = reason


EXTRAS = {
    "accelerate": ("frameworks", "accelerate>=1.0"),
    "jinja2": ("html", "jinja2>=3.1"),
    "lightning": ("frameworks", "lightning>=2.6"),
    "mpi4py": ("mpi", "mpi4py>=4.0"),
    "pandas": ("pandas", "pandas>=2"),
    "pyarrow": ("readers", "pyarrow>=15"),
    "pyroute2": ("lab", "pyroute2>=0.9"),
    "sklearn": ("zoo", "scikit-learn>=1.4"),
    "torch": ("train", "torch>=2.11,<2.14"),
    "transformers": ("frameworks", "transformers>=5"),
    "zmq": ("server", "pyzmq>=26"),
}
"""Module that may be missing -> the extra that brings it, and its package, as in pyproject.toml."""


def how_to_install(module: str) -> str:
    """Return what installs a module for this Python, in one line; one of an extra in two ways."""
    extra, package = EXTRAS.get(module, ("", module))
    from_clone = f", or from the clone '.[{extra}]'" if extra else ""
    return f"{sys.executable} -m pip install '{package}'{from_clone}"


class MissingPackageError(SyncopateError, ModuleNotFoundError):
    """A package is not installed.

    Args:
        what: what needs it, as the user knows it.
        module: its name, as it is imported; the error's ``name``.
    """

    def __init__(self, what: str, module: str) -> None:
        package = re.split("[<>=]", EXTRAS.get(module, ("", module))[1])[0]
        told = f"{what} needs {package}, which is not installed: {how_to_install(module)}"
        super().__init__(told, name=module)


class ExtensionError(SyncopateError):
    """An algorithm or a policy of an installed package that cannot be used."""

    exit_code = 2


class ScheduleError(SyncopateError):
    """A schedule that the symbolic checker refutes."""


class PlanError(SyncopateError):
    """A plan that does not fit: another model, another rank count, or a tensor left out."""

    exit_code = 2


class PredictionError(SyncopateError):
    """A prediction below the physical bound: a bug in prices, and no plan to be followed."""


class CalibrationError(SyncopateError):
    """Measurements that cannot be turned into a cluster or a workload."""


class CollectiveError(SyncopateError):
    """A collective that did not finish.

    Args:
        collective: the collective and algorithm, such as ``"all_reduce (ring)"``.
        reason: what happened.
        ranks: the ranks held responsible, lost or late; empty when unknown.
    """

    _many_lines = True

    def __init__(self, collective: str, reason: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(f"{collective}: {reason}")
        self.collective, self.reason = collective, reason
        self.ranks = tuple(ranks)


class EngineError(SyncopateError):
    """A training set-up or step that the engine cannot carry out."""

    _many_lines = True


class ParameterServerError(SyncopateError):
    """A parameter server, or the job around it, that cannot go on.

    Args:
        reason: what happened, which rank caused it and what would help.
        workers: the workers held responsible; empty when there are none.
    """

    _many_lines = True

    def __init__(self, reason: str, workers: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.workers = tuple(workers)

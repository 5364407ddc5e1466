"""Options in groups: several options of a command that make one value.

Typer reads options off a signature. A command with many of them, or a group that several commands
share, writes the group as a function from its options to a value, and takes the value instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Command = Callable[..., None]


def grouped(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of ``groups``, before its own.

    Args:
        groups: the parameter of the command that receives a value -> the function that makes it
            of its keyword-only options. No two may have an option of one name.
    """
    signatures = {name: inspect.signature(make, eval_str=True) for name, make in groups.items()}

    def decorate(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True)
        rest = [p for p in own.parameters.values() if p.name not in groups]

        @functools.wraps(function)
        def command(**values: Any) -> None:
            made = {
                name: make(**{option: values.pop(option) for option in signatures[name].parameters})
                for name, make in groups.items()
            }
            function(**made, **values)

        parameters = [p for s in signatures.values() for p in s.parameters.values()] + rest
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        del command.__wrapped__
        return command

    return decorate


def items(text: str | None) -> list[str]:
    """Return the items of a comma-separated list, without the empty ones."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]

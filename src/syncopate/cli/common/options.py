"""Options in groups: several options of a command that make one value.

Typer reads options off a signature. A command with many of them, or a group that several commands
share, writes the group as a record whose fields are the options, or as a function from its options
to a value, and takes that instead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

Command = Callable[..., None]


def grouped(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of ``groups``, before its own.

    Args:
        groups: the parameter of the command that receives a value -> the record or the function
            that makes it of its options. No two may have an option of one name.
    """
    options = {name: list(_options(make)) for name, make in groups.items()}

    def decorate(function: Command) -> Command:
        rest = [p for p in _options(function) if p.name not in groups]

        @functools.wraps(function)
        def command(**values: Any) -> None:
            made = {
                name: make(**{option.name: values.pop(option.name) for option in options[name]})
                for name, make in groups.items()
            }
            function(**made, **values)

        parameters = [p for of_group in options.values() for p in of_group] + rest
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        del command.__wrapped__
        return command

    return decorate


def _options(make: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(make, include_extras=True)
    for name, parameter in inspect.signature(make).parameters.items():
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])


def items(text: str | None) -> list[str]:
    """Return the items of a comma-separated list, without the empty ones."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]

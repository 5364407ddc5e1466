"""The examples of every ``--help``: each is a command line that its command takes."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator

import pytest
import typer

from syncopate.cli.app import app


def _commands(
    command: typer.core.TyperCommand | typer.core.TyperGroup, name: str
) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Yield every command below one with its full name, such as ``"syncopate plan"``."""
    if isinstance(command, typer.core.TyperGroup):
        for own, below in command.commands.items():
            yield from _commands(below, f"{name} {own}")
    else:
        yield name, command


COMMANDS = dict(_commands(typer.main.get_command(app), "syncopate"))


def _examples(command: typer.core.TyperCommand) -> list[str]:
    """Return the lines of a help's examples that call this program, from its name on."""
    _, _, shown = inspect.cleandoc(command.help or "").partition("For example:")
    found = (re.search(r"\bsyncopate [^>)]*", line) for line in shown.splitlines())
    return [one[0] for one in found if one is not None]


EXAMPLES = sorted({line for command in COMMANDS.values() for line in _examples(command)})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_of_itself(name):
    assert any(line.startswith(name) for line in _examples(COMMANDS[name]))


@pytest.mark.parametrize("line", EXAMPLES)
def test_a_command_takes_its_examples(line):
    name = max((one for one in COMMANDS if line.startswith(one)), key=len)
    words = shlex.split(line.removeprefix(name))
    context = COMMANDS[name].make_context(name, words)
    # What is no option is an argument: nothing is left over.
    assert context.args == []

"""The application: every command registered once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

import syncopate
from syncopate.cli.analyze import analyze
from syncopate.cli.bench import bench
from syncopate.cli.calibrate import calibrate
from syncopate.cli.choose import choose
from syncopate.cli.common.completion import completion
from syncopate.cli.common.console import options_given, out
from syncopate.cli.common.group import Commands
from syncopate.cli.compare import compare
from syncopate.cli.convert import convert
from syncopate.cli.demo.command import demo
from syncopate.cli.explain import explain
from syncopate.cli.lab import lab
from syncopate.cli.predict.plan import plan
from syncopate.cli.predict.replay import replay
from syncopate.cli.predict.simulate import simulate
from syncopate.cli.predict.validate import validate
from syncopate.cli.predict.whatif import whatif
from syncopate.cli.profile import profile
from syncopate.cli.ps import ps
from syncopate.cli.record import record
from syncopate.cli.report import report
from syncopate.cli.watch import watch

app = typer.Typer(
    cls=Commands,
    name="syncopate",
    help="Moves gradient communication off the critical path: measure, plan, run, predict.",
    epilog="The usual order: calibrate, profile, plan. SYNCOPATE_DEBUG=1 shows tracebacks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(demo)
app.command()(calibrate)
app.command()(profile)
app.command()(plan)
app.command()(simulate)
app.command()(replay)
app.command()(whatif)
app.command()(validate)
app.command(context_settings={"allow_interspersed_args": False})(record)
app.command()(watch)
app.command()(analyze)
app.command()(explain)
app.command()(compare)
app.command()(report)
app.command()(bench)
app.command()(choose)
app.command()(convert)
app.command()(completion)
app.add_typer(lab)
app.add_typer(ps)


def flowing(text: str) -> str:
    """Return a help text whose paragraphs are a line each, but for indented ones.

    Typer breaks lines where docstrings do, and once more at the edge of the terminal. Of what
    follows the first paragraph it indents nothing unless a line beneath the next one has no indent;
    so an empty paragraph comes next.
    """
    first, *others = inspect.cleandoc(text).split("\n\n")
    paragraphs = [first, "", *others] if others else [first]
    return "\n\n".join(p if "\n " in f"\n{p}" else p.replace("\n", " ") for p in paragraphs)


def _noted(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that notes what it was given, so that no output is a file that it reads."""

    @wraps(command)
    def noted(**given: Any) -> Any:
        options_given.set(given)
        return command(**given)

    return noted


def _prepare(commands: typer.Typer) -> None:
    for command in commands.registered_commands:
        if command.callback is None:
            continue
        if command.help is None:
            command.help = flowing(command.callback.__doc__ or "")
        command.callback = _noted(command.callback)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _prepare(group.typer_instance)


_prepare(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        out().print(f"syncopate {syncopate.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Hold the options that belong to no command."""

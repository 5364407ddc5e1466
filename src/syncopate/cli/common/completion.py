"""``syncopate completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from syncopate.errors import UnknownNameError

VARIABLE = "_SYNCOPATE_COMPLETE"
"""Environment variable by which a shell asks the program itself what could come next."""

SHELLS = ("bash", "zsh", "fish")
"""Shells that commands and options are completed in."""

_REGISTERED = "compdef _syncopate_completion syncopate"

_LOADED = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
"""Zsh has no ``compdef`` before its completion is loaded, which a new ``.zshrc`` does not do."""


def answer(environment: Mapping[str, str]) -> None:
    """Answer a shell's request for completions, if there is one."""
    if VARIABLE in environment:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SHELLS)}.")],
) -> None:
    """Print the script with which a shell completes commands and options at the tab key.

    The first example is for this shell, the others are for every new one.

    For example:

      eval "$(syncopate completion bash)"

      echo 'eval "$(syncopate completion bash)"' >> ~/.bashrc

      echo 'eval "$(syncopate completion zsh)"' >> ~/.zshrc

      syncopate completion fish > ~/.config/fish/completions/syncopate.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise UnknownNameError("shell", shell, SHELLS)
    script = get_completion_script(prog_name="syncopate", complete_var=VARIABLE, shell=shell)
    if shell == "zsh":
        script = script.replace(_REGISTERED, f"{_LOADED}\n{_REGISTERED}")
    typer.echo(script)

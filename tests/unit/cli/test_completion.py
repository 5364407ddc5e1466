"""Completion: the scripts that shells read, and what the program answers them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from syncopate.cli.common.completion import SHELLS
from tests.children import HANGS_S


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_every_shell_asks_for_what_is_answered(run, monkeypatch, shell):
    code, script, err = run(f"completion {shell}")
    assert (code, err) == (0, "")
    assert f"_SYNCOPATE_COMPLETE=complete_{shell}" in script
    asked = {
        "bash": {"COMP_WORDS": "syncopate calib", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "syncopate calib"},
        "fish": {
            "_TYPER_COMPLETE_ARGS": "syncopate calib",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    }[shell]
    assert all(name in script for name in asked)
    for name, value in {**asked, "_SYNCOPATE_COMPLETE": f"complete_{shell}"}.items():
        monkeypatch.setenv(name, value)
    code, answer, _ = run("")
    assert code == 0
    assert "calibrate" in answer
    assert "choose" not in answer


def test_options_of_commands_are_completed(run, monkeypatch):
    monkeypatch.setenv("_SYNCOPATE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "syncopate plan --pu")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run("") == (0, "--pull-period\n", "")


@pytest.fixture
def program(tmp_path):
    found = tmp_path / "syncopate"
    found.write_text(f'#!/bin/sh\nexec {sys.executable} -m syncopate "$@"\n')
    found.chmod(0o755)
    return found


def said_by(shell: list[str], text: str, program: Path) -> list[str]:
    environment = {**os.environ, "HOME": str(program.parent)}
    environment["PATH"] = f"{program.parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [*shell, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.cwd(),
        env=environment,
        timeout=HANGS_S,
    )
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_command_with_it(run, program):
    _, script, _ = run("completion bash")
    line = f"{script}\nCOMP_WORDS=(syncopate calib); COMP_CWORD=1\n"
    line += '_syncopate_completion syncopate; echo "${COMPREPLY[@]}"; complete -p syncopate\n'
    completed, registered = said_by(["bash", "--norc"], line, program)
    assert completed == "calibrate"
    assert "-F _syncopate_completion syncopate" in registered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_has_it_registered_even_where_nothing_has_loaded_its_completion(run, program):
    _, script, _ = run("completion zsh")
    assert said_by(["zsh", "-f"], f"{script}\necho $_comps[syncopate]", program) == [
        "_syncopate_completion"
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_a_command_with_it(run, program):
    _, script, _ = run("completion fish")
    (line,) = said_by(["fish", "--no-config"], f"{script}\ncomplete -C 'syncopate calib'", program)
    assert line.startswith("calibrate\t")


def test_another_shell_is_refused_with_those_there_are(run):
    told = "error: unknown shell 'tcsh'; known: bash, zsh, fish\n"
    assert run("completion tcsh") == (2, "", told)

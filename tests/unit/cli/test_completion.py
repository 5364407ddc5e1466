"""Completion: the scripts that shells read, and what the program answers them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from syncopate.cli.common.completion import SHELLS


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_command_with_it(run, tmp_path):
    program = tmp_path / "syncopate"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m syncopate "$@"\n')
    program.chmod(0o755)
    _, script, _ = run("completion bash")
    line = f"PATH={tmp_path}:$PATH\n{script}\nCOMP_WORDS=(syncopate calib); COMP_CWORD=1\n"
    line += '_syncopate_completion syncopate; echo "${COMPREPLY[@]}"; complete -p syncopate\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", line], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    completed, registered = done.stdout.splitlines()
    assert completed == "calibrate"
    assert "-F _syncopate_completion syncopate" in registered


def test_another_shell_is_refused_with_those_there_are(run):
    told = "error: unknown shell 'tcsh'; known: bash, zsh, fish\n"
    assert run("completion tcsh") == (2, "", told)

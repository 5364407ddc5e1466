"""Pictures: makes those of ``docs/pictures/``: ``python -m docs.pictures``.

Those of a terminal are what commands print there, in rich's SVG. Those of a page are photographs of
what ``syncopate report`` writes, for which Chromium has to be there. A test fails while a
terminal's picture is not what this would write.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from syncopate.output import write_output
from tests import browser

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "docs" / "pictures"

COLUMNS = 112
"""How wide the terminal is."""

PLAN = "syncopate plan -w examples/workloads/resnet50.json --network 10gbe --nodes 16"
"""The command whose picture is ``plan.svg``."""

EXPLAIN = "syncopate explain timeline.json"
"""The same of ``explain.svg``, after :data:`SIMULATED`."""

SIMULATED = (
    "syncopate plan -w resnet50.json --network 10gbe --nodes 4 --policy threshold "
    "--exchange allreduce -o plan.json",
    "syncopate simulate -w resnet50.json -p plan.json --network 10gbe --nodes 4 --iterations 8 "
    "--slow-rank 2=1.3 --jitter 0.01 --seed 1",
)
"""What makes the timeline of a run with a slow rank."""

REPORT = "syncopate report timeline.json -o page.html"
"""What makes the page of :data:`PHOTOGRAPHS`."""

PHOTOGRAPHS = {"page.png": ("body", 1060), "timeline.png": ("main section:has(#timeline)", 640)}
"""File -> which part of the page is at the top of its window, and how high that is in pixels."""

_WIDE = 1200
"""How wide the window is that the page is photographed in, in pixels."""

_SHOW = "document.querySelector(arguments[0]).scrollIntoView({ block: 'start' })"

_DRAWN = """
const done = arguments[0];
setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))), 300);
"""
"""Waits until the page has drawn its timeline where it now is."""

_FROM_ELSEWHERE = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
"""The fonts that rich's SVG would load over the network."""


def terminals() -> dict[str, str]:
    """Return the pictures of a terminal: file name -> SVG."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        shutil.copytree(REPOSITORY / "examples" / "workloads", there / "examples" / "workloads")
        planned = _printed(PLAN, there)
        _simulate(there)
        explained = _printed(EXPLAIN, there)
    return {"plan.svg": _svg(PLAN, planned, "plan"), "explain.svg": _svg(EXPLAIN, explained, "why")}


def photograph(folder: Path) -> None:
    """Write the pictures of a page, of the run of :data:`SIMULATED`."""
    with tempfile.TemporaryDirectory() as made:
        there = Path(made)
        _simulate(there)
        _printed(REPORT, there)
        with browser.browser(there / "profile") as window:
            for name, (part, height) in PHOTOGRAPHS.items():
                window.open(there / "page.html", _WIDE, height)
                window.run(_SHOW, part)
                window.later(_DRAWN)
                window.photograph(folder / name)


def _simulate(there: Path) -> None:
    """Write ``timeline.json`` of a run with a slow rank."""
    shutil.copy(REPOSITORY / "examples" / "workloads" / "resnet50.json", there)
    for command in SIMULATED:
        _printed(command, there)


def _printed(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal, colours included; remarks are left out."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=folder,
        env=_environment(os.environ),
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.stdout


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command, whose output is that of a terminal."""
    ours = {
        "PYTHONPATH": str(REPOSITORY / "src"),
        "PYTHONIOENCODING": "utf-8",
        "FORCE_COLOR": "1",
        "COLORTERM": "truecolor",
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }
    left_out = ("NO_COLOR", "RANK", "WORLD_SIZE", "LINES")
    return {name: value for name, value in inherited.items() if name not in left_out} | ours


def _svg(command: str, printed: str, name: str) -> str:
    """Return a terminal's picture: a command and what it prints."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {command}", style="bold", highlight=False)
    console.print(Text.from_ansi(printed.rstrip("\n")))
    bare = _FROM_ELSEWHERE.sub("", CONSOLE_SVG_FORMAT)
    return console.export_svg(title="", theme=MONOKAI, code_format=bare, unique_id=name)


def main() -> None:
    """Write all pictures; those of the page only where there is a browser."""
    for name, svg in terminals().items():
        write_output(FOLDER / name, svg.encode())
        print(f"wrote docs/pictures/{name}")
    photographs = " and ".join(f"docs/pictures/{name}" for name in PHOTOGRAPHS)
    if browser.missing():
        print(f"left {photographs} as they were: there is no {browser.missing()}")
        return
    photograph(FOLDER)
    print(f"wrote {photographs}")


if __name__ == "__main__":
    main()

"""A small distribution, installed into a folder as pip would: modules, and its metadata."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.children import REPOSITORY

PAGE = (REPOSITORY / "docs" / "extending.md").read_text("utf-8")


def of_the_page(name: str) -> str:
    """Return a file of docs/extending.md: the block of code after its name."""
    found = re.search(rf"^`{re.escape(name)}`[^\n]*:\n\n```\w+\n(.*?)```", PAGE, re.M | re.S)
    assert found, name
    return found[1]


def install(
    folder: Path,
    project: str,
    modules: Mapping[str, str],
    *,
    entry_points: str | None = None,
) -> None:
    """Install a distribution into ``folder``.

    Args:
        folder: has to be on ``sys.path``.
        project: its ``pyproject.toml``.
        modules: file name -> source.
        entry_points: what is written instead of those of the project.
    """
    told = tomllib.loads(project)["project"]
    stem = f"{told['name'].replace('-', '_')}-{told['version']}"
    metadata = folder / f"{stem}.dist-info"
    metadata.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n"
    (metadata / "METADATA").write_text(head, "utf-8")
    groups = told.get("entry-points", {})
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    )
    (metadata / "entry_points.txt").write_text(text if entry_points is None else entry_points)
    for name, source in modules.items():
        (folder / name).write_text(source, "utf-8")


def project(name: str, version: str = "1.0", **groups: Mapping[str, str]) -> str:
    """Return a ``pyproject.toml`` with entry points by the last word of their group."""
    lines = ["[project]", f'name = "{name}"', f'version = "{version}"']
    for group, points in groups.items():
        lines.append(f'[project.entry-points."syncopate.{group}"]')
        lines += [f'"{point}" = "{value}"' for point, value in points.items()]
    return "\n".join(lines)

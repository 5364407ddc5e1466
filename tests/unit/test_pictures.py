"""The pictures of the documentation are what ``docs/pictures.py`` makes, and pages show them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from docs import pictures

from tests.children import REPOSITORY

_SHOWN = re.compile(r"!\[([^\]]+)\]\(pictures/([^)]+)\)")
_MOST_BYTES = 200_000


def test_terminals_are_what_commands_print():
    made = pictures.terminals()
    assert {path.name for path in pictures.FOLDER.glob("*.svg")} == set(made)
    for name, svg in made.items():
        written = (pictures.FOLDER / name).read_text("utf-8")
        assert written == svg, "run `python -m docs.pictures` and commit docs/pictures"


def test_nothing_in_a_picture_is_loaded_from_elsewhere():
    for path in pictures.FOLDER.glob("*.svg"):
        text = path.read_text("utf-8")
        assert "url(http" not in text
        assert "@font-face" not in text


@pytest.mark.parametrize("name", pictures.PHOTOGRAPHS)
def test_photographs_of_the_page_are_there(name: str):
    data = (pictures.FOLDER / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">2I", data[16:24]) == (1200, pictures.PHOTOGRAPHS[name][1])
    assert len(data) < _MOST_BYTES


def test_every_picture_is_shown_and_described():
    shown = {}
    for page in Path(REPOSITORY, "docs").glob("*.md"):
        for told, name in _SHOWN.findall(page.read_text("utf-8")):
            shown[name] = told
    assert set(shown) == {path.name for path in pictures.FOLDER.iterdir()}
    assert all(len(told) > 50 for told in shown.values())

"""Every module and public name says what it is."""

from __future__ import annotations

from pathlib import Path

import syncopate
from tests import architecture

ROOT = Path(syncopate.__file__).parent


def test_every_module_and_public_name_has_a_docstring():
    assert architecture.docstring_violations(ROOT) == []


def test_a_missing_docstring_is_found(tmp_path):
    package = tmp_path / "house"
    package.mkdir()
    (package / "units.py").write_text(
        "class A:\n    def f(self): ...\n    def _g(self): ...\n"
        "def h():\n    'Say.'\ndef i(): ...\n"
    )
    assert architecture.docstring_violations(package) == [
        "units: no module docstring",
        "units:1: A has no docstring",
        "units:2: A.f has no docstring",
        "units:6: i has no docstring",
    ]

"""Faults: where in a file something is wrong, and what, by the names that stand in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_NAMED = re.compile(r"(\w+) is ")


def at_fault(raw: dict[str, Any], error: msgspec.ValidationError) -> tuple[str, str]:
    """Return a document's error, and the field: ``$.levels[1].size``.

    Args:
        raw: the document.
        error: what its conversion said; of a rule that is broken it names the object alone.
    """
    reason, _, field = str(error).partition(" - at ")
    field = field.strip("`") or "$"
    named, place = _NAMED.match(reason), _found(raw, field)
    if named and isinstance(place, dict) and named[1] in place:
        field = f"{field}.{named[1]}"
    return reason, field


def _found(raw: Any, field: str) -> Any:
    """Return the value of a field, or None."""
    for name, index in _STEP.findall(field):
        if name:
            raw = raw.get(name) if isinstance(raw, dict) else None
        elif isinstance(raw, list) and int(index) < len(raw):
            raw = raw[int(index)]
        else:
            return None
    return raw


def not_json(data: bytes | str, error: str) -> tuple[str, str]:
    """Return why a text is no JSON, and the field at fault, empty where it is the whole text.

    Args:
        data: the text.
        error: what its decoder said.
    """
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    damaged = f"not valid JSON (damaged or truncated): {error}"
    if not _NO_NUMBER.search(text):
        return damaged, ""
    try:
        found = next(_constants(json.loads(text, parse_constant=_Constant), "$"), None)
    except (ValueError, RecursionError):
        return damaged, ""
    if found is None:
        return damaged, ""
    field, word = found
    return f"{word} is no number of JSON; it must be a finite one", field


_NO_NUMBER = re.compile(r"\bNaN\b|\bInfinity\b")


class _Constant(str):
    """A word that Python's encoder writes for what is no number of JSON."""

    __slots__ = ()


def _constants(found: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield where such words stand, and which."""
    if isinstance(found, _Constant):
        yield place, str(found)
    elif isinstance(found, dict):
        for name, value in found.items():
            yield from _constants(value, f"{place}.{name}")
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from _constants(value, f"{place}[{index}]")

"""Faults: where in a file something is wrong, and what, by the names that stand in the file."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

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
    if not _NO_NUMBER.search(text) and "out of range" not in error:
        return damaged, ""
    try:
        raw = json.loads(
            text, parse_constant=_NoNumber, parse_float=_float_or_text, parse_int=_int_or_text
        )
        found = next(_marked(raw, "$", _NoNumber), None)
    except (ValueError, RecursionError):
        return damaged, ""
    if found is None:
        return damaged, ""
    field, word = found
    if isinstance(word, _TooLarge):
        told = word if len(word) <= _SHOWN else f"{word[:_SHOWN]} .. ({len(word)} digits)"
        return f"{told} is out of range; numbers are below {sys.float_info.max:.1e}", field
    return f"{word} is no number of JSON; it must be a finite one", field


def twice(data: bytes | str, raw: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with a field that stands twice in its object, and the field; or None.

    Fields are counted first, because to decode all of a long text in Python takes long.

    Args:
        data: the text of a document.
        raw: the document, in which the last one of such fields counts.
    """
    text = data.encode() if isinstance(data, str) else data
    written = msgspec.json.format(text, indent=-1).count(_NAME)
    if written == msgspec.json.encode(raw).count(_NAME):
        return None
    try:
        found = next(_marked(json.loads(text, object_pairs_hook=_object), "$", _Twice), None)
    except (ValueError, RecursionError):
        return None
    if found is None:
        return None
    field, names = found
    name = names.name
    return f"{name!r} stands twice in this object; leave one of them out", f"{field}.{name}"


_NAME = b'":'


class _Twice(dict[str, Any]):
    """An object in which a field stands twice.

    Attributes:
        name: of the field.
    """

    name: str


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) == len(fields):
        return found
    marked = _Twice(found)
    marked.name = Counter(name for name, _ in fields).most_common(1)[0][0]
    return marked


_NO_NUMBER = re.compile(r"\bNaN\b|\bInfinity\b")


_SHOWN = 40
"""So many digits of a number that is out of range are shown."""


class _NoNumber(str):
    """A word that Python's encoder writes for what is no number of JSON."""

    __slots__ = ()


class _TooLarge(_NoNumber):
    """A number that no float can hold, as it is written."""

    __slots__ = ()


def _float_or_text(text: str) -> float | _TooLarge:
    return float(text) if math.isfinite(float(text)) else _TooLarge(text)


def _int_or_text(text: str) -> int | _TooLarge:
    return int(text) if len(text) <= sys.float_info.max_10_exp else _TooLarge(text)


M = TypeVar("M")


def _marked(found: Any, place: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """Yield the path and the value of each that is of ``kind``."""
    if isinstance(found, kind):
        yield place, found
    elif isinstance(found, dict):
        for name, value in found.items():
            yield from _marked(value, f"{place}.{name}", kind)
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from _marked(value, f"{place}[{index}]", kind)

"""Axes: what a sweep varies, by the names that users know, and the settings that come of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from syncopate.artifacts.plan import EXCHANGES
from syncopate.artifacts.results.whatif import AXES, Setting
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import parse_link

MOST_POINTS = 20_000
"""Of one sweep."""

BEST = "best"
"""What stands for the best exchange, policy or algorithm among others."""

_COUNTS = ("nodes", "gpus_per_node", "batch", "pull_period", "servers", "local_sgd")
_NAMES = ("exchange", "policy", "algorithm", "wire_dtype")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
_TIME = re.compile(r"\s*(\d*\.?\d+(?:e[+-]?\d+)?)\s*(us|ms|s)?\s*", re.IGNORECASE)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def values_of(axis: str, given: Any) -> tuple[Any, ...]:
    """Return the values of an axis as settings have them, each once.

    Args:
        axis: one of ``AXES`` but ``levels``.
        given: one value or several; in text, with commas between them. Counts may be a range:
            ``"4..64"`` doubles from 4 to 64, ``"4..64:4"`` goes by fours.

    Raises:
        InvalidValueError: none, or one that is no such value.
    """
    if isinstance(given, str):
        given = [item.strip() for item in given.split(",") if item.strip()]
    elif not isinstance(given, Iterable):
        given = [given]
    found = [value for item in given for value in _values(axis, item)]
    if not found:
        raise InvalidValueError(axis, given, "at least one value")
    return tuple(dict.fromkeys(found))


def _values(axis: str, item: Any) -> list[Any]:
    if axis in _COUNTS:
        return _counts(axis, item)
    if axis in _NAMES:
        return [_name(axis, item)]
    if axis == "bandwidth":
        return [_number(axis, parse_link(item) if isinstance(item, str) else item)]
    if axis == "latency":
        return [seconds(item)]
    return [_number(axis, item)]


def seconds(value: str | float) -> float:
    """Return a duration: of ``"20us"``, ``"1ms"``, or as it is.

    Raises:
        InvalidValueError: it is none.
    """
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        found = float(match[1]) * _UNITS[(match[2] or "s").lower()] if match else math.nan
    else:
        found = _float(value)
    if not 0 <= found < math.inf:
        raise InvalidValueError("latency", value, "a duration >= 0, such as 20us")
    return found


def _float(item: Any) -> float:
    """Return a number; NaN where it is none."""
    try:
        return float(item)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _number(axis: str, item: Any) -> float:
    found = _float(item)
    if not 0 < found < math.inf:
        raise InvalidValueError(axis, item, "a finite number > 0")
    return found


def _counts(axis: str, item: Any) -> list[int]:
    least = 0 if axis in ("pull_period", "servers", "local_sgd") else 1
    rule = f"an integer >= {least}, or a range such as 4..64 (doubling) or 4..64:4 (by fours)"
    if isinstance(item, str):
        match = _RANGE.fullmatch(item.strip())
        if match is not None:
            step = int(match[3]) if match[3] else None
            return _range(axis, item, int(match[1]), int(match[2]), step)
        if not item.strip().isdecimal():
            raise InvalidValueError(axis, item, rule)
        item = int(item)
    if isinstance(item, bool) or not isinstance(item, int) or item < least:
        raise InvalidValueError(axis, item, rule)
    return [item]


def _range(axis: str, text: str, first: int, last: int, step: int | None) -> list[int]:
    if first < 1 or last < first or step == 0:
        rule = "from an integer >= 1 up to one that is not smaller, by steps >= 1"
        raise InvalidValueError(axis, text, rule)
    if step is not None:
        if (last - first) // step >= MOST_POINTS:
            raise InvalidValueError(axis, text, f"at most {MOST_POINTS} values")
        return list(range(first, last + 1, step))
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return found if found[-1] == last else [*found, last]


def _name(axis: str, item: Any) -> str:
    if not isinstance(item, str):
        raise InvalidValueError(axis, item, "a name")
    if item == BEST or (axis == "wire_dtype" and item == "none"):
        return ""
    if axis == "exchange" and item not in EXCHANGES:
        raise UnknownNameError(axis, item, (*EXCHANGES, BEST))
    return item


class Axes:
    """The axes of a sweep.

    Args:
        values: of each axis, as :func:`values_of` returns them; of ``gpu_speed`` also names of
            profiles. ``levels`` maps ``"rack.bandwidth"`` and the like to values.

    Raises:
        UnknownNameError: no such axis.
        InvalidValueError: more than ``MOST_POINTS`` settings.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        for axis in values:
            if axis not in AXES:
                raise UnknownNameError("axis", axis, AXES)
        self._values: dict[str, Sequence[Any]] = {
            axis: values[axis] for axis in AXES if axis in values and axis != "levels"
        }
        self._levels: dict[str, Sequence[float]] = dict(values.get("levels", {}))
        count = math.prod(map(len, (*self._values.values(), *self._levels.values())))
        if count > MOST_POINTS:
            rule = f"at most {MOST_POINTS}: vary less, or in several sweeps"
            raise InvalidValueError("settings", count, rule)

    @property
    def varied(self) -> tuple[str, ...]:
        """The axes with several values, the outermost first."""
        several = [axis for axis, values in self._values.items() if len(values) > 1]
        return (*several, *(name for name, values in self._levels.items() if len(values) > 1))

    def of(self, axis: str) -> Sequence[Any]:
        """Return the values of an axis, or of a level; none where it is not given."""
        return self._values.get(axis) or self._levels.get(axis, ())

    def start(self, known: Setting) -> Setting:
        """Return today's setting: the known one, as far as it is among the values of each axis.

        Otherwise the most nodes are taken, and the first value of any other axis.

        Args:
            known: of the cluster and workload as they are.
        """
        for axis, values in self._values.items():
            near = (one for one in values if _is_same(one, getattr(known, AXES[axis])))
            other = max(values) if axis == "nodes" else values[0]
            known = _with(known, axis, next(near, other))
        chosen = tuple((name, values[0]) for name, values in self._levels.items())
        return replace(known, levels=chosen)

    def settings(self, base: Setting) -> Iterator[Setting]:
        """Yield every setting, the last axis varied first."""
        names = (*self._values, *self._levels)
        for values in product(*self._values.values(), *self._levels.values()):
            setting, levels = base, []
            for name, value in zip(names, values, strict=True):
                if name in self._levels:
                    levels.append((name, value))
                else:
                    setting = _with(setting, name, value)
            yield replace(setting, levels=tuple(levels))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _with(setting: Setting, axis: str, value: Any) -> Setting:
    if axis == "gpu_speed":
        named = isinstance(value, str)
        return replace(setting, profile=value if named else "", gpu_speed=1.0 if named else value)
    changed: Setting = replace(setting, **{AXES[axis]: value})
    return changed

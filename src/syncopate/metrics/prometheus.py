"""Prometheus: figures as text of its exposition format, version 0.0.4.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from syncopate.errors import InvalidValueError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What HTTP calls the text."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TOTAL = "_total"


class Sample(NamedTuple):
    """A value, and by its labels what it is of."""

    value: float
    labels: Mapping[str, str] = {}


class Metric(NamedTuple):
    """One figure, with a sample for each thing that it is of.

    Attributes:
        name: with its unit: ``syncopate_step_seconds``; a counter's ends with ``_total``.
        kind: whether it only grows.
        help: what it is, in a sentence.
        samples: its values now.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Sequence[Sample]


def rendered(metrics: Iterable[Metric]) -> bytes:
    """Return metrics as text, those of one name together.

    Raises:
        InvalidValueError: a name that the format does not allow.
    """
    heads: dict[str, Metric] = {}
    lines: dict[str, list[str]] = {}
    for metric in metrics:
        heads.setdefault(metric.name, metric)
        lines.setdefault(metric.name, []).extend(_lines(metric))
    text: list[str] = []
    for name, head in heads.items():
        told = head.help.replace("\\", r"\\").replace("\n", r"\n")
        text += [f"# HELP {name} {told}", f"# TYPE {name} {head.kind}", *lines[name]]
    return "".join(f"{line}\n" for line in text).encode()


def _lines(metric: Metric) -> Iterator[str]:
    if not _NAME.fullmatch(metric.name):
        raise InvalidValueError("name of a metric", metric.name, "letters, digits and _")
    if (metric.kind == "counter") != metric.name.endswith(_TOTAL):
        raise InvalidValueError(
            "name of a metric", metric.name, "with _total where it is a counter"
        )
    for value, labels in metric.samples:
        shown = ",".join(f'{_label(name)}="{_escaped(text)}"' for name, text in labels.items())
        labelled = f"{{{shown}}}" if shown else ""
        yield f"{metric.name}{labelled} {_number(value)}"


def _label(name: str) -> str:
    if not _LABEL.fullmatch(name):
        raise InvalidValueError("name of a label", name, "letters, digits and _")
    return name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(value)

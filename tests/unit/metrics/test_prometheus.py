"""Prometheus' text: names, labels, numbers, and what the format does not allow."""

from __future__ import annotations

import math

import pytest

from syncopate.errors import InvalidValueError
from syncopate.metrics.prometheus import Metric, Sample, rendered


def test_metrics_of_one_name_stand_together_under_one_head():
    steps = Metric("steps_total", "counter", "Steps.", [Sample(3, {"rank": "0"})])
    rate = Metric("rate", "gauge", "A rate.", [Sample(0.5)])
    again = Metric("steps_total", "counter", "Steps.", [Sample(4, {"rank": "1"})])
    assert rendered([steps, rate, again]).decode() == (
        "# HELP steps_total Steps.\n"
        "# TYPE steps_total counter\n"
        'steps_total{rank="0"} 3\n'
        'steps_total{rank="1"} 4\n'
        "# HELP rate A rate.\n"
        "# TYPE rate gauge\n"
        "rate 0.5\n"
    )


def test_labels_and_helps_are_escaped():
    metric = Metric("a", "gauge", "one\ntwo\\", [Sample(1, {"model": 'x"y\\z\n'})])
    assert rendered([metric]).decode().splitlines() == [
        r"# HELP a one\ntwo\\",
        "# TYPE a gauge",
        r'a{model="x\"y\\z\n"} 1',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1e300, "1e+300"), (2.0, "2")],
)
def test_numbers_are_written_as_the_format_has_them(value, text):
    assert rendered([Metric("a", "gauge", "", [Sample(value)])]).endswith(f"a {text}\n".encode())


@pytest.mark.parametrize(
    "metric",
    [
        Metric("a b", "gauge", "", [Sample(1)]),
        Metric("a", "counter", "", [Sample(1)]),
        Metric("a_total", "gauge", "", [Sample(1)]),
        Metric("a", "gauge", "", [Sample(1, {"a-b": ""})]),
    ],
)
def test_names_that_the_format_does_not_allow_are_refused(metric):
    with pytest.raises(InvalidValueError, match="name of a"):
        rendered([metric])

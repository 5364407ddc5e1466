"""Faults: where in a file something is wrong."""

from __future__ import annotations

import msgspec
import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.faults import not_json, twice
from syncopate.errors import ArtifactError
from tests.unit import examples

NO_NUMBER = "is no number of JSON; it must be a finite one"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": [1, {"b": NaN}]}', (f"NaN {NO_NUMBER}", "$.a[1].b")),
        (b"[-Infinity]", (f"-Infinity {NO_NUMBER}", "$[0]")),
        ('{"a": [NaN, 1e999]}', (f"NaN {NO_NUMBER}", "$.a[0]")),
        ('{"a": ', ("not valid JSON (damaged or truncated): what", "")),
        ('{"a": "NaN", ', ("not valid JSON (damaged or truncated): what", "")),
    ],
)
def test_a_number_that_json_does_not_have_is_named_with_its_field(text, told):
    assert not_json(text, "what") == told


def test_a_rule_that_is_broken_is_told_with_the_field_that_breaks_it():
    raw = msgspec.json.decode(examples.cluster().to_json())
    raw["levels"][1]["latency_s"] = -1.0
    with pytest.raises(ArtifactError, match=r"at \$\.levels\[1\]\.latency_s: latency_s is -1\.0"):
        Cluster.from_json(msgspec.json.encode(raw))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]}', None),
        ('{"a": "\\u0022: x", "b": "\\": y", "\\": z": 1}', None),
        ('{"a": 1, "b": 2, "a": 1}', "$.a"),
        ('{"c": [{"a" : 3}, {"x":1, "a"\n:\t4, "a" : 5}]}', "$.c[1].a"),
        ('{"a" : 1, "b": {"\\u0061": 1, "a": [{"z": 1, "z": 2}]}}', "$.b.a"),
    ],
)
def test_a_field_that_stands_twice_is_named(text, field):
    raw = msgspec.json.decode(text)
    told = field and (f"{field[-1]!r} stands twice in this object; leave one of them out", field)
    assert twice(text, raw) == twice(text.encode(), raw) == told


def test_a_file_with_a_field_that_stands_twice_is_refused():
    text = examples.cluster().to_json().decode()
    with pytest.raises(
        ArtifactError, match=r"c.json at \$\.levels\[0\]\.size: 'size' stands twice"
    ):
        Cluster.from_json(text.replace('"size":', '"size": 2, "size":', 1), "c.json")


@pytest.mark.parametrize(
    ("number", "shown"),
    [("1e999", "1e999"), ("-1e999", "-1e999"), ("9" * 10_000, "9" * 40 + " .. (10000 digits)")],
)
def test_a_number_that_no_float_holds_is_told_with_its_field(number, shown):
    text = examples.cluster().to_json().decode()
    with pytest.raises(ArtifactError) as refused:
        Cluster.from_json(text.replace('"latency_s": 5e-6', f'"latency_s": {number}'), "c.json")
    told = f"c.json at $.levels[0].latency_s: {shown} is out of range; numbers are below 1.8e+308"
    assert str(refused.value) == told

"""Artefacts: strict reading, errors that name path, field and reason."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.errors import ArtifactError, InvalidValueError
from tests.unit import strategies

ARTEFACTS = (Cluster, Workload, Plan, Timeline)


class Leaf(Record, frozen=True, kw_only=True):
    size: int

    def __post_init__(self):
        if self.size < 1:
            raise InvalidValueError("size", self.size, "an integer >= 1")


class Tree(Artifact, frozen=True, kw_only=True):
    KIND: ClassVar[str] = "tree"
    SCHEMA_VERSION: ClassVar[int] = 3

    name: str
    leaves: tuple[Leaf, ...] = ()
    height: float = 1.0


def _text(**changes):
    fields = {"kind": "tree", "schema_version": 3, "name": "oak", "leaves": [{"size": 1}]}
    fields.update(changes)
    return json.dumps({key: value for key, value in fields.items() if value is not ...})


def test_a_round_trip_through_a_file_in_a_new_folder(tmp_path):
    tree = Tree(name="æøå", leaves=(Leaf(size=1), Leaf(size=2)), height=0.1)
    path = tree.save(tmp_path / "new" / "tree.json")
    assert Tree.load(path) == tree
    assert list(json.loads(path.read_text()))[:2] == ["kind", "schema_version"]
    assert Tree.from_json(_text()) == Tree(name="oak", leaves=(Leaf(size=1),))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not valid JSON"),
        ('{"kind": "tree", ', "damaged or truncated"),
        (b'{"kind": "\xff"}', "not valid"),
        ("[" * 100_000, "deeper than any file of this kind needs"),
        ("[]", r"at \$: expected a JSON object, found list"),
        ("null", r"at \$: expected a JSON object, found NoneType"),
        (_text(kind="plan"), r"at \$\.kind: expected a 'tree' artefact, found 'plan'"),
        (_text(kind=...), "found None"),
        (_text(schema_version=...), r"at \$\.schema_version: missing; expected 3"),
        (_text(schema_version=4), "version 4 is newer than this Syncopate reads .3.; upgrade"),
        (_text(schema_version=2), "version 2 is not readable; expected 3"),
        (_text(schema_version=True), "version True"),
        (_text(schema_version="3"), "version '3' is not readable"),
        (_text(name=...), r"at \$: Object missing required field `name`"),
        (_text(name=5), r"at \$\.name: Expected `str`, got `int`"),
        (_text(colour="red"), "unknown field `colour`"),
        (_text(leaves=[{"size": 1}, {"size": "2"}]), r"at \$\.leaves\[1\]\.size: Expected `int`"),
        (_text(leaves=[{"size": 0}]), r"at \$\.leaves\[0\]\.size: size is 0; it must be an"),
        (_text(leaves=[{"size": 1, "x": 1}]), r"at \$\.leaves\[0\]: .*unknown field `x`"),
    ],
)
def test_anything_else_is_refused_by_path_and_field(text, complaint):
    with pytest.raises(ArtifactError, match=rf"^oak\.json.*{complaint}") as caught:
        Tree.from_json(text, source="oak.json")
    assert caught.value.path == "oak.json"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("cls", ARTEFACTS)
def test_a_missing_file_and_a_folder_are_refused(tmp_path, cls):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ArtifactError, match=f"cannot read this {cls.KIND} file"):
            cls.load(path)


@given(st.data())
def test_a_truncated_artefact_is_never_half_read(data):
    text = data.draw(strategies.plans()).to_json().rstrip()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ArtifactError):
        Plan.from_json(text[:cut])


@given(st.data())
def test_a_plan_is_no_workload(data):
    with pytest.raises(ArtifactError, match="expected a 'workload' artefact, found 'plan'"):
        Workload.from_json(data.draw(strategies.plans()).to_json())

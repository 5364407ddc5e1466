"""Points: their error, and validations that grow and are read back."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.validation.point import Phase, Validation
from tests.unit.validation.made import point


def test_an_error_is_the_prediction_over_the_median_of_the_measurements():
    found = structs.replace(point(1.0), samples_s=(2.0, 0.8, 0.7))
    assert (found.measured_s, found.error) == (0.8, pytest.approx(0.25))
    assert found.ratio == pytest.approx(0.8)
    assert structs.replace(found, again_s=(1.0, 1.2)).measured_s == 1.0


def test_a_validation_is_read_back_whole(tmp_path):
    phases = (Phase(name="update", predicted_s=0.1, measured_s=0.2),)
    points = (structs.replace(point(1.1), phases=phases), point(0.9, kind="gpu"))
    validation = Validation(points=points, metadata={"cores": "2"})
    assert Validation.load(validation.save(tmp_path / "v.json")) == validation
    assert [len(validation.of(kind)) for kind in ("gpu", "lab")] == [1, 1]


def test_a_point_measured_anew_takes_the_place_of_the_old_one():
    one = Validation(points=(point(1.1, name="a"), point(1.2, name="b")))
    two = one.with_points([point(1.3, name="a"), point(1.4, name="c")])
    assert [(p.name, p.measured_s) for p in two.points] == [("a", 1.3), ("b", 1.2), ("c", 1.4)]


def test_what_is_no_point_is_refused():
    with pytest.raises(InvalidValueError, match="at least one duration"):
        structs.replace(point(1.0), samples_s=())
    with pytest.raises(UnknownNameError, match="known: gpu, lab"):
        point(1.0, kind="tpu")
    with pytest.raises(InvalidValueError, match="each kind and name once"):
        Validation(points=(point(1.0, name="a"), point(1.1, name="a")))
    with pytest.raises(ArtifactError, match=r"points\[0\]"):
        Validation.from_json('{"kind":"validation","schema_version":2,"points":[{}]}')

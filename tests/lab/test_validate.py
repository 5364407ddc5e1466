"""Validate in a lab: real processes on emulated hosts, and predictions beside them."""

from __future__ import annotations

import pytest

import syncopate
from syncopate.validation import validate as function
from syncopate.validation.grid import Cell
from syncopate.validation.point import LAB, Validation

CELLS = (
    Cell(hosts=2, rate="250mbit", racks=1, exchange="allreduce", work="replayed"),
    Cell(hosts=2, rate="1gbit", racks=1, exchange="served", work="replayed"),
)


@pytest.fixture
def few_cells(monkeypatch):
    monkeypatch.setattr(function, "cells", lambda: CELLS)


@pytest.mark.usefixtures("few_cells")
def test_cells_are_predicted_from_another_rate_and_measured_and_kept(tmp_path):
    path = tmp_path / "validation.json"
    first = syncopate.validate(path, points=1, quick=True)
    assert first.missing == {}
    (point,) = first.of(LAB)
    assert (point.name, point.calibrated) == (CELLS[0].name, "2 hosts x 1 rank at 700.00 Mbit/s")
    # 25.6 MB pass a link of 250 Mbit/s in 0.82 s: no iteration is shorter than that.
    assert point.measured_s > 0.82
    assert point.prediction.bound_s > 0.82
    measured = {phase.name: phase.measured_s for phase in point.phases}
    assert measured["communication"] > measured["exposed communication"] > 0
    second = syncopate.validate(path, points=2, quick=True)
    assert second.missing == {}
    assert [one.name for one in second.of(LAB)] == [cell.name for cell in CELLS]
    assert second.of(LAB)[0] == point
    assert second.homes == first.homes
    assert Validation.load(path) == second

"""Faults: what the environment may ask for."""

from __future__ import annotations

import pytest

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.paramserver.wire.faults import VARIABLE, Faults, faults_from


def test_faults_are_off_unless_asked_for():
    assert faults_from({}) is None
    assert Faults().delays() == [0.0]


def test_faults_happen_as_often_as_asked_for():
    faults = faults_from({VARIABLE: "drop=0.3,duplicate=0.5,delay=2,seed=4"})
    copies = [faults.delays() for _ in range(2000)]
    assert 500 < sum(not copy for copy in copies) < 700
    assert 600 < sum(len(copy) == 2 for copy in copies) < 800
    delays = [delay for copy in copies for delay in copy]
    assert 0 <= min(delays) < 0.1
    assert 1.9 < max(delays) <= 2
    again = faults_from({VARIABLE: "drop=0.3,duplicate=0.5,delay=2,seed=4"})
    assert [again.delays() for _ in range(2000)] == copies


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("lose=0.1", UnknownNameError),
        ("drop=often", InvalidValueError),
        ("drop=1.5", InvalidValueError),
    ],
)
def test_faults_that_make_no_sense_are_refused(text, error):
    with pytest.raises(error):
        faults_from({VARIABLE: text})

"""What ranks compare before a collective: all of a title, however long."""

from __future__ import annotations

import pytest

from syncopate.collectives.health import agreement
from syncopate.collectives.health.blame import Call
from syncopate.errors import CollectiveError, InvalidValueError


class Told:
    """What two ranks tell each other: this one's row, and that of the rank before."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def all_gather_rows(self, row: bytes) -> list[bytes]:
        self.rows.append(row)
        return [row, self.rows[0]]


def compare(mine: Call, other: Call) -> None:
    """Let two ranks compare what they are about to do; return, or raise, as the first of them."""
    told = Told()
    for call in (other, mine):  # the other one meets itself alone, and agrees
        agreement.require_agreement(call, told)  # type: ignore[arg-type]
    first, second = told.rows
    assert len(first) == len(second), "rows of different lengths cannot be gathered"


@pytest.mark.parametrize("length", [8, 150, 200])
def test_titles_of_any_length_are_told_apart_by_their_ends(length: int) -> None:
    call = Call("x" * length + " with bounds (0, 3, 8)", 0, 7, 8, "float32")
    other = Call("x" * length + " with bounds (0, 4, 8)", 0, 7, 8, "float32")
    compare(call, call)
    with pytest.raises(CollectiveError, match="the ranks disagree about what comes next"):
        compare(call, other)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [(None, False), ("", False), *((one, True) for one in ("1", "on", "Yes", "TRUE"))]
    + [(one, False) for one in ("0", "off", "no", "False")],
)
def test_the_environment_switches_it(monkeypatch, said, wanted) -> None:
    monkeypatch.delenv(agreement.VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(agreement.VARIABLE, said)
    assert agreement.wanted() is wanted


def test_another_word_is_no_switch(monkeypatch) -> None:
    monkeypatch.setenv(agreement.VARIABLE, "maybe")
    with pytest.raises(
        InvalidValueError, match="SYNCOPATE_CHECK is 'maybe'; it must be 1, on, yes"
    ):
        agreement.wanted()

"""Page: the document that a validation becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from syncopate.validation.page import page
from syncopate.validation.point import Phase, Validation
from syncopate.validation.published import gpu_points
from syncopate.validation.table import validation_table
from tests.unit.validation.made import point

DOCUMENT = Path(__file__).parents[3] / "docs" / "validation.md"


def test_the_page_of_the_documents_is_what_is_written_today():
    """Its part on GPUs, whole; labs are measured, and differ from machine to machine."""
    today = page(Validation(points=gpu_points()))
    head = "## Emulated hosts"
    assert DOCUMENT.read_text().split(head)[0] == today.split(head)[0]


def test_without_figures_of_a_lab_the_page_says_so():
    text = page(Validation(points=gpu_points()))
    assert "**No figures yet.**" in text
    assert "**No figures yet.**" not in page(Validation(points=(point(1.0),)))


def test_a_page_has_errors_phases_coverage_and_what_is_missing():
    phases = (Phase(name="update", predicted_s=0.2, measured_s=0.1),)
    points = [
        structs.replace(point(1 / (1 + index / 100), name=f"p{index}"), phases=phases)
        for index in range(30)
    ]
    found = Validation(points=tuple(points), missing={"8 hosts": "rank 3 was lost"})
    text = page(found)
    assert "| error, median | 14.5% |" in text
    assert "| worst | +29.0%, p29 |" in text
    assert "| it holds | 28 of 30 points, 93% |" in text
    assert "| p3 | 1.00 s | 970.87 ms | +3.0% |" in text
    assert "| update | 30 | +11.5% | +12.9% |" in text
    assert "Not measured: 8 hosts: rank 3 was lost" in text


def test_a_terminal_shows_each_kind_and_its_exchanges():
    found = Validation(points=(*gpu_points(), point(1.25, exchange="sharded")))
    table = validation_table(found)
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == [
        "GPUs, published", "  BSP", "  WFBP", "  MG-WFBP", "emulated hosts", "  sharded"
    ]  # fmt: skip
    assert columns[1] == ["27", "9", "9", "9", "1", "1"]
    assert columns[4][-1] == "-20.0%"
    assert columns[5][0] == "24 of 27, made without each"
    assert columns[5][4] == "too few points"


def test_where_hosts_share_processors_what_that_costs_is_added():
    """1 s is predicted and 1.25 s measured; where links are no limit, 0.6 s and 0.8 s."""
    bare = point(1.25)
    unlimited = Phase(name="links no limit", predicted_s=0.6, measured_s=0.8)
    shared = structs.replace(bare, unlimited=unlimited)
    assert bare.expected_s == 1.0
    assert shared.expected_s == pytest.approx(1.2)
    assert shared.error == pytest.approx(1.2 / 1.25 - 1)
    faster = structs.replace(unlimited, measured_s=0.5)
    assert structs.replace(bare, unlimited=faster).error == bare.error
    text = page(Validation(points=(shared,)))
    assert "| training | predicted | links no limit: predicted, measured | measured |" in text
    assert "| 1.00 s | 600.00 ms, 800.00 ms | 1.25 s | -4.0% |" in text
    assert "| with what shared processors add | 1 | 4.0% |" in text
    assert "| predictions alone | 1 | 20.0% |" in text
    assert "| they add more | 1 | 4.0% |" in text
    assert "shared processors add up to 10%" not in text


def test_a_training_and_itself_say_how_near_a_prediction_can_be():
    """Of five turns of a second one took a tenth longer and one a fifth less; again it took 0.7."""
    bare = point(1.0)
    one = structs.replace(bare, samples_s=(1.0, 1.0, 1.0, 1.1, 0.8), again_s=(0.6, 0.7, 0.8))
    text = page(Validation(points=(one,)))
    assert f"| {one.work}, turns | 5 | 0.0% | 20.0% |" in text
    assert f"| {one.work}, started again | 1 | 30.0% | 30.0% |" in text
    assert "| one training, from itself |" not in page(Validation(points=(bare,)))

"""What changed from one run to another, of timelines made by hand."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from syncopate.analysis.difference import difference
from syncopate.artifacts.timeline import Timeline
from syncopate.errors import InvalidValueError
from tests.unit.analysis.made import made


def verdict(before, after=lambda r, i: {}, *, iterations=5, **made_with):
    return difference(made(2, iterations, before), made(2, iterations, after, **made_with)).verdict


def nothing(rank, iteration):
    return {}


def test_the_same_run_has_not_changed():
    found = difference(made(2, 5), made(2, 5))
    assert found.verdict == (
        "nothing changed beyond the spread: an iteration takes 9.00 s, now 9.00 s"
    )
    assert not any(change.differs for change in found.changes)


def test_the_network_is_told_from_computation():
    said = verdict(nothing, lambda r, i: {"transfers_s": (1.8, 3.6)})
    assert said == (
        "an iteration takes 1.18x as long (9.00 s, now 10.60 s); computing is the same, "
        "transfers take 1.80x as long: the network"
    )


def test_computation_is_told_from_the_network():
    said = verdict(nothing, lambda r, i: {"forward_s": 4.0, "backward_s": 8.0, "update_s": 2.0})
    assert said.endswith("computing takes 2.00x as long: the computation")


def test_a_straggler_is_named():
    said = verdict(nothing, lambda r, i: {"backward_s": 8.0} if r == 1 else {})
    # Rank 0 has bucket 0 transferred from 6 to 7, its own backward over; then it waits to 10.
    assert said == (
        "an iteration takes 1.44x as long (9.00 s, now 13.00 s); computing is the same, "
        "ranks wait 1.50 s more for the slowest, 500.00 ms more of transfers is exposed, "
        "which take as long as before: rank 1 (compute)"
    )


def test_more_bytes_are_no_slower_network():
    said = verdict(nothing, lambda r, i: {"transfers_s": (2.0, 4.0)}, nbytes=(200, 400))
    assert said.endswith("600 B are sent instead of 300 B: the plan or the model")


def test_slow_input_is_told():
    said = verdict(nothing, lambda r, i: {"input_s": 3.0})
    assert said.endswith("computing is the same, input takes 3.00 s more: the input")


def test_a_slower_network_that_is_hidden_costs_nothing():
    said = verdict(
        lambda r, i: {"transfers_s": (0.5, 0.5), "ready": (0.2, 0.5)},
        lambda r, i: {"transfers_s": (0.7, 0.7), "ready": (0.2, 0.5)},
    )
    assert said.endswith("are hidden: the network, which costs nothing here")


def test_noise_is_no_change():
    chance = random.Random(3)

    def noisy(rank, iteration):
        return {"forward_s": 2.0 * chance.uniform(0.8, 1.2)}

    assert verdict(noisy, noisy, iterations=20).startswith("nothing changed beyond the spread")


def test_few_iterations_have_no_verdict():
    said = verdict(nothing, lambda r, i: {"forward_s": 9.0}, iterations=2)
    assert said.startswith("no verdict: 2 iterations have no spread")
    exact = [replace(made(2, 1), source="simulated") for _ in range(2)]
    assert difference(*exact).verdict.startswith("nothing changed")


def test_nothing_computed_is_refused():
    empty = Timeline(name="empty", source="measured", world_size=2, spans=())
    with pytest.raises(InvalidValueError, match=r"empty is '0 spans'.*with computation"):
        difference(made(2, 5), empty)

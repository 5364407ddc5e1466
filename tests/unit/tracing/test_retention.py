"""Retention: which iterations of a long training stay."""

from __future__ import annotations

import numpy as np
import pytest

from syncopate.errors import InvalidValueError
from syncopate.tracing.retention import Retention, kept, retention


def _kept(durations_s: list[float], nbytes: int, keep: Retention) -> tuple[set[int], int]:
    count = len(durations_s)
    found, every = kept(np.arange(count), np.array(durations_s), np.full(count, nbytes), keep)
    return set(np.flatnonzero(found).tolist()), every


def test_the_last_every_kth_and_unusual_ones_with_the_next() -> None:
    durations_s = [1.0] * 500
    durations_s[123], durations_s[300], durations_s[77] = 1.6, 9.0, 1.4
    found, every = _kept(durations_s, 100, Retention(last=50, every=100))
    assert found == {0, 100, 200, 300, 400, 123, 124, 301, *range(450, 500)}
    assert every == 100


def test_what_there_is_no_room_for_is_thinned_further() -> None:
    keep = Retention(last=None, every=2, limit_bytes=400_000)  # 100 KB are left
    found, every = _kept([1.0] * 4000, 100, keep)
    assert every == 16  # 218 of 250 that have room
    assert set(range(3500, 4000)) <= found
    assert found == {*range(0, 3500, 16), *range(3500, 4000)}


def test_of_many_unusual_ones_the_longest_stay() -> None:
    durations_s = [1.0 + (i % 10 == 3) * (1 + i / 1000) for i in range(1000)]
    found, _ = _kept(durations_s, 1000, Retention(last=10, every=0, limit_bytes=400_000))
    odd = {i for i in found if i % 10 == 3}
    assert odd >= {983, 973, 903}
    assert 3 not in odd
    assert len(found) * 1000 <= 100_000


def test_a_training_that_becomes_faster_was_not_unusual_before() -> None:
    durations_s = [2.0] * 303 + [1.0] * 303
    found, _ = _kept(durations_s, 1, Retention(last=10, every=0))
    assert found == set(range(596, 606))


def test_one_iteration_stays_however_large() -> None:
    found, _ = _kept([1.0] * 3, 1 << 30, Retention())
    assert found == {2}


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "10" * 20])
def test_what_is_no_number_is_refused_by_its_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCOPATE_TRACE_LAST", text)
    with pytest.raises(InvalidValueError, match="SYNCOPATE_TRACE_LAST"):
        retention()


def test_a_limit_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="limit_bytes is 1000"):
        retention(limit_bytes=1000)

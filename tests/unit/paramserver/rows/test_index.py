"""The index of rows: every row has one slot, in every order of arrival."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.paramserver.rows.hashing import hash_of
from syncopate.paramserver.rows.index import RowIndex

IDS = st.lists(st.lists(st.integers(0, 2**62 - 1), max_size=40), max_size=8)


@given(batches=IDS)
def test_rows_are_found_where_they_were_put(batches):
    index, known = RowIndex(), {}
    for batch in batches:
        ids = np.unique(np.array(batch, np.int64))
        slots = index.find(ids)
        assert slots.tolist() == [known.get(each, -1) for each in ids.tolist()]
        new = ids[slots < 0]
        added = index.add(new)
        known |= dict(zip(new.tolist(), added.tolist(), strict=True))
    everything = np.array(sorted(known), np.int64)
    assert index.find(everything).tolist() == [known[each] for each in everything.tolist()]
    assert sorted(known.values()) == list(range(index.count))


def test_many_rows_whose_places_are_the_same_are_told_apart():
    candidates = np.arange(1 << 19)
    same = candidates[hash_of(candidates) & np.uint64(1023) == 7][:300]
    index = RowIndex()
    assert len(same) == 300
    assert index.add(same).tolist() == list(range(300))
    assert index.find(same[::-1].copy()).tolist() == list(range(299, -1, -1))
    assert (index.find(candidates[:50][~np.isin(candidates[:50], same)]) == -1).all()


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 100_000])
def test_an_index_grows(count):
    index, ids = RowIndex(), np.arange(count, dtype=np.int64) * 977
    for part in np.array_split(ids, 3):
        index.add(part)
    assert index.find(ids).tolist() == list(range(count))

"""Where rows are kept and what they begin with: by seed and number alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncopate.paramserver.rows.hashing import initial_rows, mixed, servers_of
from syncopate.protocol.table import Constant, Normal, Table, Uniform

INITIALS = [Constant(0.5), Uniform(-2.0, 3.0, seed=4), Normal(1.0, 0.5, seed=9)]


def test_the_hash_is_that_of_splitmix64():
    """The first two numbers of the published generator, from 0."""
    step = np.uint64(0x9E3779B97F4A7C15)
    states = np.array([0, 0x9E3779B97F4A7C15], np.uint64) + step
    assert mixed(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("initial", INITIALS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_is_the_same_in_any_company(initial, dtype):
    table = Table(rows=10**9, width=7, dtype=dtype, initial=initial)
    ids = np.array([3, 999_999_999, 17, 3])
    rows = initial_rows(table, ids)
    assert rows.dtype == getattr(torch, dtype)
    assert rows.shape == (4, 7)
    for row, number in zip(rows, ids, strict=True):
        assert torch.equal(row, initial_rows(table, np.array([number]))[0])


@pytest.mark.parametrize("initial", INITIALS[1:])
def test_rows_and_seeds_differ(initial):
    table = Table(rows=1000, width=5, initial=initial)
    other = Table(rows=1000, width=5, initial=type(initial)(**_numbers(initial), seed=1))
    ids = np.arange(1000)
    one, two = initial_rows(table, ids), initial_rows(other, ids)
    assert len(torch.unique(one)) > 4900
    assert not torch.isclose(one, two).all(dim=1).any()


def _numbers(initial):
    return {name: getattr(initial, name) for name in initial.__struct_fields__[:2]}


def test_rows_begin_as_they_are_said_to():
    ids = np.arange(50_000)
    uniform = initial_rows(Table(rows=10**6, width=4, initial=Uniform(-1.0, 3.0)), ids)
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(float(uniform.mean()) - 1) < 0.02
    normal = initial_rows(Table(rows=10**6, width=4, initial=Normal(2.0, 0.1)), ids)
    assert abs(float(normal.mean()) - 2) < 0.002
    assert abs(float(normal.std()) - 0.1) < 0.002
    assert abs(float(((normal - 2) / 0.1).pow(4).mean()) - 3) < 0.1
    pairs = torch.corrcoef(normal.T) - torch.eye(4)
    assert pairs.abs().max() < 0.02


@given(servers=st.integers(1, 9), stride=st.sampled_from([1, 2, 8, 1024, 10**6]))
def test_servers_have_about_as_many_rows_each(servers, stride):
    counts = np.bincount(servers_of(np.arange(20_000) * stride, servers), minlength=servers)
    assert len(counts) == servers
    assert counts.max() < 1.2 * 20_000 / servers

"""A server's tensors: means that wait for the norm of a step, and gradients that are not there."""

from __future__ import annotations

import math

import pytest
import torch

from syncopate.paramserver.storage.shard import Shard
from syncopate.paramserver.tensors import flat_bytes, frame_of
from syncopate.protocol.actions import Add, Initialise, Measure, Stage, Update
from syncopate.protocol.placement.bundle import BUNDLE, Cut
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import SGD, Rules

RULES = Rules(optimizer=SGD(lr=1.0), clip_norm=1.0)
BOTH = ((0, 1), (1, 1))


def begun(*slices, rules=RULES):
    shard = Shard()
    shard.keep(rules, slices)
    for piece in slices:
        stage(shard, piece.key, 0, 0, torch.zeros(piece.numel))
        shard.initialise(Initialise(piece.key, 0))
    return shard


def stage(shard, key, worker, sequence, values):
    shard.stage(Stage(key, worker, sequence), frame_of(flat_bytes(values)))


def weights(shard, key):
    return shard.snapshot(key)["weights"].tolist()


def test_a_mean_waits_for_the_norm_and_is_scaled_by_it():
    shard = begun(Slice(0, "a", "float32", 0, 2))
    stage(shard, 0, 0, 1, torch.tensor([6.0, 0.0]))
    shard.add(Add(0, 0, 1))
    stage(shard, 0, 1, 1, torch.tensor([0.0, 8.0]))
    assert shard.measure(Measure(0, 1, BOTH)) == 3.0**2 + 4.0**2
    stage(shard, 0, 0, 2, torch.ones(2))  # a worker may be ahead
    assert shard.waiting == 2
    shard.update(Update(0, 1, BOTH, None, None, 5.0))
    assert weights(shard, 0) == pytest.approx([-0.6, -0.8])
    assert shard.waiting == 1


@pytest.mark.parametrize(("norm", "expected"), [(0.5, -1.0), (math.inf, 0.0), (math.nan, None)])
def test_a_norm_that_is_small_or_not_finite_does_what_torchs_does(norm, expected):
    shard = begun(Slice(0, "a", "float32", 0, 1))
    stage(shard, 0, 0, 1, torch.ones(1))
    shard.measure(Measure(0, 1, ((0, 1),)))
    shard.update(Update(0, 1, ((0, 1),), None, None, norm))
    (found,) = weights(shard, 0)
    assert found == expected if expected is not None else math.isnan(found)


def test_a_gradient_that_is_not_there_counts_as_zeros_beside_others():
    shard = begun(Slice(0, "a", "float32", 0, 1), Slice(1, "b", "float32", 0, 1))
    for key in (0, 1):
        stage(shard, key, 0, 1, torch.empty(0))
        shard.add(Add(key, 0, 1))
    stage(shard, 0, 1, 1, torch.ones(1))
    stage(shard, 1, 1, 1, torch.empty(0))
    assert [shard.measure(Measure(key, 1, BOTH)) for key in (0, 1)] == [0.25, 0.0]
    for key in (0, 1):
        shard.update(Update(key, 1, BOTH, None, None, 0.5))
    assert [weights(shard, key) for key in (0, 1)] == [[-0.5], [0.0]]
    assert shard.waiting == 0


@pytest.mark.parametrize("there", [True, False])
def test_a_bundle_may_be_cut_while_its_mean_waits(there):
    parts = (Slice(0, "a", "float32", 0, 1), Slice(1, "b", "float32", 0, 2))
    whole = Slice(2 * BUNDLE, "a and 1 more", "float32", 0, 3)
    shard = begun(whole)
    stage(shard, whole.key, 0, 1, torch.tensor([1.0, 2.0, 2.0]) if there else torch.empty(0))
    assert shard.measure(Measure(whole.key, 1, ((0, 1),))) == (9.0 if there else 0.0)
    shard.split(Cut(whole.key, parts))
    for piece in parts:
        shard.update(Update(piece.key, 1, ((0, 1),), None, None, 3.0))
    found = [weights(shard, piece.key) for piece in parts]
    expected = [[-1 / 3], [-2 / 3, -2 / 3]] if there else [[0.0], [0.0, 0.0]]
    assert found == [pytest.approx(each, rel=1e-5) for each in expected]
    assert shard.waiting == 0


def test_groups_are_updated_each_by_its_own_rule():
    rules = Rules(optimizer=SGD(lr=1.0), groups=(SGD(lr=10.0),))
    slices = (Slice(0, "a", "float32", 0, 1), Slice(1, "b", "float32", 0, 1, None, 1))
    shard = begun(*slices, rules=rules)
    for key in (0, 1):
        stage(shard, key, 0, 1, torch.ones(1))
        shard.update(Update(key, 1, ((0, 1),), None, None))
    assert [weights(shard, key) for key in (0, 1)] == [[-1.0], [-10.0]]

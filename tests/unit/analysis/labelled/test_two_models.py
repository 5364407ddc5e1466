"""Explain of a training of two models, one after the other in each iteration, as a GAN is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncopate.analysis.causes.explanation import explanation
from syncopate.tracing.foreign import read_timeline
from tests.unit.analysis.labelled import forms
from tests.unit.analysis.labelled.machine import Compute, Launch, Row, Step, Wait, played
from tests.unit.analysis.labelled.trainings import MS, lasts_s

RANKS, ITERATIONS = 4, 12
NETWORKS = {"discriminator": (3, 6.0, 4.0), "generator": (4, 8.0, 5.0)}
"""Layers, the forward of one of them, and the all-reduce of its gradients, in milliseconds."""

_Slow = tuple[int, str, float]
"""A rank computes one of the networks so many times as long."""


def trained(slow: _Slow | None = None) -> list[Row]:
    return played([_steps(rank, slow) for rank in range(RANKS)])


def _steps(rank: int, slow: _Slow | None) -> Iterator[Step]:
    luck = random.Random(rank)
    for i in range(ITERATIONS):
        yield Compute("", 0.5 * MS, i)
        for name, (layers, layer_ms, transfer_ms) in NETWORKS.items():
            by = slow[2] if slow and slow[:2] == (rank, name) else 1.0
            for _ in range(layers):
                yield Compute("forward", layer_ms * by * luck.gauss(1, 0.02) * MS, i)
            keys: list[tuple[object, ...]] = [(name, i, layer) for layer in range(layers)]
            for key in keys:
                yield Compute("backward", 2 * layer_ms * by * luck.gauss(1, 0.02) * MS, i)
                every = tuple(range(RANKS))
                yield Launch(
                    key, "all_reduce", "", every, 1 << 20, transfer_ms * MS, 0.0, "dp", i
                )  # fmt: skip
            for key in keys:
                yield Wait(key)
            yield Compute("update", 4.0 * MS, i)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_rank_that_is_slow_in_one_of_two_models(network: str, tmp_path: Path) -> None:
    rows = trained((1, network, 1.6))
    found = explanation(read_timeline(forms.table(rows, tmp_path)))
    assert found.abstains == ()
    assert (found.causes[0].kind, found.causes[0].ranks) == ("compute", (1,))
    cost_s = lasts_s(rows) - lasts_s(trained())
    assert found.causes[0].gain_s == pytest.approx(cost_s, rel=0.05)


def test_no_rank_is_blamed_for_two_models(tmp_path: Path) -> None:
    found = explanation(read_timeline(forms.table(trained(), tmp_path)))
    assert (found.abstains, [one.kind for one in found.causes]) == ((), ["transfers"])

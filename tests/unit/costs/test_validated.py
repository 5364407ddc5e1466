"""Validated: what lies outside of what was held against measurements."""

from __future__ import annotations

import pytest

from syncopate.costs.validated import BY_KIND, VALIDATED

GPU = BY_KIND["gpu"]


@pytest.mark.parametrize(
    ("ranks", "bytes_per_s", "said"),
    [
        ([8, 32], [1.175e9, 12.5e9], []),
        ([64], [1.25e9], ["64 ranks lie outside of what was validated, 8 to 32"]),
        ([4, 16], [1.25e9], ["4 to 16 ranks lie outside of what was validated, 8 to 32"]),
        (
            [16],
            [0.125e9, 1.25e9],
            [
                "links of 1.00 Gbit/s to 10.00 Gbit/s lie outside of what was validated, "
                "10.00 Gbit/s to 100.00 Gbit/s"
            ],
        ),
    ],
)
def test_clusters_outside_of_what_was_validated_are_said_to_be(ranks, bytes_per_s, said):
    assert list(GPU.outside(ranks, bytes_per_s)) == said


def test_each_kind_has_one_row():
    assert len(BY_KIND) == len(VALIDATED)
    assert all(row.median <= row.p90 for row in VALIDATED)

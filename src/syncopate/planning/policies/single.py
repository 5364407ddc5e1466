"""Single: all gradients in one collective after backward, as SyncEASGD does.

Reference: You, Buluç and Demmel, "Scaling deep learning on GPU and Knights Landing clusters"
(SC 2017); MG-WFBP, Section I.
"""

from __future__ import annotations

from syncopate.planning.problem import Partition, Problem


def single(problem: Problem) -> Partition:
    """Return one bucket of everything."""
    return (problem.length,)

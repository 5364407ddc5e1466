"""WFBP: wait-free backpropagation, one collective per gradient as soon as it is ready.

Reference: MG-WFBP, Section II-C; Zhang et al., "Poseidon" (USENIX ATC 2017).
"""

from __future__ import annotations

from syncopate.planning.problem import Partition, Problem


def wfbp(problem: Problem) -> Partition:
    """Return one bucket per gradient."""
    return tuple(range(1, problem.length + 1))

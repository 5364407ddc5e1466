"""Points made by hand."""

from __future__ import annotations

from syncopate.artifacts.plan import Prediction
from syncopate.validation.point import Point


def point(ratio: float, *, name: str = "", kind: str = "lab", exchange: str = "allreduce") -> Point:
    """Return a point that was measured to take ``ratio`` times its prediction of 1 s."""
    return Point(
        kind=kind,
        name=name or f"{ratio:.4f}",
        work="made",
        network="1 Gbit/s",
        ranks=4,
        hosts=4,
        exchange=exchange,
        way="auto",
        calibrated="elsewhere",
        prediction=Prediction(
            iteration_s=1.0, compute_s=0.5, communication_s=0.7, exposed_s=0.5, bound_s=0.5
        ),
        samples_s=(ratio,),
    )

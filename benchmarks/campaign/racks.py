"""Part ``racks``: an all-reduce between two racks, ranks alternating between them.

Neighbours by rank are in different racks, so a ring in rank order, such as Gloo's, crosses the
uplinks with every message. ``auto`` has to find the racks by calibration; beside it is ``auto`` on
the nominal cluster, which knows them.
"""

from __future__ import annotations

from typing import Any

from syncopate.costs.decide.options import best_options
from syncopate.schedules.registry import fitted
from syncopate.units import MIB

from .results import label
from .session import Session, found_by
from .timing import Contender

SIZES = (MIB, 8 * MIB, 32 * MIB)
COLLECTIVE = "all_reduce"


def measure(session: Session) -> dict[str, Any]:
    """Return what the part measured, by field of its result."""
    cluster = session.cluster(COLLECTIVE)
    nominal = session.topology.cluster()
    table = session.decisions(cluster, COLLECTIVE)
    cells = []
    for nbytes in (size for size in SIZES if size <= session.effort.largest_bytes):
        stages = best_options(nominal, COLLECTIVE, "blueconnect", nbytes)
        contenders = {
            "auto": session.auto(cluster, COLLECTIVE, nbytes),
            "auto, nominal": session.auto(nominal, COLLECTIVE, nbytes),
            "ring, rack by rack": Contender("ring", fitted(COLLECTIVE, "ring", nominal)),
            "ring, rank by rank": Contender("ring"),
            "blueconnect": Contender("blueconnect", stages, label("blueconnect", stages)),
            "native": Contender(),
        }
        cell = session.measure(COLLECTIVE, nbytes, contenders)
        cells.append(session.counted(cell, contenders))
    return {
        "cells": tuple(cells),
        "decisions": table,
        **found_by(cluster),
    }

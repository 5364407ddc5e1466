"""Part ``nodes``: several ranks on every host, and what each algorithm puts on the hosts' links."""

from __future__ import annotations

from typing import Any

from syncopate.units import KIB, MIB

from .results import label
from .session import Session, found_by
from .timing import Contender

SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB)
COLLECTIVE = "all_reduce"


def measure(session: Session) -> dict[str, Any]:
    """Return what the part measured, by field of its result."""
    cluster = session.cluster(COLLECTIVE)
    table = session.decisions(cluster, COLLECTIVE)
    factors = {"factors": (session.topology.ranks_per_host, session.topology.hosts)}
    pipelined = factors | {"pipelines": 4}
    cells = []
    for nbytes in (size for size in SIZES if size <= session.effort.largest_bytes):
        contenders = {
            "auto": session.auto(cluster, COLLECTIVE, nbytes),
            "ring": Contender("ring"),
            "two_level": Contender("two_level", factors, label("two_level", factors)),
            "blueconnect": Contender("blueconnect", factors, label("blueconnect", factors)),
            "blueconnect, 4 pipelines": Contender(
                "blueconnect", pipelined, label("blueconnect", pipelined)
            ),
            "native": Contender(),
        }
        cell = session.measure(COLLECTIVE, nbytes, contenders)
        cells.append(session.counted(cell, contenders))
    return {
        "cells": tuple(cells),
        "decisions": table,
        **found_by(cluster),
    }

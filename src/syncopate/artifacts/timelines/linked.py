"""Linked: which ranks have to do with each other, directly or by others."""

from __future__ import annotations

import numpy as np
import scipy

from syncopate.artifacts.timelines.spans import Numbers


def linked(places: Numbers, of: Numbers, count: int) -> list[Numbers]:
    """Return the places that are linked by what they share, the parts by their first place.

    Args:
        places: the place of each row, below ``count``.
        of: what its row is of, from 0 on; rows of the same are linked.
        count: how many places there are; one without a row is a part by itself.
    """
    size = count + int(of.max(initial=-1)) + 1
    rows = (np.ones(len(places), bool), (places, count + of))
    graph = scipy.sparse.coo_array(rows, shape=(size, size))
    label = scipy.sparse.csgraph.connected_components(graph, directed=False)[1][:count]
    return [np.flatnonzero(label == one) for one in dict.fromkeys(label.tolist())]

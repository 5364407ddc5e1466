"""Served: what it costs to send gradients to parameter servers, and to receive weights from them.

W workers send n bytes each, and each of S servers takes its share from all of them. So a worker's
link carries n bytes, that of a unit of u workers u n, and a server's W n / S:

    T(n) = a + n max(max over levels of u b, W / S b'),

with the latency a and the seconds per byte b' of the outermost level. Servers have links of that
level to themselves. Weights come back by the same way in the other direction, at the same price.
What a server computes is part of the update (:mod:`syncopate.simulation.traffic`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import EXCHANGES, SERVED
from syncopate.costs.model.bound import served_s_per_byte
from syncopate.costs.model.functions import CostFunction, Costs, Envelope, VariantCost
from syncopate.costs.model.pieces import Pieces
from syncopate.costs.model.remembered import remembered
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import SERVERS


@remembered
def served_costs(cluster: Cluster, servers: int | None = None) -> Costs:
    """Return what the messages of the ``served`` exchange cost.

    Args:
        cluster: the workers' machines.
        servers: how many there are; as many as hosts when left out. A recipe may name another
            number.

    Raises:
        InvalidValueError: fewer than one server.
    """
    if servers is None:
        servers = cluster.host_count

    def price(options: Mapping[str, Any]) -> CostFunction:
        unknown = [name for name in options if name != SERVERS]
        if unknown:
            raise UnknownNameError("option", unknown[0], (SERVERS,), SERVED)
        count = options.get(SERVERS, servers)
        if not isinstance(count, int) or count < 1:
            raise InvalidValueError(SERVERS, count, "an integer >= 1")
        slope = served_s_per_byte(cluster, count)
        return CostFunction(Pieces.of([math.inf], [cluster.levels[-1].latency_s], [slope]))

    options = {SERVERS: servers}
    envelope = Envelope({SERVED: VariantCost([(options, price(options))], price)})
    return dict.fromkeys(EXCHANGES[SERVED].needed, envelope)

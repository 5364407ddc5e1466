"""Network: what prices rest on: levels, reduction, and what messages cost beside."""

from __future__ import annotations

from msgspec import structs

from syncopate.calibration.message_overhead import handling_of
from syncopate.calibration.probing import Network, probed
from syncopate.collectives.communicator import Communicator
from syncopate.output import Progress
from syncopate.topology import Topology


def measure_network(
    communicator: Communicator,
    where: Topology,
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> Network:
    """Measure links, reduction and handling, and fit it; return the same on all ranks.

    Every rank must call it with the same arguments, while nothing else uses the communicator.

    Args:
        communicator: the ranks.
        where: which ranks sit where.
        budget_s: about how long to take.
        progress: called with what is measured and how much of the whole is done.
    """
    bare = probed(communicator, where, budget_s, progress)
    # Fitted once: in floating point, ranks on different machines might not agree.
    handling = handling_of(*bare) if communicator.rank == 0 else None
    agreed = communicator.broadcast_object(handling)
    return bare._replace(cluster=structs.replace(bare.cluster, handling=agreed))

"""Collectives: runs schedules and native collectives over torch.distributed, on channels.

Everything here goes through :class:`~syncopate.collectives.communicator.Communicator`.
"""

from syncopate.collectives.communicator import Communicator
from syncopate.collectives.handle import Handle

__all__ = ["Communicator", "Handle"]

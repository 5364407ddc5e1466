"""Lab: an emulated cluster on one Linux machine: hosts, racks and links with given rates."""

from syncopate.lab.lab import Lab, LabReport
from syncopate.lab.topology import Topology

__all__ = ["Lab", "LabReport", "Topology"]

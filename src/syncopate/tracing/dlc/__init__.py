"""DLC: the trace format of SketchDLC, what each node of a parameter server sent and received."""

from syncopate.tracing.dlc.columns import Records
from syncopate.tracing.dlc.node import Node
from syncopate.tracing.dlc.reader import Trace, read
from syncopate.tracing.dlc.records import Header, Operation, Record, SetUp
from syncopate.tracing.dlc.repair import findings, repaired
from syncopate.tracing.dlc.timeline import timeline_of
from syncopate.tracing.dlc.writer import to_dlc

__all__ = [
    "Header",
    "Node",
    "Operation",
    "Record",
    "Records",
    "SetUp",
    "Trace",
    "findings",
    "read",
    "repaired",
    "timeline_of",
    "to_dlc",
]

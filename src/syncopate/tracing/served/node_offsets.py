"""Node offsets: by how much clocks of several hosts differ, by the messages between them.

No message is received before it is sent. So each one that goes from one clock to another bounds how
far the second is behind the first, and messages both ways bound it from both sides; what two clocks
have to do with a third bounds them, too. That is a shortest path between clocks (Duda, Harrus,
Haddad and Bernard, Estimating global time in distributed systems, 1987). The middle of the bounds
is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from syncopate.tracing.merge import ClockOffset
from syncopate.tracing.served.rows import Wired

_Signature = tuple[str, str, str, int, int, int, bool]


def pairs(messages: Sequence[Sequence[Wired]]) -> Iterator[tuple[Wired, Wired, int, int]]:
    """Yield every message whose sending and receiving are both known.

    A message that was sent several times is known by its order; where fewer were received than
    sent, it is not known which, and it is left out.

    Args:
        messages: per file of a node, what it saw.

    Returns:
        As it was sent, as it was received, and the places of the two files.
    """
    sent: dict[_Signature, list[tuple[Wired, int]]] = defaultdict(list)
    came: dict[_Signature, list[tuple[Wired, int]]] = defaultdict(list)
    for place, mine in enumerate(messages):
        for m in mine:
            if m.peer:
                ends = (m.node, m.peer) if m.sends else (m.peer, m.node)
                known = (*ends, m.kind, m.key, m.number, m.other, m.asked)
                (sent if m.sends else came)[known].append((m, place))
    for known, there in sent.items():
        here = came.get(known, [])
        if len(there) == len(here):
            for (first, source), (second, target) in zip(there, here, strict=True):
                yield first, second, source, target


def node_offsets(
    files: Sequence[tuple[str, Sequence[Wired]]],
    reference: str,
    known: Mapping[str, ClockOffset],
) -> dict[str, ClockOffset]:
    """Return each machine's clock minus that of the reference.

    The error is infinite where messages do not bound it, and negative where the bounds exclude
    each other, because clocks drifted.

    Args:
        files: per file of a node the name of its machine, and what it saw.
        reference: a machine.
        known: clocks of machines minus the reference's, as they were measured.
    """
    machines = sorted({machine for machine, _ in files})
    most = {(a, b): 0.0 if a == b else math.inf for a in machines for b in machines}
    if len(machines) > 1:
        for sent, came, source, target in pairs([mine for _, mine in files]):
            ends = files[source][0], files[target][0]
            if ends[0] != ends[1]:
                most[ends] = min(most[ends], came.time_s - sent.time_s)
    for machine, offset in known.items():
        if machine != reference:
            for ends, sign in (((reference, machine), 1), ((machine, reference), -1)):
                most[ends] = min(most[ends], sign * offset.seconds + offset.error_s)
    for through in machines:
        for a in machines:
            for b in machines:
                if a != b:
                    most[a, b] = min(most[a, b], most[a, through] + most[through, b])
    return {machine: _between(most, reference, machine) for machine in machines}


def _between(most: Mapping[tuple[str, str], float], reference: str, machine: str) -> ClockOffset:
    high_s, low_s = most[reference, machine], -most[machine, reference]
    if machine == reference:
        return ClockOffset(0.0, 0.0)
    if math.isfinite(high_s) and math.isfinite(low_s):
        return ClockOffset((low_s + high_s) / 2, (high_s - low_s) / 2)
    return ClockOffset(next((x for x in (high_s, low_s) if math.isfinite(x)), 0.0), math.inf)

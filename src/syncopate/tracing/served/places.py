"""Places: which iteration a message belongs to, as far as it belongs to any.

A worker and a server do four things with a slice in an iteration: push sent and answered, pull sent
and answered. How many pushes came before says which iteration it is. What was sent again, an
acknowledgement that says only that a push came, and a second pull in an iteration have no place.
"""

from __future__ import annotations

from collections.abc import Iterable

from syncopate.tracing.served.rows import Wired


def places(messages: Iterable[Wired]) -> dict[int, int]:
    """Return the iterations of the messages that have a place, by their index.

    Args:
        messages: of one node, by time.
    """
    found: dict[int, int] = {}
    pushed: set[tuple[str, int, int]] = set()
    over: set[tuple[str, int, int]] = set()
    pulled: set[tuple[str, int, int]] = set()
    asked: dict[tuple[str, int, int], int] = {}
    for index, m in enumerate(messages):
        if m.kind == "Push" and (m.peer, m.key, m.number) not in pushed:
            pushed.add((m.peer, m.key, m.number))
            found[index] = m.number - 1
        elif m.kind == "Ack":
            one = (m.peer, m.key, m.other)
            if one in pushed and one not in over:
                over.add(one)
                found[index] = m.other - 1
        elif m.kind == "Pull" and (m.peer, m.key, m.number) not in pulled:
            pulled.add((m.peer, m.key, m.number))
            asked[m.peer, m.key, m.other] = m.number - 1
            found[index] = m.number - 1
        elif m.kind == "Weights":
            iteration = asked.pop((m.peer, m.key, m.other), None)
            if iteration is not None:
                found[index] = iteration
    return found

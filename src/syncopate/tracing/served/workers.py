"""Workers: what workers did, by their messages alone.

A push lasts from when it was sent until the server said that it has it, a pull from the request
until the weights are there. Computation is what SketchDLC takes for it: from the last weights of
the iteration before to the last push (Section 4.2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from syncopate.artifacts.timeline import Span
from syncopate.tracing.dlc.timeline import computed
from syncopate.tracing.served.places import places
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.rows import Wired


def spans_of_workers(served: Served, last: int) -> tuple[list[Sequence[Span]], int]:
    """Return the spans of each worker as a rank, and the first iteration: of the last ones."""
    names = key_names(served)
    found = [_spans(r, served.messages.get(f"w{r}", ()), names) for r in range(served.workers)]
    count = max((span.iteration for mine in found for span in mine), default=-1) + 1
    first = max(count - last, 0)
    return [[span for span in mine if span.iteration >= first] for mine in found], first


def _spans(rank: int, messages: tuple[Wired, ...], names: Mapping[int, str]) -> list[Span]:
    begun: dict[int, dict[int, Wired]] = defaultdict(dict)
    asked: dict[tuple[int, int], Wired] = {}
    spans: list[Span] = []
    sent: dict[int, float] = {}
    had: dict[int, float] = {}

    def add(lane: str, iteration: int, first: Wired, last: Wired) -> None:
        if iteration < 0:
            return
        spans.append(
            Span(
                name=names.get(last.key, f"key {last.key}"),
                lane=lane,
                rank=rank,
                start_s=first.time_s,
                end_s=last.time_s,
                iteration=iteration,
                nbytes=first.nbytes if lane == "push" else last.nbytes,
                detail=last.peer,
                launched_s=first.queued_s,
            )
        )

    found = places(messages)
    for index, m in enumerate(messages):
        iteration = found.get(index, -1)
        if m.kind == "Push" and index in found:
            begun[m.key][iteration] = m
            sent[iteration] = m.time_s
        elif m.kind == "Ack":
            for there in [i for i in begun[m.key] if i < m.number]:
                add("push", there, begun[m.key].pop(there), m)
        elif m.kind == "Pull" and index in found:
            asked[m.key, iteration] = m
        elif m.kind == "Weights" and index in found:
            had[iteration] = m.time_s
            first = asked.pop((m.key, iteration), None)
            if first is not None:
                add("pull", iteration, first, m)
    return [*spans, *computed(rank, sent, had)]


def key_names(served: Served) -> dict[int, str]:
    """Return what a slice is called: its tensor, and where it is cut its elements."""
    parts = Counter(one.tensor for one in served.keys.values())
    return {
        key: one.tensor
        if parts[one.tensor] == 1
        else f"{one.tensor}[{one.begin}:{one.begin + one.numel}]"
        for key, one in served.keys.items()
    }

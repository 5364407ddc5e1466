"""Serving: what an iteration adds to a run where parameter servers update the weights.

Links carry both directions at once: pushes share one, pulls the other. In each direction what the
next forward needs first goes first, as the priorities of ``served`` have it, whichever is under
way. A server updates a slice when it has every rank's gradient of it, and may answer then; ranks
do not wait for that, and ask for weights when their step ends. So a bucket travels in as many parts
as each server has slices of it, one after the other, and each part of its weights follows the same
part of its gradients. The servers' update is a start-up of those.

Between pulls a rank does not wait for its pushes, but for one that has not ended when the next
gradient of that bucket is ready: the memory it is sent from is the same. With a local rule the
weights that an iteration asked for arrive during the next one, and the forward after that waits for
them, layer by layer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from syncopate.artifacts.workload import Workload
from syncopate.simulation.fluid import Collective, Piece
from syncopate.simulation.layout import Layout
from syncopate.simulation.traffic import Traffic

_UP, _DOWN = 0, 1
"""The two links: to the servers, and from them."""


def updated_apart(traffic: Traffic) -> Traffic:
    """Return traffic whose update is on servers alone: each pull bears that of its weights."""
    whole_s = math.fsum(push.duration_s for push in traffic.pushes)
    pulls = []
    for push, pull in zip(traffic.pushes, traffic.pulls, strict=True):
        assert pull is not None
        share = push.duration_s / whole_s if whole_s else 1 / len(traffic.pushes)
        update_s = share * traffic.update_s
        lasts_s, startup_s = pull.duration_s + update_s, pull.startup_s + update_s
        pulls.append(pull._replace(duration_s=lasts_s, startup_s=startup_s))
    return replace(traffic, pulls=tuple(pulls), update_s=0.0)


class Serving:
    """Adds iterations to a run, one after the other.

    Args:
        workload: what is computed.
        traffic: of each iteration, its update apart; ``update_s`` is what ranks do themselves.
        ahead: whether ranks train on weights of their own while others arrive.
        pieces: computation so far, which grows.
        collectives: those so far, which grow.
    """

    def __init__(
        self,
        workload: Workload,
        traffic: Traffic,
        pieces: list[Piece],
        collectives: list[Collective],
        *,
        ahead: bool,
    ) -> None:
        self._workload = workload
        self._traffic = traffic
        self._pieces = pieces
        self._collectives = collectives
        self._ahead = ahead
        self._turns = {bucket: turn for turn, bucket in enumerate(traffic.pulled)}
        self._before: Layout | None = None

    def add(self, *, pulls: bool) -> Layout:
        """Add one iteration, which begins with a pull of all weights or with none."""
        traffic, first = self._traffic, len(self._pieces)
        pulled = self._pull(first - 1) if pulls else {}
        waits: dict[float, list[int]] = {}
        arriving = tuple((traffic.needed_s(b), parts[-1]) for b, parts in pulled.items())
        late = self._before.behind if self._before is not None else ()
        for needed_s, index in (*late, *(() if self._ahead else arriving)):
            waits.setdefault(needed_s, []).append(index)
        forward_s = max(waits, default=0.0)
        if self._ahead or not pulls:
            self._wait_for_pushes(waits)
        last_ready_s = max((push.ready_s for push in traffic.pushes), default=0.0)
        computed_s = max(self._workload.forward_s + self._workload.backward_s, last_ready_s)
        bases_s = tuple(dict.fromkeys((0.0, *sorted(waits))))
        ends_s = (*bases_s[1:], computed_s)
        for base_s, end_s in zip(bases_s, ends_s, strict=True):
            self._pieces.append(Piece(end_s - base_s, tuple(waits.get(base_s, ()))))
        # No push before the last wait for weights, be its gradient ready as forward ends.
        least = bases_s.index(forward_s)
        places = [max(bisect_left(ends_s, push.ready_s), least) for push in traffic.pushes]
        pushed = tuple(
            self._push(bucket, first + place, bases_s[place]) for bucket, place in enumerate(places)
        )
        self._pieces.append(Piece(traffic.update_s))
        self._before = Layout(
            pieces=range(first, len(self._pieces)),
            bases_s=bases_s,
            computed_s=computed_s,
            pushes=pushed,
            pulls=tuple(pulled[bucket] for bucket in sorted(pulled)),
            behind=arriving if self._ahead else (),
        )
        return self._before

    def _wait_for_pushes(self, waits: dict[float, list[int]]) -> None:
        """Have backward wait, where a gradient is ready, for the push of the one before it."""
        if self._before is None:
            return
        for push, parts in zip(self._traffic.pushes, self._before.pushes, strict=True):
            waits.setdefault(push.ready_s, []).append(parts[-1])

    def _pull(self, step: int) -> dict[int, range]:
        """Add the pulls that begin when the piece ``step`` has ended; return them by bucket."""
        found = {}
        for bucket, turn in self._turns.items():
            pull = self._traffic.pulls[bucket]
            assert pull is not None
            bare = Collective(0.0, pull.duration_s, pull.startup_s, piece=step)
            bare = bare._replace(ready_s=self._traffic.update_s, link=_DOWN, turn=turn)
            pushed: Sequence[int] = self._before.pushes[bucket] if self._before else ()
            found[bucket] = self._parts(bare, bucket, pull.parts, pushed)
        return found

    def _push(self, bucket: int, piece: int, base_s: float) -> range:
        """Add the push of a bucket that is ready in a ``piece`` which begins at ``base_s``."""
        push, pull = self._traffic.pushes[bucket], self._traffic.pulls[bucket]
        assert pull is not None
        ready_s = min(push.ready_s - base_s, self._pieces[piece].duration_s)
        bare = push._replace(ready_s=ready_s, piece=piece, link=_UP, turn=self._turns[bucket])
        return self._parts(bare, bucket, pull.parts)

    def _parts(
        self, whole: Collective, bucket: int, count: int, after: Sequence[int] = ()
    ) -> range:
        """Add the parts of a bucket's message, each after one of ``after`` where there are any."""
        # A channel for each bucket and direction: it waits for its predecessor there alone.
        part = whole._replace(
            duration_s=whole.duration_s / count,
            startup_s=whole.startup_s / count,
            channel=2 * bucket + whole.link,
        )
        start = len(self._collectives)
        for index in range(count):
            self._collectives.append(part._replace(after=tuple(after[index : index + 1])))
        return range(start, len(self._collectives))

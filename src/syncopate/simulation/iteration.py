"""Training iterations, played: when each bucket travels, and when an iteration ends.

The model has two kinds of work. *Computation* is one thread: forward layer by layer, backward,
which makes each gradient ready at its ready time, and the update. *Collectives* run on channels:
each channel carries its messages one at a time, in launch order, and starts the next as soon as the
channel is free and computation has come as far as the message asks.

* A bucket is pushed when all its gradients are ready and its predecessors have been launched. The
  update waits for all pushes.
* Where weights are updated on some ranks alone, each updates its part, and then all buckets are
  pulled at once, in the order of the plan. The next forward goes on meanwhile, and waits before a
  layer whose weights have not arrived.

* With a delay (:class:`~syncopate.delay.Delay`) weights are pulled after every k-th update alone.
  Where ranks train on weights of their own meanwhile, forward does not wait: the update of that
  iteration does. To the update of a shard comes that of all of the rank's own weights, which is
  taken to last as long as a whole update. Pulls that go behind the pushes of that
  iteration are not waited for by its update, but by the layers of the next forward.
* On CPUs, where ranks train on weights of their own, a rank's shard is updated behind its step
  (``engine/exchange/delay/deferred.py``). Nothing waits for pushes then but the next backward,
  which fills the same buckets, and pulls, which begin when the shards are updated: those of a
  channel come behind its own pushes, and what they wait for on others is left out.
* Where averages of gradients are pulled, in place of weights, no update comes before the pulls:
  they begin when all pushes are over. Each bucket is updated by every rank in the next forward,
  when it has come and before the layer that needs it: :mod:`syncopate.simulation.deferred`.
* Weights that lie in shards are gathered before forward and before backward, unit by unit:
  :mod:`syncopate.simulation.fsdp.units`.
* Servers update while ranks go on, and send weights back while gradients still arrive:
  :mod:`syncopate.simulation.serving`.

On one channel without interference, pushes end by the recurrence of MG-WFBP (Eqs. 6-8),
``end[k] = max(end[k-1], ready[k]) + T(bucket k)``, reproduced to the last bit.

[Note: one is enough] Nothing is under way when an update begins: it waits for all pushes, and
backward, which came before them, for a forward that has waited for every pull. So each iteration
does the same from the end of one update to the end of the next, and the first that starts with
pulls is the steady one. Only the very first iteration of a training has nothing to pull. With a
delay the k iterations from one pull to the next are, for the same reason. With servers pushes may
be under way when an iteration begins. Their weights are pulled next, so that the second iteration
is the steady one. With a delay, where no update waits for pushes, a period takes what is left of
the one before, and as many are played as it takes until two last equally long.

[Note: interference] While computation runs beside at least one collective, it progresses at
``compute_rate`` and collectives at ``1 / collective_stretch``; where one of the two stands still,
the other runs at full speed. Work is a fluid: rates change only at events, and between two events
progress is linear.

[Note: shared link] Collectives on different channels share the link, but not their start-up
times: that is what channels are for. The first part of a collective, the start-up time of its
algorithm for each dtype it carries, always progresses at full speed; the rest, its bytes, at an
equal share of the link among all collectives that are past their start-up. Of two ranks a rooted
collective has all its bytes go to one. A link carries both directions at once, so it shares with
those of the same direction alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.workload import Workload
from syncopate.costs.model.pieces import FloatArray
from syncopate.delay import Delay
from syncopate.errors import InvalidValueError
from syncopate.simulation import ideal
from syncopate.simulation.deferred import Update, played_as
from syncopate.simulation.fluid import Collective, Piece, Run, run
from syncopate.simulation.fsdp.units import add_units
from syncopate.simulation.layout import Closing, Layout, alone
from syncopate.simulation.serving import Serving, updated_apart
from syncopate.simulation.traffic import Pull, Traffic

IDEAL = Interference()

_SETTLED = (3, 6, 12)
"""The period that is taken for steady where pushes reach into the next, if it lasts as long as the
one before; if not, the next of these; see [Note: one is enough]."""

_ALIKE = 1e-6

_PLAYED = 100
"""Of a longer period so many iterations are played: those in its middle are like each other."""

MOST_STEPS = 1_000_000
"""Of a period; more are no training."""

_SERVED_SETTLED = 2
"""The iteration that is played where pulls wait for the pushes of the one before."""


@dataclass(frozen=True)
class Iteration:
    """The times of one iteration, from the start of the forward pass.

    Attributes:
        starts_s: when each bucket's push started, in the order of the buckets.
        ends_s: when it ended.
        pull_starts_s: when each pull started, in the order of the buckets that are pulled; empty
            where nothing was.
        pull_ends_s: when it ended.
        waits_s: ``(start, end)`` of each time that forward stood still for weights.
        backward_end_s: when backward ended.
        communication_s: sum of the collectives' costs on an otherwise idle machine.
        compute_s: forward, backward and update alone.
        update_s: the update alone.
        iteration_s: start of forward to start of the next.
        progress: ``(time, progress)`` points between which computation ran at a constant rate.
        push_waits_s: ``(start, end)`` of each time that backward stood still for a push of the
            iteration before.
        deferred: the updates in forward, whose progress counts with them.
        again_s: ``(start, end)`` of each gather of weights for backward, in the order of its units.
        across_s: of each all-reduce between groups of ranks, in the order of the buckets.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    pull_starts_s: tuple[float, ...]
    pull_ends_s: tuple[float, ...]
    waits_s: tuple[tuple[float, float], ...]
    backward_end_s: float
    communication_s: float
    compute_s: float
    update_s: float
    iteration_s: float
    progress: tuple[tuple[float, float], ...]
    push_waits_s: tuple[tuple[float, float], ...] = ()
    deferred: tuple[Update, ...] = ()
    again_s: tuple[tuple[float, float], ...] = ()
    across_s: tuple[tuple[float, float], ...] = ()

    @property
    def exposed_s(self) -> float:
        """``iteration_s - compute_s``: what overlap did not hide, and what interference cost."""
        return max(self.iteration_s - self.compute_s, 0.0)

    def wall_s(self, progress_s: ArrayLike) -> FloatArray:
        """Return when computation had first made ``progress_s`` seconds of progress (any shape)."""
        times, done = np.array(self.progress).T
        wanted = np.clip(np.asarray(progress_s, float), 0.0, done[-1])
        # Not np.interp: where computation stalled, time stands over one progress as a step.
        after = np.searchsorted(done, wanted, side="left")
        before = np.maximum(after - 1, 0)
        gained = done[after] - done[before]
        share = np.where(gained > 0, (wanted - done[before]) / np.where(gained > 0, gained, 1), 1)
        return np.asarray(times[before] + share * (times[after] - times[before]))


def play_traffic(
    workload: Workload, traffic: Traffic, interference: Interference = IDEAL
) -> Iteration:
    """Play the steady iteration of a plan's messages; see [Note: one is enough]."""
    count = _SERVED_SETTLED if traffic.served else 1
    return _played(workload, traffic, interference, count, pulls_first=True)[-1]


def lasts_s(workload: Workload, traffic: Traffic, interference: Interference = IDEAL) -> float:
    """Return how long the steady iteration of :func:`play_traffic` takes, and nothing else."""
    if traffic.served or traffic.gathers is not None:
        return play_traffic(workload, traffic, interference).iteration_s
    workload, traffic, _ = played_as(workload, traffic)
    if interference.is_ideal:
        return ideal.iteration_s(workload, traffic)
    pieces: list[Piece] = []
    collectives: list[Collective] = []
    _add(workload, traffic, pieces, collectives, ahead=False)
    return run(pieces, collectives, interference).finishes_s[-1]


def play_period(
    workload: Workload, traffic: Traffic, delay: Delay, interference: Interference = IDEAL
) -> tuple[Iteration, ...]:
    """Play the iterations of one period of a delay, from that which weights arrive in.

    Messages that pass from one iteration into the next may make every other iteration alike, and
    not every one: then of two periods, if their number of iterations is odd.

    Raises:
        InvalidValueError: a period that is too long to be played.
    """
    k = delay.k
    if k > MOST_STEPS:
        raise InvalidValueError("k of a delay", k, f"at most {MOST_STEPS} to be predicted")
    if k > _PLAYED + 1:
        played_k = _PLAYED + k % 2
        shorter = structs.replace(delay, k=played_k, warm_up=None)
        found = play_period(workload, traffic, shorter, interference)
        several = (found[at : at + played_k] for at in range(0, len(found), played_k))
        return tuple(one for period in several for one in _lengthened(period, k))
    if not (traffic.served or _ends_behind(workload, traffic, delay)):
        return _played(workload, traffic, interference, k, pulls_first=True, delay=delay)
    before: tuple[Iteration, ...] = ()
    last: tuple[Iteration, ...] = ()
    for periods in _SETTLED:
        played = _played(
            workload, traffic, interference, periods * k, pulls_first=True, delay=delay
        )
        before, last = played[-2 * k : -k], played[-k:]
        before_s, last_s = (math.fsum(one.iteration_s for one in some) for some in (before, last))
        if math.isclose(before_s, last_s, rel_tol=_ALIKE):
            return last
    return before + last


def _lengthened(period: tuple[Iteration, ...], k: int) -> Iterator[Iteration]:
    """Yield k iterations: a period that is shorter by an even number, its middle ones repeated."""
    middle = len(period) // 2
    yield from period[:middle]
    yield from islice(cycle(period[middle - 2 : middle]), k - len(period))
    yield from period[middle:]


def play_several(
    workload: Workload,
    traffic: Traffic,
    interference: Interference,
    count: int,
    delay: Delay | None = None,
) -> tuple[Iteration, ...]:
    """Play the first ``count`` iterations of a training; the very first has nothing to pull.

    With a delay the first ones after its warm-up.
    """
    return _played(workload, traffic, interference, count, pulls_first=False, delay=delay)


@dataclass(frozen=True)
class Program:
    """Iterations as the pieces and collectives of a run.

    Attributes:
        workload: what is computed, updates of forward in it.
        traffic: the messages, as they are played.
        updates: where in forward updates are.
        pieces: of computation.
        collectives: beside it.
        layouts: where each iteration lies.
        closings: of each, the collectives of each of its closings.
    """

    workload: Workload
    traffic: Traffic
    updates: tuple[Update, ...]
    pieces: list[Piece]
    collectives: list[Collective]
    layouts: list[Layout]
    closings: list[list[range]]

    def iteration(self, result: Run, layout: Layout) -> Iteration:
        """Return what an iteration did in a run."""
        return replace(
            _iteration(self.workload, self.traffic, result, layout), deferred=self.updates
        )

    def close(self, closings: Sequence[Closing]) -> None:
        """Add what ends an iteration: collectives, and a piece that waits for them."""
        places = []
        for closing in closings:
            last, first = len(self.pieces) - 1, len(self.collectives)
            ready_s = self.pieces[last].duration_s
            self.collectives.extend(one._replace(ready_s=ready_s, piece=last) for one in closing)
            places.append(range(first, len(self.collectives)))
            self.pieces.append(Piece(0.0, tuple(places[-1])))
        self.closings.append(places)


def _played(
    workload: Workload,
    traffic: Traffic,
    interference: Interference,
    count: int,
    *,
    pulls_first: bool,
    delay: Delay | None = None,
) -> tuple[Iteration, ...]:
    found = program(workload, traffic, count, pulls_first=pulls_first, delay=delay)
    result = run(found.pieces, found.collectives, interference)
    return tuple(found.iteration(result, layout) for layout in found.layouts)


def program(
    workload: Workload,
    traffic: Traffic,
    count: int,
    *,
    pulls_first: bool,
    delay: Delay | None = None,
    closings: Sequence[Sequence[Closing]] = (),
) -> Program:
    """Return iterations as a run.

    Args:
        workload: what is computed.
        traffic: the messages of each iteration.
        count: how many.
        pulls_first: whether the first begins with pulls.
        delay: when weights are pulled every so many iterations.
        closings: of each iteration, what ends it, one after the other; none by default.
    """
    workload, traffic, updates = played_as(workload, traffic)
    pieces: list[Piece] = []
    collectives: list[Collective] = []
    period, ahead = (delay.k, delay.runs_ahead) if delay else (1, False)
    own_s = workload.update_s if ahead else 0.0
    apart = delay is not None and _ends_behind(workload, traffic, delay)
    if traffic.served:
        traffic = updated_apart(traffic)
    elif apart:
        traffic = _updated_behind(traffic)
    traffic = replace(traffic, update_s=traffic.update_s + own_s)
    serving = Serving(workload, traffic, pieces, collectives, ahead=ahead)
    layouts: list[Layout] = []
    found = Program(workload, traffic, updates, pieces, collectives, layouts, [])
    for index in range(count):
        pulls = not index % period and (pulls_first or index > 0)
        if traffic.gathers is not None:
            layouts.append(add_units(workload, traffic, pieces, collectives))
        elif traffic.served:
            layouts.append(serving.add(pulls=pulls))
        else:
            pulled = traffic if pulls else replace(traffic, pulls=())
            behind = layouts[-1].behind if layouts else ()
            if apart and layouts:
                pushed = (parts[-1] for parts in layouts[-1].pushes)
                behind = (*behind, *((workload.forward_s, push) for push in pushed))
            layouts.append(
                _add(workload, pulled, pieces, collectives, ahead=ahead, behind=behind, apart=apart)
            )
        found.close(closings[index] if closings else ())
    return found


def _ends_behind(workload: Workload, traffic: Traffic, delay: Delay) -> bool:
    """Whether ranks leave pushes, and the update of their shards, to end behind the step."""
    own = workload.metadata.get("device") == "cpu" and not traffic.served
    return own and delay.has_slack and None not in traffic.pulls


def _updated_behind(traffic: Traffic) -> Traffic:
    """Return traffic whose update is behind the step: the first pull waits for it, no rank."""
    pulls = list(traffic.pulls)
    for first in traffic.pulled[:1]:
        pull = pulls[first]
        assert pull is not None
        lasts_s, startup_s = pull.duration_s + traffic.update_s, pull.startup_s + traffic.update_s
        pulls[first] = pull._replace(duration_s=lasts_s, startup_s=startup_s)
    return replace(traffic, pulls=tuple(pulls), update_s=0.0)


def _add(
    workload: Workload,
    traffic: Traffic,
    pieces: list[Piece],
    collectives: list[Collective],
    *,
    ahead: bool,
    behind: Sequence[tuple[float, int]] = (),
    apart: bool = False,
) -> Layout:
    """Add one iteration to the program of a run; its pulls start as the update before it ends.

    Forward waits for them, or its update where ranks run ``ahead``. Forward also waits for those of
    the iteration before that went ``behind`` its pushes. Where global weights are updated
    ``apart``, the update does not wait for pushes.
    """
    first, first_pull = len(pieces), len(collectives)
    order = traffic.pulled if traffic.pulls else ()
    at_once = order[: len(order) - traffic.behind] if ahead else order
    gates: dict[float, list[int]] = {}
    for needed_s, index in behind:
        gates.setdefault(needed_s, []).append(index)
    for index, bucket in enumerate(at_once, start=first_pull):
        pull = traffic.pulls[bucket]
        assert pull is not None
        if not ahead:
            gates.setdefault(pull.needed_s, []).append(index)
        collectives.append(_moved(pull, traffic.update_s, first - 1))
    arriving = range(first_pull, len(collectives)) if ahead else range(0)
    last_ready_s = max((push.ready_s for push in traffic.pushes), default=0.0)
    computed_s = max(workload.forward_s + workload.backward_s, last_ready_s)
    bases_s = tuple(dict.fromkeys((0.0, *sorted(gates))))
    for base_s, end_s in pairwise((*bases_s, computed_s)):
        pieces.append(Piece(end_s - base_s, tuple(gates.get(base_s, ()))))
    pushes = range(len(collectives), len(collectives) + len(traffic.pushes))
    for push in traffic.pushes:
        ready_s = min(push.ready_s - bases_s[-1], pieces[-1].duration_s)
        collectives.append(push._replace(ready_s=ready_s, piece=len(pieces) - 1))
    # Launched with the last push, behind which they are on every channel.
    launched_s = min(last_ready_s - bases_s[-1], pieces[-1].duration_s)
    late = order[len(at_once) :]
    collectives += [
        _moved(pull, launched_s, len(pieces) - 1)
        for bucket in late
        if (pull := traffic.pulls[bucket]) is not None
    ]
    places = dict(zip(at_once, range(first_pull, pushes.start), strict=True))
    places |= dict(zip(late, range(pushes.stop, len(collectives)), strict=True))
    pieces.append(Piece(traffic.update_s, (*arriving, *(() if apart else pushes))))
    return Layout(
        pieces=range(first, len(pieces)),
        bases_s=bases_s,
        computed_s=computed_s,
        pushes=alone(pushes),
        pulls=tuple(range(places[b], places[b] + 1) for b in sorted(order)),
        behind=tuple((traffic.needed_s(bucket), places[bucket]) for bucket in late),
    )


def _moved(pull: Pull, ready_s: float, piece: int) -> Collective:
    return Collective(ready_s, pull.duration_s, pull.startup_s, pull.channel, piece, pull.link)


def _iteration(workload: Workload, traffic: Traffic, result: Run, layout: Layout) -> Iteration:
    *computing, update = layout.pieces
    origin_s = result.finishes_s[computing[0] - 1] if computing[0] else 0.0
    points = [(0.0, 0.0)]
    reached_s = (*layout.bases_s[1:], layout.computed_s)
    for piece, base_s, end_s in zip(computing, layout.bases_s, reached_s, strict=True):
        points += [(at_s - origin_s, base_s + done_s) for at_s, done_s in result.progress[piece]]
        points.append((result.finishes_s[piece] - origin_s, end_s))
    backward_end_s = result.finishes_s[computing[-1]] - origin_s
    ends_s = (origin_s, *(result.finishes_s[piece] for piece in computing))
    begins_s = [result.begins_s[piece] for piece in computing]
    stalls = [
        ((end_s - origin_s, begin_s - origin_s), base_s)
        for end_s, begin_s, base_s in zip(ends_s, begins_s, layout.bases_s, strict=False)
        if begin_s > end_s
    ]
    costs_s = [push.duration_s for push in traffic.pushes]
    if layout.pulls:
        costs_s += [pull.duration_s for pull in traffic.pulls if pull is not None]
    if traffic.gathers is not None:
        again = (traffic.pulls[bucket] for bucket in traffic.gathers.again)
        costs_s += [one.duration_s for one in (*again, *traffic.gathers.across) if one is not None]

    def times_s(collectives: range) -> tuple[tuple[float, float], ...]:
        spans_s = ((result.starts_s[at], result.ends_s[at]) for at in collectives)
        return tuple((start_s - origin_s, end_s - origin_s) for start_s, end_s in spans_s)

    return Iteration(
        starts_s=tuple(result.starts_s[parts[0]] - origin_s for parts in layout.pushes),
        ends_s=tuple(result.ends_s[parts[-1]] - origin_s for parts in layout.pushes),
        pull_starts_s=tuple(result.starts_s[parts[0]] - origin_s for parts in layout.pulls),
        pull_ends_s=tuple(result.ends_s[parts[-1]] - origin_s for parts in layout.pulls),
        waits_s=tuple(wait for wait, base_s in stalls if base_s <= workload.forward_s),
        push_waits_s=tuple(wait for wait, base_s in stalls if base_s > workload.forward_s),
        backward_end_s=backward_end_s,
        communication_s=math.fsum(costs_s),
        compute_s=workload.forward_s + workload.backward_s + traffic.update_s,
        update_s=traffic.update_s,
        iteration_s=result.finishes_s[update] - origin_s,
        progress=tuple(points),
        again_s=times_s(layout.again),
        across_s=times_s(layout.across),
    )

"""Units: an iteration in which the weights of each unit are gathered before they are used.

What torch's ``fully_shard`` does (``torch/distributed/fsdp/_fully_shard``), with a prefetch of d:

* Forward of a unit waits for the gather of its weights. As it begins, the weights of the next d
  units are asked for. Those of the first are asked for as the update before has ended.
* So does backward, from the last unit to the first, where weights did not stay gathered.
* When backward of a unit is over, its gradients are reduce-scattered, and where groups of ranks
  hold all weights each, then all-reduced between them. On a CPU backward waits for both. On a
  GPU it goes on, and waits before its next reduce-scatter: the buffer that it is sent from is one.
* The update waits for all of them.

[Note: closed form] With gathers on one channel and reduce-scatters on another whose bytes do not
meet, forward ends by

    gathered[k] = max(gathered[k-1], begin[max(k-d, 0)]) + G[k]
    begin[k] = max(end[k-1], gathered[k])
    end[k] = begin[k] + f[k]

and backward alike. Where gathers of equal units are shorter than their computation, the first one
alone is exposed, and on a GPU the last reduce-scatter; where they are longer, all of them follow
one another, and the last unit's forward follows them.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from syncopate.artifacts.workload import Workload
from syncopate.simulation.fluid import Collective, Piece
from syncopate.simulation.layout import Layout, alone
from syncopate.simulation.traffic import Pull, Traffic

_ACROSS = 1
"""The link between groups of ranks, beside the one within each."""


def add_units(
    workload: Workload, traffic: Traffic, pieces: list[Piece], collectives: list[Collective]
) -> Layout:
    """Add one iteration to the program of a run; its first gather starts as the update before ends.

    Args:
        workload: what is computed.
        traffic: with gathers; a push and a pull of each unit, in the order of backward.
        pieces: computation so far, which grows.
        collectives: those so far, which grow.
    """
    gathers, count = traffic.gathers, len(traffic.pushes)
    assert gathers is not None
    pulls = [pull for pull in traffic.pulls if pull is not None]
    order = sorted(range(count - 1), key=lambda unit: (pulls[unit].needed_s, -unit))
    order.insert(0, count - 1)  # the root unit is always gathered first
    ready_s = accumulate((push.ready_s for push in traffic.pushes), max, initial=workload.forward_s)
    *back_s, last_s = ready_s
    computed_s = max(last_s, workload.forward_s + workload.backward_s)
    bases_s = (0.0, *(pulls[unit].needed_s for unit in order[1:]), *back_s)
    lasts_s = [end_s - begin_s for begin_s, end_s in pairwise((*bases_s, computed_s))]
    first, begin = len(pieces), len(collectives)
    turn = first + count
    collectives.append(_gather(pulls[order[0]], first - 1, traffic.update_s))
    for place, unit in enumerate(order[1:], start=1):
        collectives.append(_gather(pulls[unit], first + max(place - gathers.prefetch, 0)))
    again = range(len(collectives), len(collectives) + len(gathers.again))
    for unit in gathers.again:
        if unit:
            collectives.append(_gather(pulls[unit], turn + max(unit - gathers.prefetch, 0)))
        else:
            collectives.append(_gather(pulls[unit], turn - 1, lasts_s[count - 1]))
    pushes = range(again.stop, again.stop + count)
    for unit, push in enumerate(traffic.pushes):
        collectives.append(push._replace(ready_s=lasts_s[count + unit], piece=turn + unit))
    across = range(pushes.stop, pushes.stop + len(gathers.across))
    for unit, one in enumerate(gathers.across):
        ready = one._replace(ready_s=lasts_s[count + unit], piece=turn + unit, link=_ACROSS)
        collectives.append(ready._replace(after=(pushes[unit],)))
    regathered = dict(zip(gathers.again, again, strict=True))
    waits = [[begin + place] for place in range(count)]
    waits += [[regathered[unit]] if unit in regathered else [] for unit in range(count)]
    for unit in range(1 + gathers.behind, count):
        sent = unit - 1 - gathers.behind
        waits[count + unit].append(pushes[sent])
        # A CPU has no streams: there the all-reduce is over before backward goes on, too.
        waits[count + unit] += [across[sent]] if across and not gathers.behind else []
    pieces.extend(map(Piece, lasts_s, map(tuple, waits)))
    pieces.append(Piece(traffic.update_s, (*pushes, *across)))
    places = {unit: begin + place for place, unit in enumerate(order)}
    return Layout(
        pieces=range(first, len(pieces)),
        bases_s=bases_s,
        computed_s=computed_s,
        pushes=alone(pushes),
        pulls=tuple(range(places[unit], places[unit] + 1) for unit in range(count)),
        again=again,
        across=across,
    )


def _gather(pull: Pull, piece: int, ready_s: float = 0.0) -> Collective:
    return Collective(ready_s, pull.duration_s, pull.startup_s, pull.channel, piece)

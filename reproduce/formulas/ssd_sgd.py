"""SSD-SGD: the paper's Eqs. 2, 4 and 7, an iteration with a pull in each and with one in k.

Layers count from the input, j = 1 .. L, and backward takes them in the other order. T_f and T_b are
forward and backward, h_b^j the backward of a layer, h_s^j its push, h_c^j its whole communication
(Eq. 3: push, synchronisation, update and pull), T_c and S the sums of the h_c^j and of the h_s^j,
h_loc the local update of layer 1. All messages share one channel. The paper prints::

    Eq. 2   T_iter = T_f + T_b + h_c^1                          T_b - h_b^L > T_c - h_c^1
                     T_f + T_c + h_b^L                          otherwise
    Eq. 4   T_k    = P + (T_c + h_b^L - T_f - 2 T_b - h_loc)/k  Case 1: S < P
                     S + (T_c + h_b^L - T_b - S)/k              Case 2: S >= P
                     P                                          Case 3
    Eq. 7   ΔT_k   = (k-1) (T_c - T_b + h_b^L - h_loc) + T_f + T_b             Case 1
                     k T_f + (k-1)/2 T_c + (k-1) h_b^L + T_b                   Case 2

with P = T_f + T_b + h_loc. T_iter is SSGD's. T_k is the mean of k iterations of which the last one
pulls, while the next one computes and then waits. In Case 3 that one does not wait. ΔT_k is what k
iterations save; in Case 2 the paper takes S for half of T_c.

Beside the timelines themselves, which tests play:

* Eq. 2 is the larger of its two lines, and exact where layers are alike. Elsewhere a layer in the
  middle can be what the channel gets stuck with, and the iteration is longer.
* Case 1 is exact for k >= 2 if the pushes that wait behind a pull are gone when the next
  communication begins; S <= h_loc + T_f + h_b^L is enough.
* Case 2 is (T_b - h_b^L)/k too short. The channel carries k - 1 times S and once T_c in k
  iterations and is never idle: no mean is below ((k-1) S + T_c)/k.
* At k = 1, which the paper trains but leaves out of the formula's k > 1, Case 1 promises less than
  T_c in the same way.

:func:`steady_iteration_s` is what the timeline takes, for any layers.

Plans are not predicted by it, but by :mod:`syncopate.simulation.delay`: on servers pulls do not
take the pushes' time, because links carry both directions at once, and a push that is late holds up
the next one of its bucket; on the sharded exchange the step waits for its pushes, or the next
backward does.

Source: Xu, Dong, Zhao, Xu and Liao, "SSD-SGD: communication sparsification for distributed deep
learning training" (2021), Sections 2.1 to 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from syncopate.artifacts.level import require_time
from syncopate.errors import InvalidValueError


@dataclass(frozen=True)
class Times:
    """The parts of an iteration, in seconds; layers from the input to the output.

    Attributes:
        forward_s: T_f.
        backward_s: h_b^j of each layer.
        push_s: h_s^j of each layer.
        pull_s: what a pull adds to each layer, h_sync^j + h_up^j + h_r^j of Eq. 3.
        local_update_s: h_loc^1.

    Raises:
        InvalidValueError: no layer, unequally many values, or a value that is no duration.
    """

    forward_s: float
    backward_s: Sequence[float]
    push_s: Sequence[float]
    pull_s: Sequence[float]
    local_update_s: float = 0.0

    def __post_init__(self) -> None:
        layers = len(self.backward_s)
        for what, values in (("push_s", self.push_s), ("pull_s", self.pull_s)):
            if not layers or len(values) != layers:
                rule = "as many values as backward_s has, at least one"
                raise InvalidValueError(what, tuple(values), rule)
        times = (*self.backward_s, *self.push_s, *self.pull_s)
        for value in (self.forward_s, self.local_update_s, *times):
            require_time("time of an iteration", value)

    @property
    def communication_s(self) -> tuple[float, ...]:
        """h_c^j of each layer, by Eq. 3."""
        return tuple(push + pull for push, pull in zip(self.push_s, self.pull_s, strict=True))

    @property
    def computed_s(self) -> float:
        """P, an iteration that waits for nothing."""
        return self.forward_s + math.fsum(self.backward_s) + self.local_update_s

    def drained_s(self, messages_s: Sequence[float]) -> float:
        """Return when a free channel has carried one message a layer, from backward's start on."""
        ready_s = list(accumulate(reversed(self.backward_s)))
        left_s = reversed(list(accumulate(messages_s)))
        return max(ready + left for ready, left in zip(ready_s, left_s, strict=True))


def ssgd_iteration_s(times: Times) -> float:
    """Return T_iter of Eq. 2: every iteration pulls, and the next one waits for all weights."""
    messages_s = times.communication_s
    first_s, last_s = messages_s[0], times.backward_s[-1]
    backward_s, total_s = math.fsum(times.backward_s), math.fsum(messages_s)
    if backward_s - last_s > total_s - first_s:
        return times.forward_s + backward_s + first_s
    return times.forward_s + total_s + last_s


def case(times: Times) -> int:
    """Return which case of Eq. 4 holds: 1, 2 or 3."""
    if math.fsum(times.push_s) >= times.computed_s:
        return 2
    return 1 if _gap_s(times) > 0 else 3


def mean_iteration_s(times: Times, period: int) -> float:
    """Return the mean of Eq. 4 over ``period`` iterations, k >= 1, the last of which pulls.

    Raises:
        InvalidValueError: a period below 1.
    """
    _require_period(period)
    if case(times) == 2:
        pushed_s = math.fsum(times.push_s)
        total_s = math.fsum(times.communication_s) + times.backward_s[-1]
        return pushed_s + (total_s - math.fsum(times.backward_s) - pushed_s) / period
    return times.computed_s + max(_gap_s(times), 0.0) / period


def saved_s(times: Times, period: int) -> float:
    """Return ΔT_k of Eq. 7, what ``period`` iterations of SSGD take longer.

    As printed, where the channel is what SSGD waits for. Of Case 3, which the paper leaves out, it
    is the difference of Eqs. 2 and 4.

    Raises:
        InvalidValueError: a period below 1.
    """
    _require_period(period)
    backward_s, total_s = math.fsum(times.backward_s), math.fsum(times.communication_s)
    forward_s, last_s, pulls = times.forward_s, times.backward_s[-1], period - 1
    which = case(times)
    if which == 1:
        less_s = total_s - backward_s + last_s - times.local_update_s
        return pulls * less_s + forward_s + backward_s
    if which == 2:
        return period * forward_s + pulls / 2 * total_s + pulls * last_s + backward_s
    return period * (ssgd_iteration_s(times) - mean_iteration_s(times, period))


def steady_iteration_s(times: Times, period: int) -> float:
    """Return the mean iteration of the timeline that Eq. 4 describes, when it has settled.

    Between two pulls there is no time for less than the longest of these: k iterations of
    computation; all messages of k iterations; and computation up to some layer of the m-th
    iteration after a pull, 1 <= m < k, with all messages from there on. The last is linear in m
    where that iteration does not pull, so that its ends are enough.

    Raises:
        InvalidValueError: a period below 1.
    """
    _require_period(period)
    computed_s, backward_s = times.computed_s, math.fsum(times.backward_s)
    pushed_s, total_s = math.fsum(times.push_s), math.fsum(times.communication_s)
    rounds_s = [period * computed_s, (period - 1) * pushed_s + total_s]
    if period > 1:
        drained_s = times.drained_s(times.communication_s)
        rounds_s.append((period - 1) * computed_s - backward_s + drained_s)
    if period > 2:
        drained_s = times.drained_s(times.push_s)
        for after in (1, period - 2):
            pushes_s = drained_s + (period - 2 - after) * pushed_s
            rounds_s.append(after * computed_s - backward_s + pushes_s + total_s)
    return max(rounds_s) / period


def _gap_s(times: Times) -> float:
    """Return how long the iteration after a pull waits for it: h_gap - h_loc of Case 1."""
    total_s = math.fsum(times.communication_s) + times.backward_s[-1]
    return total_s - math.fsum(times.backward_s) - times.computed_s


def _require_period(period: int) -> None:
    if period < 1:
        raise InvalidValueError("period", period, "an integer >= 1")

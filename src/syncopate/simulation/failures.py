"""Failures: what is left of a long training's time when hosts fail, and how often to checkpoint.

One host that fails stops a synchronous training: what was computed since the last checkpoint is
lost, a restart takes its time, and may fail too. Hosts fail independently, at a constant rate. So
with M between two failures of any of them, a checkpoint of C seconds after each tau of training,
and a restart of R, an interval of training takes in the mean (Daly, Eq. 20)

    E = M exp(R / M) (exp((tau + C) / M) - 1),

and the goodput, the share of time in which training gets on for good, is tau / E. It is the largest
where tau is sqrt(2 C M), to first order (Young), or by Daly's Eq. 37.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, 1974; J. T.
Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from syncopate.artifacts.level import require_time
from syncopate.errors import InvalidValueError

_MOST_ATTEMPTS = 1e4
"""Of an interval: where more are expected, a training never gets on."""


@dataclass(frozen=True)
class Failures:
    """How often hosts fail, and what is done about it.

    Attributes:
        host_mtbf_s: the mean time between two failures of one host, in seconds.
        hosts: how many there are.
        checkpoint_s: for how long a checkpoint holds training up.
        restart_s: from a failure until training goes on from the last checkpoint.
        interval_s: training between two checkpoints; None: Daly's optimum.

    Raises:
        InvalidValueError: a time that is no finite number above 0 (a restart may take 0 s), no
            host, or failures so frequent that training would never get on.
    """

    host_mtbf_s: float
    hosts: int
    checkpoint_s: float
    restart_s: float = 0.0
    interval_s: float | None = None

    def __post_init__(self) -> None:
        if self.hosts < 1:
            raise InvalidValueError("hosts", self.hosts, "an integer >= 1")
        for name in ("host_mtbf_s", "checkpoint_s", "restart_s", "interval_s"):
            value = getattr(self, name)
            if value is None:
                continue
            require_time(name, value)
            if not value and name != "restart_s":
                raise InvalidValueError(name, value, "above 0 s")
        longest_s = max(self.restart_s, self.trained_s + self.checkpoint_s)
        if longest_s > math.log(_MOST_ATTEMPTS) * self.mtbf_s:
            rule = (
                f"at most {math.log(_MOST_ATTEMPTS):.1f} times the {self.mtbf_s:.3g} s between two "
                f"failures of any of {self.hosts} hosts: training would hardly ever get on"
            )
            raise InvalidValueError(
                "restart, or interval and checkpoint, in seconds", longest_s, rule
            )

    @property
    def mtbf_s(self) -> float:
        """The mean time between two failures of any host."""
        return self.host_mtbf_s / self.hosts

    @property
    def young_s(self) -> float:
        """The interval that loses least, to first order."""
        return math.sqrt(2 * self.checkpoint_s * self.mtbf_s)

    @property
    def daly_s(self) -> float:
        """The interval that loses least, by Daly's higher order estimate."""
        if self.checkpoint_s >= 2 * self.mtbf_s:
            return self.mtbf_s
        part = self.checkpoint_s / (2 * self.mtbf_s)
        return self.young_s * (1 + math.sqrt(part) / 3 + part / 9) - self.checkpoint_s

    @property
    def trained_s(self) -> float:
        """The interval that is kept: as given, or Daly's."""
        return self.daly_s if self.interval_s is None else self.interval_s

    def goodput(self, interval_s: float | None = None) -> float:
        """Return the share of time in which training gets on for good, in (0, 1).

        Args:
            interval_s: between two checkpoints; by default :attr:`trained_s`.
        """
        trained_s = self.trained_s if interval_s is None else interval_s
        attempt = math.expm1((trained_s + self.checkpoint_s) / self.mtbf_s)
        return trained_s / (self.mtbf_s * math.exp(self.restart_s / self.mtbf_s) * attempt)


class Played(NamedTuple):
    """A goodput that was simulated.

    Attributes:
        goodput: the share of time in which training got on for good.
        error: its standard error.
        failures: how many there were.
    """

    goodput: float
    error: float
    failures: int


def play_failures(failures: Failures, intervals: int = 10_000, seed: int = 0) -> Played:
    """Simulate a training of many intervals, drawing when hosts fail; equal seeds, equal bits.

    Args:
        failures: how often hosts fail.
        intervals: how many the training has; at least 2.
        seed: of what is drawn.

    Raises:
        InvalidValueError: fewer than two intervals, or a negative seed.
    """
    if intervals < 2:
        raise InvalidValueError("intervals", intervals, "an integer >= 2")
    if seed < 0:
        raise InvalidValueError("seed", seed, "an integer >= 0")
    chance = np.random.default_rng(seed)
    whole_s = failures.trained_s + failures.checkpoint_s
    took_s = np.zeros(intervals)
    restarts = np.zeros(intervals, bool)
    left = np.arange(intervals)
    count = 0
    # A constant rate does not remember: each attempt and each restart draws anew.
    while len(left):
        wanted_s = np.where(restarts[left], failures.restart_s, whole_s)
        until_s = chance.exponential(failures.mtbf_s, len(left))
        done = until_s >= wanted_s
        took_s[left] += np.where(done, wanted_s, until_s)
        count += int((~done).sum())
        trained = done & ~restarts[left]
        restarts[left] = ~done
        left = left[~trained]
    goodput = failures.trained_s / float(took_s.mean())
    spread = float(took_s.std(ddof=1)) / float(took_s.mean())
    return Played(goodput, goodput * spread / math.sqrt(intervals), count)

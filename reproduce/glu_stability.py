"""Where GLU diverges and SGD does not: SSD-SGD's Algorithms 1 and 2 in numpy, without Syncopate.

The first table has a quadratic of curvature c, and for each choice of GLU's hyper-parameters the
largest ``lr`` c that converges. There k iterations are a linear map, so that its largest eigenvalue
decides. The second table has a network of three layers and a choice of warm-ups. docs/ssd_sgd.md
says what they mean. The first takes a second, the second some minutes::

    python reproduce/glu_stability.py
    python reproduce/glu_stability.py --region    # the first table alone
    python reproduce/glu_stability.py --quick     # one warm-up, few steps
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradient = Callable[[int, int, Array], Array]
"""From a worker, an iteration and weights to a gradient."""

MOMENTUM = 0.9
PERIODS = (1, 2, 3, 4, 5, 6, 7, 8)
WARM_UPS = (19, 99, 499)
WORKERS, STEPS, LR = 4, 1000, 0.2
QUICK_STEPS = 50
CURVATURES = np.arange(1, 801) / 200
"""Of the region: ``lr`` c from 0.005 to 4."""


class Rule(NamedTuple):
    """GLU's hyper-parameters.

    Attributes:
        alpha: weight of the worker's own gradient.
        beta: weight of the recovered one.
        times: the worker's learning rate over the server's.
    """

    alpha: float = 2.0
    beta: float = 0.5
    times: float = 4.0


PAPER = Rule()
REGION = {
    "default": PAPER,
    "`loc_lr` = 2 `lr`": Rule(times=2.0),
    "`loc_lr` = `lr`": Rule(times=1.0),
    "`alpha` = 1": Rule(alpha=1.0),
    "`alpha` = 0.5": Rule(alpha=0.5),
    "`alpha` = 1, `beta` = 1.5": Rule(1.0, 1.5),
    "`alpha` = 0.5, `beta` = 2": Rule(0.5, 2.0),
    "`alpha` = 0, `beta` = 2.5": Rule(0.0, 2.5),
    '`"sgd"`': Rule(1.0, 0.0, 1.0),
    '`"sgd"`, `loc_lr` = 10 `lr`': Rule(1.0, 0.0, 10.0),
}
"""The rows of docs/ssd_sgd.md; SGD is GLU without a recovered gradient."""


def train(
    gradient: Gradient,
    weights: Array,
    lr: float,
    period: int | None,
    *,
    warm_up: int,
    steps: int,
    rule: Rule = PAPER,
) -> Array | None:
    """Return the global weights after ``steps`` iterations; None where they grew without bound.

    Algorithm 1 and, in its line 18, Algorithm 2, with the server's momentum SGD; downhill.

    Args:
        gradient: of a worker.
        weights: where it begins.
        lr: of the server.
        period: k; None for synchronous SGD.
        warm_up: wp.
        steps: iterations in all.
        rule: of the workers.
    """
    momentum = np.zeros_like(weights)
    computing = [weights] * WORKERS  # what gradients are computed on
    own: list[Array] = []
    before: list[Array] = []
    for num in range(steps):
        gradients = [gradient(worker, num, computing[worker]) for worker in range(WORKERS)]
        momentum = MOMENTUM * momentum - lr * np.mean(gradients, axis=0)
        weights = weights + momentum
        if period is None or num <= warm_up:
            computing = [weights] * WORKERS
            own, before = list(computing), list(computing)
        else:
            for worker in range(WORKERS):
                recovered = (before[worker] - own[worker]) * (1 - MOMENTUM) / (lr * period)
                updates = num - warm_up - 1
                if updates > 0 and updates % period == 0:
                    before[worker] = own[worker]
                step = rule.alpha * gradients[worker] + rule.beta * recovered
                own[worker] = own[worker] - rule.times * lr * step
            computing = list(own)
            if num % period == period - 1:
                own = [weights] * WORKERS
        if not np.abs(weights).max() < 1e9:
            return None
    return weights


def radius(curvatures: Array, period: int, rule: Rule = PAPER) -> Array:
    """Return what k iterations at ``lr`` 1 multiply the error on a quadratic by, in the long run.

    It is the largest absolute eigenvalue of the map that k iterations are of the server's weights
    and momentum, the worker's weights, ``pre_weight``, and the weights of the next gradient.
    Training converges where it is below 1.

    Args:
        curvatures: (N,), which is ``lr`` c.
        period: k.
        rule: of the workers.

    Returns:
        (N,)
    """
    whole = np.broadcast_to(np.eye(5), (len(curvatures), 5, 5))
    for num in range(period):
        weights, momentum, own, before, computing = np.moveaxis(whole, 1, 0)
        gradient = curvatures[:, None] * computing
        recovered = (before - own) * (1 - MOMENTUM) / period
        if num == 0:
            before = own
        own = own - rule.times * (rule.alpha * gradient + rule.beta * recovered)
        momentum = MOMENTUM * momentum - gradient
        weights = weights + momentum
        computing = own
        if num == period - 1:
            own = weights
        whole = np.stack([weights, momentum, own, before, computing], axis=1)
    found: Array = np.abs(np.linalg.eigvals(whole)).max(axis=1)
    return found


def largest_stable(period: int, rule: Rule = PAPER) -> float:
    """Return the largest ``lr`` c up to which all converge on a quadratic, in steps of 0.005."""
    diverges = radius(CURVATURES, period, rule) >= 1
    return float(CURVATURES[np.argmax(diverges) - 1]) if not diverges[0] else 0.0


def region() -> str:
    """Return the table of docs/ssd_sgd.md: the largest stable ``lr`` c by rule and k."""
    lines = ["| largest stable `lr` c |" + "".join(f" k = {k} |" for k in PERIODS)]
    lines.append("| --- |" + " --- |" * len(PERIODS))
    for name, rule in REGION.items():
        cells = "".join(f" {largest_stable(period, rule):.3f} |" for period in PERIODS)
        lines.append(f"| {name} |{cells}")
    return "\n".join(lines)


def quadratic(curvature: float) -> Gradient:
    """Return the gradient of ``curvature w^2 / 2``, on every worker."""
    return lambda _worker, _num, weights: curvature * weights


class Network:
    """Three layers that tell ten clouds of points apart."""

    SHAPES = ((64, 128), (128, 128), (128, 10))

    def __init__(self) -> None:
        """Draw the points."""
        random = np.random.default_rng(0)
        centers = random.normal(size=(10, 64)) * 0.6
        self.labels = np.repeat(np.arange(10), 200)
        self.points = centers[self.labels] + random.normal(size=(2000, 64))

    def weights(self) -> Array:
        """Return the weights to begin with, flat."""
        random = np.random.default_rng(1)
        drawn = [random.uniform(-1, 1, shape) / np.sqrt(shape[0]) for shape in self.SHAPES]
        return np.concatenate([each.ravel() for each in drawn])

    def loss_and_gradient(self, weights: Array, chosen: NDArray[np.int64]) -> tuple[float, Array]:
        """Return cross-entropy of the points ``chosen`` and its gradient."""
        sizes = np.cumsum([rows * columns for rows, columns in self.SHAPES])[:-1]
        parts = zip(np.split(weights, sizes), self.SHAPES, strict=True)
        first, second, third = (part.reshape(shape) for part, shape in parts)
        inputs, labels = self.points[chosen], self.labels[chosen]
        one = np.maximum(inputs @ first, 0)
        two = np.maximum(one @ second, 0)
        logits = two @ third
        odds = np.exp(logits - logits.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        places = np.arange(len(labels)), labels
        loss = float(-np.log(odds[places] + 1e-30).mean())
        odds[places] -= 1
        odds /= len(labels)
        back_two = (odds @ third.T) * (two > 0)
        back_one = (back_two @ second.T) * (one > 0)
        found = (inputs.T @ back_one, one.T @ back_two, two.T @ odds)
        return loss, np.concatenate([each.ravel() for each in found])

    def gradient(self, worker: int, num: int, weights: Array) -> Array:
        """Return a worker's gradient in an iteration, of 32 points of its own."""
        random = np.random.default_rng(1000 * num + worker)
        return self.loss_and_gradient(weights, random.integers(0, len(self.labels), 32))[1]


def networks(quick: bool) -> None:
    """Print what becomes of the network by SGD and by GLU after each warm-up."""
    network = Network()
    steps = QUICK_STEPS if quick else STEPS
    print(f"\nthree layers, {WORKERS} workers, lr = {LR}, {steps} iterations: loss")
    for period, warm_up in ((None, 0), *((1, each) for each in WARM_UPS[: 1 if quick else None])):
        end = train(network.gradient, network.weights(), LR, period, warm_up=warm_up, steps=steps)
        what = "SGD" if period is None else f"GLU, k = 1, after {warm_up + 1} iterations of SGD"
        loss = None if end is None else network.loss_and_gradient(end, np.arange(2000))[0]
        print(f"  {what}: {'diverged' if loss is None else f'{loss:.4f}'}")


def main(words: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one warm-up, few steps")
    parser.add_argument("--region", action="store_true", help="the first table alone")
    asked = parser.parse_args(words)
    print(f"on a quadratic with momentum {MOMENTUM}, where SGD has {2 * (1 + MOMENTUM):.2f}:")
    print(region())
    if not asked.region:
        networks(asked.quick)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()

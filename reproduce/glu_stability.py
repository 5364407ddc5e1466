"""Where GLU diverges and SGD does not: SSD-SGD's Algorithms 1 and 2 in numpy, without Syncopate.

The first table has a quadratic of curvature c, of which the largest ``lr`` c that converges is
sought. The second has a network of three layers and a choice of warm-ups. docs/ssd_sgd.md says what
they mean. It takes some minutes::

    python reproduce/glu_stability.py
    python reproduce/glu_stability.py --quick     # one k, one warm-up, few steps
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradient = Callable[[int, int, Array], Array]
"""From a worker, an iteration and weights to a gradient."""

MOMENTUM = 0.9
PERIODS = (1, 2, 3, 4, 5, 8)
WARM_UPS = (19, 99, 499)
WORKERS, STEPS, LR = 4, 1000, 0.2
QUICK_STEPS = 50


def train(
    gradient: Gradient,
    weights: Array,
    lr: float,
    period: int | None,
    *,
    warm_up: int,
    steps: int,
) -> Array | None:
    """Return the global weights after ``steps`` iterations; None where they grew without bound.

    Algorithm 1 and, in its line 18, Algorithm 2, with the server's momentum SGD; downhill.

    Args:
        gradient: of a worker.
        weights: where it begins.
        lr: of the server; a worker's is four times that.
        period: k; None for synchronous SGD.
        warm_up: wp.
        steps: iterations in all.
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
                step = 2.0 * gradients[worker] + 0.5 * recovered
                own[worker] = own[worker] - 4 * lr * step
            computing = list(own)
            if num % period == period - 1:
                own = [weights] * WORKERS
        if not np.abs(weights).max() < 1e9:
            return None
    return weights


def largest_stable(period: int) -> float:
    """Return the largest ``lr`` c at which GLU converges on a quadratic, to about 2%."""
    found = 0.0
    for rate in map(float, np.geomspace(0.1, 0.4, 70)):
        end = train(quadratic(rate), np.ones(1), 1.0, period, warm_up=period - 1, steps=800)
        if end is None or abs(end[0]) > 1e-2:
            break
        found = rate
    return found


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


def main(words: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one k, one warm-up, few steps")
    quick = parser.parse_args(words).quick
    print(f"largest stable lr c on a quadratic, m = {MOMENTUM}: SGD {2 * (1 + MOMENTUM):.2f}")
    for period in PERIODS[:1] if quick else PERIODS:
        print(f"  GLU, k = {period}: {largest_stable(period):.2f}")
    network = Network()
    steps = QUICK_STEPS if quick else STEPS
    print(f"\nthree layers, {WORKERS} workers, lr = {LR}, {steps} iterations: loss")
    for period, warm_up in ((None, 0), *((1, each) for each in WARM_UPS[: 1 if quick else None])):
        end = train(network.gradient, network.weights(), LR, period, warm_up=warm_up, steps=steps)
        what = "SGD" if period is None else f"GLU, k = 1, after {warm_up + 1} iterations of SGD"
        loss = None if end is None else network.loss_and_gradient(end, np.arange(2000))[0]
        print(f"  {what}: {'diverged' if loss is None else f'{loss:.4f}'}")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()

"""Interference: how much computation and collectives disturb each other.

[Note: definitions] Every rank computes and communicates at once, as in training.

- ``compute_rate``: units of computation per second while collectives are under way, divided by
  units per second while none is.
- ``collective_stretch``: duration of a collective while all ranks compute, divided by its duration
  while they wait for it.

A unit is one backward pass of a small convolutional network: like real backward it runs in
autograd's own code, without Python's lock, for about a millisecond. Collectives run one after the
other on a channel's thread. Each round measures the three states (computing, communicating, both)
one after the other, so that slow drifts of the machine cancel in the round's ratios; medians are
taken over rounds and then over ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from syncopate.artifacts.cluster import Interference
from syncopate.collectives.communicator import Communicator
from syncopate.collectives.handle import Handle
from syncopate.collectives.machine import device_of
from syncopate.output import Progress, say
from syncopate.recipe import Recipe

_STATE_S = (0.02, 0.08)
"""Shortest and longest duration of one state of one round: at least a score of units."""

_MOST_ROUNDS = 9
_FEWEST_ROUNDS = 3
_STATES_PER_ROUND = 5
"""Three, and time for the slowing down of the third and for the barriers."""

_MOST_COLLECTIVES = 200


@dataclass(frozen=True)
class Load:
    """The collective that runs beside computation.

    Attributes:
        nbytes: message size.
        recipe: how it travels.
        alone_s: about how long it takes on an idle machine.
    """

    nbytes: int
    recipe: Recipe
    alone_s: float


def measure_interference(
    communicator: Communicator,
    loads: Sequence[Load],
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> Interference:
    """Return the interference, alike on all ranks; ideal in a world of one rank.

    Args:
        communicator: the ranks; all of them must call this.
        loads: collectives typical of training, alike on all ranks.
        budget_s: about how long to take.
        progress: called before every round.
    """
    if communicator.world_size == 1 or not loads:
        return Interference()
    unit = compute_unit(device_of(communicator))
    states = _STATES_PER_ROUND * len(loads)
    state_s = min(max(budget_s / (states * _FEWEST_ROUNDS), _STATE_S[0]), _STATE_S[1])
    rounds = min(max(int(budget_s / (states * state_s)), _FEWEST_ROUNDS), _MOST_ROUNDS)
    rates: list[float] = []
    stretches: list[float] = []
    _count_for(unit, state_s / 2)
    for index in range(rounds):
        say(progress, "interference", index / rounds)
        for load in loads:
            rate, stretch = _round(communicator, load, unit, state_s)
            rates.append(rate)
            stretches.append(stretch)
    gathered = communicator.all_gather_object(
        (statistics.median(rates), statistics.median(stretches))
    )
    return Interference(
        compute_rate=min(statistics.median(rate for rate, _ in gathered), 1.0),
        collective_stretch=max(statistics.median(stretch for _, stretch in gathered), 1.0),
    )


def compute_unit(device: torch.device) -> Callable[[], None]:
    """Return a function that runs one backward pass of a small network and waits for it."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        layers = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
        network = nn.Sequential(*layers).to(device)
        loss = network(torch.randn(8, 16, 8, 8, device=device)).sum()
    parameters = list(network.parameters())

    def unit() -> None:
        torch.autograd.grad(loss, parameters, retain_graph=True)
        if device.type == "cuda":
            # The device as a whole would also wait for the collective beside.
            torch.cuda.current_stream(device).synchronize()

    return unit


def _round(
    communicator: Communicator, load: Load, unit: Callable[[], None], state_s: float
) -> tuple[float, float]:
    """Return ``(compute rate, collective stretch)`` of one round on this rank."""
    count = min(max(int(state_s / max(load.alone_s, 1e-6)), 1), _MOST_COLLECTIVES)

    def submit() -> Handle:
        """Submit ``count`` collectives and return the last one's handle."""
        handles = [communicator.run(load.recipe, buffer, async_op=True) for _ in range(count)]
        return handles[-1]

    buffer = torch.zeros(load.nbytes // 4, device=device_of(communicator))
    communicator.barrier()
    units, seconds = _count_for(unit, state_s)
    alone_per_s = units / seconds

    communicator.barrier()
    start_s = time.perf_counter()
    last = submit()
    last.wait()
    idle_s = last.finished_s - start_s

    communicator.barrier()
    start_s = time.perf_counter()
    last = submit()
    units = 0
    while not last.done():
        unit()
        units += 1
    computed_s = time.perf_counter() - start_s
    last.wait()
    busy_s = last.finished_s - start_s
    return (units / computed_s) / alone_per_s, busy_s / idle_s


def _count_for(unit: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Run units for about ``seconds``; return how many and the exact time."""
    start_s = time.perf_counter()
    units = 0
    while True:
        unit()
        units += 1
        elapsed_s = time.perf_counter() - start_s
        if elapsed_s >= seconds:
            return units, elapsed_s

"""Flights: looks while they depart, land, or are over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange.layout import Traffic
from syncopate.engine.exchange.proxies import weights
from syncopate.engine.exchange.proxies.averages import AwaitedAverage
from syncopate.engine.exchange.pull.flights import Flight, Flights


def test_a_look_of_another_thread_waits_while_flights_depart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradient = torch.zeros(2)
    part: Any = SimpleNamespace(
        trainables=[Trainable(0, "w", nn.Parameter(torch.zeros(2)))],
        views=[gradient],
        gradients=gradient.detach(),
        messages=[SimpleNamespace(bucket=0)],
    )
    layout: Any = SimpleNamespace(
        trainables=part.trainables, places={0: (part, 0)}, grads=[gradient], traffic=Traffic()
    )
    flights = Flights(layout)
    flight = Flight(part)
    flight.works.append(lambda: flights.memory_of(0).fill_(1.0))
    seen: list[list[float]] = []
    looking = threading.Thread(target=lambda: seen.append(gradient.tolist()))
    expect = weights.expect

    def looked_at(*args: Any) -> None:
        expect(*args)
        looking.start()
        looking.join(0.2)  # it waits, for as long as the departure lasts

    monkeypatch.setattr(weights, "expect", looked_at)
    flights.depart({flights.key_of(0): flight}, AwaitedAverage)
    looking.join()
    assert seen == [[1.0, 1.0]]
    assert type(gradient) is Tensor
    assert not flights.any()

"""Pieces: what this rank owns of each parameter, as an optimizer updates it.

A piece is one-dimensional where the optimizer goes by element. Where it looks at whole tensors, a
parameter is in one rank's range or in none, and its piece has its shape and strides.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from syncopate.artifacts.workload import TENSOR
from syncopate.engine.buckets import Trainable
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Layout
from syncopate.engine.exchange.shares import Shares


class Piece(NamedTuple):
    """What this rank owns of one parameter, or a range of it.

    Attributes:
        trainable: the parameter it is a part of.
        start: its first element in the parameter's memory; 0 where it has the parameter's shape.
        parameter: what an optimizer updates; a view of the flat weights.
        gradient: the average that belongs to it; a view of the flat gradients.
    """

    trainable: Trainable
    start: int
    parameter: nn.Parameter
    gradient: Tensor


class Pieces:
    """What this rank owns of each parameter, as an optimizer updates it.

    Attributes:
        of: per parameter this rank's pieces, if any.
    """

    def __init__(self, layout: Layout) -> None:
        self.of: list[tuple[Piece, ...]] = [()] * len(layout.trainables)
        weights, shares = layout.shared(FlatWeights), layout.shared(Shares)
        for part in layout.parts:
            flat = weights.of(part)
            for (trainable, offset), whole in zip(part.offsets(), part.views, strict=True):
                index, end = trainable.index, offset + trainable.parameter.numel()
                ranges = shares.of_parameter(index)
                own = [(flat[a:b], part.gradients[a:b]) for a, b in ranges]
                if ranges and layout.trained[index].kind == TENSOR:
                    assert ranges == [(offset, end)]
                    own = [(weights.view(index), whole)]
                self.of[index] = tuple(
                    Piece(trainable, start - offset, nn.Parameter(weight), average)
                    for (start, _), (weight, average) in zip(ranges, own, strict=True)
                )

"""Ready: models that are known by name, and what is assumed of how they are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from syncopate.errors import UnknownNameError
from syncopate.zoo.bert import bert_large
from syncopate.zoo.decoder import decoder_1b, decoder_8b
from syncopate.zoo.resnet import resnet50
from syncopate.zoo.task import Task


class Ready(NamedTuple):
    """A model, as it is usually trained.

    Attributes:
        build: makes its task with a batch of so many samples.
        batch: of a rank.
        compute: type of its products; empty: that of its weights.
        assumes: what is assumed, in a sentence.
    """

    build: Callable[[int], Task]
    batch: int
    compute: str
    assumes: str


READY = {
    "resnet50": Ready(
        resnet50, 64, "", "64 images of 224 x 224 on each rank, weights and products in float32"
    ),
    "bert-large": Ready(
        bert_large,
        8,
        "bfloat16",
        "8 sequences of 512 words on each rank, weights and gradients in float32, products in "
        "bfloat16; the loss of masked words over all positions",
    ),
    "decoder-1b": Ready(
        decoder_1b,
        4,
        "",
        "4 sequences of 2048 words on each rank, weights and gradients in bfloat16; activations "
        "are kept",
    ),
    "decoder-8b": Ready(
        decoder_8b,
        1,
        "",
        "one sequence of 4096 words on each rank, weights and gradients in bfloat16; activations "
        "are kept. 16 GB of weights and 16 of gradients fit beside an optimizer only where that "
        "has its state elsewhere",
    ),
}
"""Models by name."""


def ready(name: str) -> Ready:
    """Return a model that is known by name.

    Raises:
        UnknownNameError: no such model.
    """
    if name not in READY:
        raise UnknownNameError("model", name, READY)
    return READY[name]

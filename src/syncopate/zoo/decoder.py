"""Decoder: a transformer as today's open language models are, of 1 and of 8 billion parameters.

Source: Grattafiori et al., The Llama 3 Herd of Models, 2024, and the published configurations of
Llama 3.1 8B and 3.2 1B: groups of heads share keys and values, positions are rotations, the
perceptron is gated, and normalisation is by the root mean square. Weights are in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.zoo.task import Task, seeded, token_loss

WORDS = 128_256
_BASE = 500_000.0
_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """How large a decoder is.

    Attributes:
        layers: blocks.
        width: features of a position.
        heads: of each attention.
        shared: heads of keys and values, which the others share.
        inner: width of the perceptron.
        tied: whether the head is the embedding.
    """

    layers: int
    width: int
    heads: int
    shared: int
    inner: int
    tied: bool = False


ONE_BILLION = Shape(layers=16, width=2048, heads=32, shared=8, inner=8192, tied=True)
EIGHT_BILLION = Shape(layers=32, width=4096, heads=32, shared=8, inner=14336)


class Block(nn.Module):
    """Attention and a gated perceptron, each behind a normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, head = shape.width, shape.width // shape.heads
        self.heads, self.shared = shape.heads, shape.shared
        self.norm1 = nn.RMSNorm(width, eps=_EPSILON)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shape.shared * head, bias=False)
        self.value = nn.Linear(width, shape.shared * head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=_EPSILON)
        self.gate = nn.Linear(width, shape.inner, bias=False)
        self.up = nn.Linear(width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the block's output, shaped as ``x`` (N, T, width)."""
        batch, length, width = x.shape
        own = self.norm1(x)
        query = rotated(self._split(self.query(own), self.heads), turns)
        key = rotated(self._split(self.key(own), self.shared), turns)
        value = self._split(self.value(own), self.shared)
        group = self.heads // self.shared
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        own = self.norm2(x)
        out: Tensor = x + self.down(functional.silu(self.gate(own)) * self.up(own))
        return out

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, heads, width // heads).transpose(1, 2)


class Decoder(nn.Module):
    """A decoder over words: (N, T) to logits (N, T, words)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.words = nn.Embedding(WORDS, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=_EPSILON)
        self.head = nn.Linear(shape.width, WORDS, bias=False)
        if shape.tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of the word after each of ``words``."""
        x = self.words(words)
        turns = self._turns(words.shape[1], x)
        for block in self.blocks:
            x = block(x, turns)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _turns(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of each position's rotations, (T, head width)."""
        half = torch.arange(0, self.head_width, 2, device=like.device) / self.head_width
        places = torch.arange(length, device=like.device)
        angles = torch.outer(places, _BASE**-half).repeat(1, 2)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys (N, heads, T, head width), turned by their positions."""
    cosine, sine = turns
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def decoder_1b(batch_size: int = 4, *, length: int = 2048, seed: int = 0) -> Task:
    """Return the decoder of 1.24 billion parameters, with a random batch of words."""
    return _decoder("decoder-1b", ONE_BILLION, batch_size, length, seed)


def decoder_8b(batch_size: int = 1, *, length: int = 4096, seed: int = 0) -> Task:
    """Return the decoder of 8.03 billion parameters, with a random batch of words."""
    return _decoder("decoder-8b", EIGHT_BILLION, batch_size, length, seed)


def _decoder(name: str, shape: Shape, batch_size: int, length: int, seed: int) -> Task:
    with seeded(seed):
        return Task(
            model=Decoder(shape).to(torch.bfloat16),
            inputs=torch.randint(WORDS, (batch_size, length)),
            targets=torch.randint(WORDS, (batch_size, length)),
            loss_fn=token_loss,
            name=name,
        )

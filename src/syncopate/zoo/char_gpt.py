"""Character GPT: a small decoder-only transformer that learns to write one character at a time.

Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019: normalisation
before each sub-layer and after the last, learned positions, and residual projections initialised
smaller by the square root of their number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.errors import InvalidValueError
from syncopate.zoo.task import Task, seeded, token_loss
from syncopate.zoo.text import python_text

_DEVIATION = 0.02


class Attention(nn.Module):
    """Causal self-attention over (N, T, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what every position gathers from itself and those before it."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        gathered: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return gathered


class Block(nn.Module):
    """Attention and a perceptron four times as wide, each behind a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, shaped as ``x``."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class CharGPT(nn.Module):
    """A transformer over characters: tokens (N, T) to logits (N, T, vocabulary).

    Args:
        vocabulary: how many characters there are.
        context: the longest T.
        width: features of a position; a multiple of ``heads``.
        layers: blocks.
        heads: of each attention.
        tied: whether the head is the embedding, one parameter used twice.

    Raises:
        InvalidValueError: a width that the heads cannot share.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int = 64,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise InvalidValueError("width", width, f"a multiple of the {heads} heads")
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._initialise()
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the character after each of ``tokens``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _initialise(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                residual = name.endswith((".out", ".down"))
                shrink = math.sqrt(2 * len(self.blocks)) if residual else 1.0
                nn.init.normal_(module.weight, std=_DEVIATION / shrink)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def char_gpt(batch_size: int = 8, *, context: int = 64, seed: int = 0) -> Task:
    """Return the character GPT with a batch of :func:`python_text`; equal seeds give equal tasks.

    Args:
        batch_size: pieces of text in the batch.
        context: characters in a piece.
        seed: of the weights and the choice of pieces.
    """
    text = python_text()
    inputs, targets = next(text.batches(batch_size, context, epoch=seed))
    with seeded(seed):
        model = CharGPT(len(text.vocabulary), context=context)
    return Task(model=model, inputs=inputs, targets=targets, loss_fn=token_loss, name="char-gpt")

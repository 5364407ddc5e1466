"""BERT: an encoder that learns to name masked words.

Source: Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding, 2019. The head for masked words is the embedding, as there; of pre-training's two
losses only that of masked words is taken, over all positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from syncopate.zoo.task import Task, seeded, token_loss

WORDS, POSITIONS, KINDS = 30_522, 512, 2
_EPSILON = 1e-12


class Layer(nn.Module):
    """Self-attention and a perceptron four times as wide, each followed by a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, shaped as ``x`` (N, T, width)."""
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        query, key, value = (
            part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        out: Tensor = self.norm2(x + self.down(functional.gelu(self.up(x))))
        return out


class Bert(nn.Module):
    """An encoder over words: (N, T) to logits (N, T, words).

    Args:
        layers: how many.
        width: features of a position.
        heads: of each attention.
    """

    def __init__(self, *, layers: int = 24, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.kinds = nn.Embedding(KINDS, width)
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of every word at every position."""
        places = torch.arange(words.shape[1], device=words.device)
        kinds = torch.zeros_like(words)
        x = self.norm(self.words(words) + self.positions(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x)
        x = self.transform_norm(functional.gelu(self.transform(x)))
        return functional.linear(x, self.words.weight, self.bias)


def bert_large(batch_size: int = 8, *, length: int = 512, seed: int = 0) -> Task:
    """Return BERT-large with a random batch of words; equal seeds give equal tasks.

    Args:
        batch_size: sequences in the batch.
        length: words in a sequence, at most 512.
        seed: of weights and words.
    """
    with seeded(seed):
        return Task(
            model=Bert(),
            inputs=torch.randint(WORDS, (batch_size, length)),
            targets=torch.randint(WORDS, (batch_size, length)),
            loss_fn=token_loss,
            name="bert-large",
        )

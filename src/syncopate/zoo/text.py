"""Text: a small real corpus that needs no download.

The language reference that ``help()`` shows in Python, as the module ``pydoc_data.topics`` of the
standard library has it: some 460,000 characters of English and code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from syncopate.errors import InvalidValueError
from syncopate.zoo.task import shares


@dataclass(frozen=True, eq=False)
class Text:
    """A text as tokens, one for each character.

    Attributes:
        vocabulary: the characters that occur, sorted; a token is a place in it.
        tokens: int64 (N,), the whole text.
    """

    vocabulary: str
    tokens: Tensor

    def batches(
        self,
        batch_size: int,
        context: int,
        *,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one rank's batches of one epoch: ``(inputs, targets)``, each (N, T) of tokens.

        Targets are the inputs moved by one character. The text is cut into pieces of ``context``
        characters, of which each rank gets its own; see :func:`~syncopate.zoo.task.shares`.

        Raises:
            InvalidValueError: a size below 1, or a rank that is none.
        """
        if batch_size < 1 or context < 1:
            raise InvalidValueError(
                "batch_size and context", (batch_size, context), "integers >= 1"
            )
        pieces = (len(self.tokens) - 1) // context
        within = torch.arange(context)
        for chosen in shares(pieces, batch_size, epoch=epoch, rank=rank, world_size=world_size):
            places = chosen.unsqueeze(1) * context + within
            yield self.tokens[places], self.tokens[places + 1]


def python_text(characters: int | None = None) -> Text:
    """Return the language reference that ships with Python, or its first ``characters``.

    Tokens depend on the Python version, as the text does.
    """
    # 700 KB of source, which no other model needs.
    from pydoc_data.topics import topics  # noqa: PLC0415

    text = "\n".join(topics[name] for name in sorted(topics))[:characters]
    vocabulary = "".join(sorted(set(text)))
    places = {character: place for place, character in enumerate(vocabulary)}
    return Text(vocabulary, torch.tensor([places[character] for character in text]))

"""The character GPT and the text that it learns."""

from __future__ import annotations

import pytest
import torch

from syncopate.errors import InvalidValueError
from syncopate.zoo import CharGPT, char_gpt, python_text


def small(*, tied: bool = False) -> CharGPT:
    torch.manual_seed(0)
    return CharGPT(11, context=8, width=16, layers=2, heads=2, tied=tied)


def test_shapes_and_the_tied_head() -> None:
    tokens = torch.arange(10).view(2, 5)
    separate, tied = small(), small(tied=True)
    assert separate(tokens).shape == tied(tokens).shape == (2, 5, 11)
    names = dict(tied.named_parameters())
    assert "head.weight" not in names
    assert tied.head.weight is tied.embedding.weight
    assert len(list(separate.parameters())) == len(names) + 1
    tied(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in tied.parameters())


def test_nobody_sees_the_future() -> None:
    model, tokens = small(), torch.arange(8).view(1, 8)
    changed = tokens.clone()
    changed[0, 5:] = 0
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_it_learns_and_depends_on_the_seed_alone() -> None:
    def losses(seed: int) -> list[float]:
        task = char_gpt(4, context=16, seed=seed)
        optimizer = torch.optim.AdamW(task.model.parameters(), lr=3e-3)
        found = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = task.loss()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    before = torch.random.get_rng_state()
    first = losses(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first[-1] < 0.75 * first[0]
    assert losses(0) == first
    assert losses(1) != first


def test_ranks_read_disjoint_text() -> None:
    text = python_text(1000)
    whole = python_text()
    assert text.tokens.shape == (1000,)
    assert whole.tokens.max() == len(whole.vocabulary) - 1
    readable = [text.vocabulary[token] for token in text.tokens]
    assert readable == [whole.vocabulary[token] for token in whole.tokens[:1000]]
    seen = []
    for rank in range(2):
        batches = list(text.batches(3, 10, rank=rank, world_size=2))
        assert len(batches) == 999 // 10 // 6
        for inputs, targets in batches:
            assert inputs.shape == targets.shape == (3, 10)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            seen += [tuple(piece) for piece in inputs.tolist()]
    # Text repeats itself hardly ever over ten characters.
    assert len(set(seen)) > 0.8 * len(seen)
    both = [next(text.batches(3, 10, rank=rank, world_size=2))[0] for rank in range(2)]
    assert torch.equal(next(text.batches(6, 10))[0], torch.cat(both))


def test_refusals() -> None:
    with pytest.raises(InvalidValueError, match="multiple of the 4 heads"):
        CharGPT(5, width=6)
    text = python_text(100)
    with pytest.raises(InvalidValueError, match=r"0\.\.1"):
        next(text.batches(1, 5, rank=2, world_size=2))
    with pytest.raises(InvalidValueError, match="integers >= 1"):
        next(text.batches(0, 5))

"""Models that are known by name: their sizes are the published ones, and they train."""

from __future__ import annotations

import pytest
import torch

from syncopate.cli.common.workloads import MODELS
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.profiling.ready import ASSUMES, workload_of
from syncopate.zoo.bert import Bert
from syncopate.zoo.decoder import Decoder, Shape, rotated
from syncopate.zoo.ready import READY, ready
from syncopate.zoo.task import token_loss

PARAMETERS = {
    "resnet50": 25_557_032,
    # BertModel 335,141,888 without its pooler, 1,049,600; the head for masked words with its bias.
    "bert-large": 335_141_888 - 1_049_600 + 1_049_600 + 2_048 + 30_522,
    "decoder-1b": 1_235_814_400,
    "decoder-8b": 8_030_261_248,
}


def test_the_command_line_names_the_models_that_there_are():
    assert tuple(READY) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_published_number_of_parameters(name):
    workload = workload_of(name, "h100")
    assert sum(tensor.numel for tensor in workload.tensors) == PARAMETERS[name]
    assert workload.metadata["batch"] == str(READY[name].batch)
    assert workload.metadata[ASSUMES] == READY[name].assumes
    assert READY[name].assumes in workload.metadata["times"]
    dtype = "bfloat16" if name.startswith("decoder") else "float32"
    assert {tensor.dtype for tensor in workload.tensors} == {dtype}


def test_the_head_s_gradient_is_ready_first_and_a_tied_one_last():
    names = {name: [t.name for t in workload_of(name, "a100").tensors] for name in READY}
    assert names["decoder-8b"][0] == "head.weight"
    assert names["decoder-8b"][-1] == names["decoder-1b"][-1] == "words.weight"
    assert names["resnet50"][0].startswith("fc.")


def test_another_batch_computes_longer_and_sends_as_much():
    usual, double = workload_of("bert-large", "a100"), workload_of("bert-large", "a100", batch=16)
    assert double.nbytes == usual.nbytes
    assert double.compute_s > 1.5 * usual.compute_s
    assert "here 16 samples" in double.metadata[ASSUMES]


def test_what_is_not_known_or_cannot_be_is_refused():
    with pytest.raises(UnknownNameError, match="unknown model 'bert'; known: resnet50, bert-large"):
        ready("bert")
    with pytest.raises(UnknownNameError, match="device"):
        workload_of("resnet50", "abacus")
    with pytest.raises(InvalidValueError, match="batch is 0"):
        workload_of("resnet50", "h100", batch=0)


@pytest.mark.parametrize("tied", [False, True])
def test_a_small_decoder_learns_and_sees_nothing_that_comes_later(tied):
    torch.manual_seed(0)
    model = Decoder(Shape(layers=2, width=16, heads=4, shared=2, inner=24, tied=tied))
    words = torch.randint(100, (2, 6))
    before = model(words)
    changed = words.clone()
    changed[:, 4] += 1
    assert torch.allclose(model(changed)[:, :4], before[:, :4])
    assert not torch.allclose(model(changed)[:, 4:], before[:, 4:])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = token_loss(model(words), words)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_rotations_depend_on_how_far_positions_are_apart_alone():
    torch.manual_seed(0)
    angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.1])).repeat(1, 2)
    turns = angles.cos(), angles.sin()
    query, key = (torch.randn(1, 1, 1, 4).expand(1, 1, 8, 4) for _ in range(2))
    scores = rotated(query, turns) @ rotated(key, turns).transpose(-1, -2)
    assert torch.allclose(scores[0, 0, 2, 1], scores[0, 0, 6, 5], atol=1e-6)


def test_a_small_bert_gives_a_logit_for_each_word_and_trains_all_it_has():
    torch.manual_seed(0)
    model = Bert(layers=1, width=16, heads=2)
    words = torch.randint(100, (2, 5))
    logits = model(words)
    assert logits.shape == (2, 5, 30_522)
    token_loss(logits, words).backward()
    assert all(p.grad is not None for p in model.parameters())

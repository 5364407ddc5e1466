"""The benchmarks' DiLoCo, which is torchft's: its weights, and that nothing of it stays."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest
import torch
import torch.distributed as dist
from benchmarks.contest import diloco

from tests.multiprocess.delay.cases import close, each_has_its_own, iterate, odd64, two_groups
from tests.multiprocess.delay.local_sgd_cases import Outer
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.harness import run_ranks

MISSING = diloco.why_not()
pytestmark = pytest.mark.skipif(MISSING != "", reason=MISSING)

WHOLE = diloco.DiLoCo(period=4, warm_up=3)
STREAMING = WHOLE._replace(fragments=2, overlap=1, kept=0.25)
STEPS = 17


def trains(rank: int, world_size: int, how: diloco.DiLoCo) -> int:
    """Compare torchft's training with the reference, step by step; return its outer steps."""
    assert diloco.why_not() == ""
    reference = Outer(odd64(), lambda model: [two_groups(model)], how, world_size)
    model = odd64()
    optimizer = two_groups(model)
    with diloco.training(model, optimizer, how) as trained:
        for num in range(STEPS):
            iterate(trained, optimizer, rank, [num])
            reference.iterate()
            close(model.parameters(), reference.weights(rank))
            own = [each.detach().clone() for each in model.parameters()]
            with trained.global_weights():
                close(model.parameters(), reference.whole.parameters())
                identical_everywhere(model.parameters())
            assert all(map(torch.equal, own, model.parameters()))
        each_has_its_own(own)
    before = [each.detach().clone() for each in model.parameters()]
    for num in range(STEPS, STEPS + 2 * how.period):
        iterate(model, optimizer, rank, [num])
    assert not any(map(torch.equal, before, model.parameters()))
    return trained.outer_steps


@pytest.mark.parametrize(("how", "steps"), [(WHOLE, 3), (STREAMING, 7)], ids=["whole", "streaming"])
def test_it_trains_as_its_papers_say(how: diloco.DiLoCo, steps: int) -> None:
    assert run_ranks(trains, 2, how) == [steps, steps]


def answers(address: str) -> bool:
    place = urlsplit(address)
    try:
        socket.create_connection((place.hostname, place.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def fails(rank: int, world_size: int) -> None:
    """A training that fails on every rank leaves no lighthouse."""
    assert diloco.why_not() == ""
    seen: list[str] = []

    def begun() -> None:
        with diloco.lighthouse("127.0.0.1") as address:
            assert answers(address)
            seen.append(address)
            dist.barrier()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begun()
    dist.barrier()
    assert [answers(each) for each in seen] == [False]


def test_a_failure_leaves_no_lighthouse() -> None:
    run_ranks(fails, 2)

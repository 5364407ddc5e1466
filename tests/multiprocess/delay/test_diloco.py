"""The benchmarks' DiLoCo, which is torchft's: its weights, and that nothing of it stays."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest
import torch
import torch.distributed as dist
from benchmarks.contest import diloco

from syncopate.delay import LocalSGD
from tests.multiprocess.delay.cases import close, each_has_its_own, iterate, odd64, two_groups
from tests.multiprocess.delay.local_sgd_cases import Workers
from tests.multiprocess.engine.cases import identical_everywhere
from tests.multiprocess.harness import run_ranks

MISSING = diloco.why_not()
pytestmark = pytest.mark.skipif(MISSING != "", reason=MISSING)

HOW = diloco.DiLoCo(period=4, warm_up=3)
STEPS = 17


class Outer(Workers):
    """DiLoCo's Algorithm 1 on p workers in one process, after synchronous steps."""

    def __init__(self, workers: int) -> None:
        alone = LocalSGD(period=STEPS, warm_up=HOW.warm_up)  # which averages nothing here
        super().__init__(odd64(), lambda model: [two_groups(model)], alone, workers)
        self.whole = odd64()
        self.outer = torch.optim.SGD(self.whole.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def iterate(self) -> None:
        """Do one iteration on all workers, and the outer step that may follow."""
        super().iterate()
        local = self.num - HOW.warm_up
        with torch.no_grad():
            pairs = list(zip(self.whole.parameters(), self.means(), strict=True))
            if local <= 0:
                for theta, mean in pairs:
                    theta.copy_(mean)
            elif local % HOW.period == 0:
                for theta, mean in pairs:
                    theta.grad = theta - mean
                self.outer.step()
                for model in self.models:
                    for own, theta in zip(model.parameters(), self.whole.parameters(), strict=True):
                        own.copy_(theta)


def trains(rank: int, world_size: int) -> int:
    """Compare torchft's training with the reference, step by step; return its outer steps."""
    assert diloco.why_not() == ""
    reference = Outer(world_size)
    model = odd64()
    optimizer = two_groups(model)
    with diloco.training(model, optimizer, HOW) as trained:
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
    for num in range(STEPS, STEPS + 2 * HOW.period):
        iterate(model, optimizer, rank, [num])
    assert not any(map(torch.equal, before, model.parameters()))
    return trained.outer_steps


def test_it_trains_as_its_paper_says() -> None:
    assert run_ranks(trains, 2) == [3, 3]


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

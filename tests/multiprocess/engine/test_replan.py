"""Plans that have gone bad: what is noticed of links and computation, and what comes of it.

Clocks here are moved by what a test injects and by nothing else: what a batch computes, and by how
much each message is late. So the steps at which ranks ask and agree are known.
"""

from __future__ import annotations

import copy
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.cluster import Cluster
from syncopate.calibration import probing
from syncopate.collectives import Communicator
from syncopate.engine.selfplan import cache
from syncopate.engine.selfplan.replanning import watch
from syncopate.engine.selfplan.replanning.slowdown import PATIENCE, QUIET, REFERENCE
from syncopate.errors import EngineError
from syncopate.recipe import Recipe
from tests.multiprocess.engine.cases import (
    TIMEOUT_S,
    data,
    distribute,
    identical_everywhere,
    plan_of,
)
from tests.multiprocess.engine.selfplan_cases import (
    CLUSTER,
    MOST_STEPS,
    SelfPlanned,
    at_any_price,
    small_model,
    stderr,
)
from tests.multiprocess.harness import run_ranks

BATCH_S = 0.25
"""What a batch computes."""

START_S, LARGE_S = 0.015625, 0.25
"""By how much a message is late, and a large one besides: powers of two, which add up exactly."""

LARGE_NUMEL = 400

WINDOW = watch.WINDOW_STEPS
"""Steps of a window, where a test does not say otherwise."""


class _Clock:
    """A clock that durations move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _LateLink:
    """A communicator whose messages of gradients are late, by a clock.

    Attributes:
        start_s: by how much each of them is; a large one by more.
    """

    def __init__(self, communicator: Communicator, clock: _Clock) -> None:
        self._communicator, self._clock = communicator, clock
        self.start_s = START_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def run(self, recipe: Recipe, tensor: torch.Tensor, **told: Any) -> Any:
        handle = self._communicator.run(recipe, tensor, **told)
        if not told.get("async_op"):
            return handle
        late_s = [self.start_s + (LARGE_S if tensor.numel() > LARGE_NUMEL else 0.0)]
        clock = self._clock

        class Late:
            def wait(self) -> None:
                handle.wait()
                clock.now_s += late_s.pop() if late_s else 0.0

            def __getattr__(self, name: str) -> Any:
                return getattr(handle, name)

        return Late()


class _Watched(SelfPlanned):
    """A training beside DDP that has settled on a plan, on a clock of its own.

    Attributes:
        batch_s: what a batch computes.
        steps: taken so far.
        began: after how many steps each planning had begun.
    """

    def __init__(self, rank: int, batch_s: float = BATCH_S, **options: Any) -> None:
        watch.WINDOW_S = 0.0
        at_any_price()
        super().__init__(rank, plan="wfbp", channels=1, exchange="allreduce", **options)
        self.rank, self.engine = rank, self.model.syncopate
        self.clock = _Clock()
        watch.time = SimpleNamespace(perf_counter=self.clock)
        readiness = self.engine.readiness
        readiness.clock.stamp = readiness._stamp = self.clock
        self.link = _LateLink(readiness.communicator, self.clock)
        readiness.communicator = self.engine.communicator = self.link
        readiness.exchange.layout.communicator = self.link
        self.batch_s, self.steps = batch_s, 0
        self.began: list[int] = []
        self._planned = True
        self.until(lambda: not self.engine.planning)

    def step(self, *, beside_ddp: bool = True) -> None:
        """Train a step of two micro-batches."""
        at, rank = self.steps, self.rank

        def train(model: Any, optimizer: Any) -> None:
            optimizer.zero_grad()
            with model.no_sync():
                model(data(rank, 2 * at, 4, 8)).square().mean().backward()
            output = model(data(rank, 2 * at + 1, 4, 8))
            if model is self.model:
                self._compute()
                output.register_hook(self._compute)  # behind the engine's own
            output.square().mean().backward()
            optimizer.step()

        if beside_ddp:
            self.run(train)
        else:
            train(self.model, self.optimizer)
        self.steps += 1
        if self.engine.planning and not self._planned:
            self.began.append(self.steps)
        self._planned = self.engine.planning

    def _compute(self, _: Any = None) -> None:
        """Let half a batch be computed."""
        self.clock.now_s += self.batch_s / 2

    def until(self, over: Callable[[], bool]) -> None:
        """Train until then."""
        for _ in range(MOST_STEPS):
            self.step()
            if over():
                return
        raise AssertionError(f"not over after {MOST_STEPS} steps")

    def train_on(self, windows: int) -> None:
        """Train through windows in which nothing begins."""
        for _ in range(windows * WINDOW):
            self.step()
            assert not self.engine.planning

    def plan_again(self) -> None:
        """Train until the ranks have begun to plan, and have settled."""
        before = self.steps
        self.until(lambda: self.engine.planning)
        # A window may have begun before. One step more says so, and the next begins.
        windows = (self.steps - before - 2) / WINDOW
        assert PATIENCE - 1 < windows <= PATIENCE + 2
        self.until(lambda: not self.engine.planning)

    @property
    def buckets(self) -> int:
        """How many the plan at work has."""
        return len(self.engine.plan.buckets)


def _probes() -> list[None]:
    """Return a list that grows with every look at the network."""
    found: list[None] = []
    probe = probing.probe

    def counted(*told: Any) -> Any:
        found.append(None)
        return probe(*told)

    probing.probe = counted
    return found


def _a_link_that_turns_slow(rank: int, world_size: int) -> list[int]:
    probes = _probes()
    with stderr() as log:
        pair = _Watched(rank)
        assert (pair.buckets, len(probes)) == (8, 1)
        pair.train_on(REFERENCE + 20)  # a healthy run
        for _ in range(2):
            pair.clock.now_s += 1000.0  # a checkpoint
            pair.train_on(PATIENCE)
        pair.link.start_s = 4 * START_S
        pair.plan_again()
        # Of eight messages each is late, of one that one alone.
        assert (pair.buckets, len(probes)) == (1, 2)
        pair.train_on(REFERENCE + 20)
        pair.link.start_s = 32 * START_S
        pair.plan_again()
        assert (pair.buckets, len(probes)) == (1, 3)
        pair.train_on(PATIENCE)
        pair.check(tolerance=0)
        pair.close()
    lines = log.getvalue().splitlines()[2:]
    assert len(lines) == (0 if rank else 2)
    if not rank:
        assert re.match(
            r"syncopate: steps take 750.00 ms where they took 375.00 ms \(messages take longer\); "
            r"DDP's buckets \(1 bucket\) replaces ideal overlap \(8 buckets\), measured 562.50 ms "
            "a step, the plan before 750.00 ms; measuring took ",
            lines[0],
        ), lines[0]
        assert re.match(
            r"syncopate: steps take 1.00 s where they took 562.50 ms \(messages take longer\); "
            r"DDP's buckets \(1 bucket\) stays, measured 1.00 s a step, nothing is faster beyond "
            "noise",
            lines[1],
        ), lines[1]
    return pair.began


def _another_batch_size(rank: int, world_size: int) -> list[int]:
    probes = _probes()
    # Windows of the ranks end at different steps.
    watch.WINDOW_STEPS += rank
    with stderr() as log:
        pair = _Watched(rank)
        plan = pair.engine.plan
        pair.train_on(REFERENCE + 2)
        pair.batch_s = 3 * BATCH_S
        pair.plan_again()
        # The links are known, and the plan is the best still.
        assert len(probes) == 1
        assert pair.engine.plan.buckets == plan.buckets
        # After that no rank asks for a while.
        pair.train_on(REFERENCE + 1)
        pair.batch_s = 9 * BATCH_S
        pair.train_on(QUIET - 1)
        pair.until(lambda: pair.engine.planning)
        pair.until(lambda: not pair.engine.planning)
        pair.check(tolerance=0)
        pair.close()
    lines = log.getvalue().splitlines()[2:]
    assert len(lines) == (0 if rank else 2)
    for line in lines:
        assert "(computation takes longer); ideal overlap (8 buckets) stays, measured " in line
    return pair.began


def _a_backward_that_fails_when_ranks_agree(rank: int, world_size: int) -> list[int]:
    """Two of three ranks ask in the step that fails on the third, and all of them plan."""
    cluster = Cluster.flat(world_size, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    with stderr():
        pair = _Watched(rank, cluster=cluster)
        pair.train_on(REFERENCE + 2)
        pair.batch_s = 3 * BATCH_S
        pair.until(lambda: pair.engine.readiness.watch.asks)
        pair.optimizer.zero_grad()
        loss = pair.model(data(rank, 0, 4, 8)).square().mean()
        hook = pair.model[0].weight.register_hook(_fail if rank == 2 else _pass)
        with pytest.raises((ZeroDivisionError, EngineError), match=r"on purpose|rank 2"):
            loss.backward()
        hook.remove()
        assert not pair.engine.planning
        # The others wait for rank 2 until its next forward, which is not to be DDP's.
        pair.step(beside_ddp=False)
        assert pair.engine.planning
        pair.until(lambda: not pair.engine.planning)
        pair.train_on(PATIENCE)
        identical_everywhere(pair.model.parameters())
        pair.close()
    return pair.began


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError("on purpose")


def _pass(_: torch.Tensor) -> None:
    """Let the gradient be."""


def _ranks_that_run_out_of_inputs(rank: int, world_size: int) -> list[int]:
    """Within join() nothing begins: a rank might not be there."""
    with stderr():
        pair = _Watched(rank, cluster=CLUSTER)
        pair.train_on(REFERENCE + 2)
        pair.batch_s = 3 * BATCH_S
        with pair.model.join():
            for _ in range(2 * PATIENCE * WINDOW + 25 * rank):
                pair.step(beside_ddp=False)
                assert not pair.engine.planning
        pair.steps = 1000
        while not pair.engine.planning:
            pair.step(beside_ddp=False)
        while pair.engine.planning:
            pair.step(beside_ddp=False)
        # Momentum was not where inputs were not.
        identical_everywhere(parameter.grad for parameter in pair.model.parameters())
        pair.close()
    return pair.began


def _several_optimizers_that_defer(rank: int, world_size: int) -> list[int]:
    watch.WINDOW_S = 0.0
    at_any_price()
    clock = _Clock()
    watch.time = SimpleNamespace(perf_counter=clock)
    torch.manual_seed(0)
    plain = small_model()
    twin = copy.deepcopy(plain)
    reference = DistributedDataParallel(plain)
    references, optimizers = _two_optimizers(plain), _two_optimizers(twin)
    model, optimizers = distribute(
        twin, optimizers, cluster=CLUSTER, plan="wfbp", exchange="decoupled", timeout_s=TIMEOUT_S
    )
    engine = model.syncopate
    engine.readiness.clock.stamp = engine.readiness._stamp = clock
    batch_s, began = 1.0, []

    def train(steps: int, over: Callable[[], bool]) -> None:
        for step in range(steps):
            for one, those in ((reference, references), (model, optimizers)):
                one(data(rank, step, 4, 8)).square().mean().backward()
                for optimizer in those:
                    optimizer.step()
                    optimizer.zero_grad()
            clock.now_s += batch_s
            if over():
                began.append(step)
                return

    with stderr() as log:
        train(MOST_STEPS, lambda: not engine.planning)
        assert engine.plan.exchange == "decoupled"
        train(WINDOW * (REFERENCE + 2), lambda: engine.planning)
        batch_s = 3.0
        train(MOST_STEPS, lambda: engine.planning)
        train(MOST_STEPS, lambda: not engine.planning)
        assert engine.plan.exchange == "decoupled"
        train(20, lambda: engine.planning)
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert log.getvalue().count("steps take 3.00 s where they took 1.00 s") == (rank == 0)
        model.syncopate.detach()
    return [began[1]]


def _two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    weights = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim == 1]
    return [torch.optim.SGD(weights, lr=0.05, momentum=0.9), torch.optim.AdamW(others, lr=0.01)]


def _a_plan_of_the_user_s(rank: int, world_size: int) -> list[int]:
    """Neither one that was given nor one that was installed is watched, nor a deterministic run."""
    with stderr():
        pair = _Watched(rank, cluster=CLUSTER)
        assert pair.engine.readiness.watch is not None
        pair.engine.install(plan_of(pair.model, world_size, [8]))
        assert pair.engine.readiness.watch is None
        pair.close()
        for options in ({"plan": plan_of(pair.model, world_size)}, {"deterministic": True}):
            model = small_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            given: Any = distribute(model, optimizer, timeout_s=TIMEOUT_S, **options)[0]
            assert not given.syncopate.planning
            assert given.syncopate.readiness.watch is None
            given.syncopate.detach()
    return []


def _same_everywhere(case: Callable[[int, int], list[int]], ranks: int, times: int) -> None:
    everyone = run_ranks(case, ranks)
    assert len(everyone[0]) == times
    assert all(began == everyone[0] for began in everyone)


def test_a_link_that_turns_slow() -> None:
    _same_everywhere(_a_link_that_turns_slow, 2, 2)


def _a_kept_plan(rank: int, world_size: int) -> list[int]:
    """It is compared with what it takes in this run, and the file stays as it is."""
    with tempfile.TemporaryDirectory() as folder, stderr() as log:
        os.environ[cache.VARIABLE] = folder  # rank 0 alone looks into its own
        _Watched(rank, cluster=CLUSTER).close()
        files = {path: path.read_bytes() for path in Path(folder).iterdir()}
        assert len(files) == (rank == 0)
        pair = _Watched(rank, cluster=CLUSTER, batch_s=8 * BATCH_S)
        assert pair.buckets == 8
        pair.train_on(REFERENCE + 20)
        pair.link.start_s = 32 * START_S
        pair.plan_again()
        assert pair.buckets == 1
        pair.check(tolerance=0)
        pair.close()
        assert {path: path.read_bytes() for path in Path(folder).iterdir()} == files
    assert log.getvalue().count("DDP's buckets (1 bucket) replaces ideal overlap") == (rank == 0)
    return pair.began


@pytest.mark.parametrize(
    ("case", "ranks", "times"),
    [
        pytest.param(_another_batch_size, 2, 2, id="another batch size"),
        pytest.param(_a_backward_that_fails_when_ranks_agree, 3, 1, id="a backward that fails"),
        pytest.param(_ranks_that_run_out_of_inputs, 2, 1, id="ranks that run out of inputs"),
        pytest.param(_several_optimizers_that_defer, 2, 1, id="several optimizers that defer"),
        pytest.param(_a_plan_of_the_user_s, 2, 0, id="a plan of the user's"),
        pytest.param(_a_kept_plan, 2, 1, id="a kept plan"),
    ],
)
def test_all_plan_at_the_same_step_or_none(
    case: Callable[[int, int], list[int]], ranks: int, times: int
) -> None:
    _same_everywhere(case, ranks, times)

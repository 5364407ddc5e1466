"""SSD-SGD's accuracy study: its rows, what is trained, and one training on all ranks.

Every run is a real training through ``syncopate.distribute`` with ``delay=``: its hyper-parameters
are the paper's, the learning rate by the linear rule, and the warm-up a fifth of the paper's, as an
epoch here has about a fifth of the iterations. What is trained is much smaller; ``SETTINGS`` says
by how much.

[Note: what is tested] The global weights, which the servers of the paper have, with rank 0's
running means of batch normalisation: after every epoch and at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import syncopate
from ssd_sgd_served import train_served
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.artifacts.plan import SHARDED, Bucket, Plan
from syncopate.artifacts.workload import fingerprint
from syncopate.protocol.rules import SGD
from syncopate.recipe import Recipe
from syncopate.zoo import CharGPT, ResNet20, Text, digits, python_text
from syncopate.zoo.task import seeded, token_loss

SSGD, ASGD = "ssgd", "asgd"
PERIODS = (1, 2, 3, 4, 5)
RULES_AT = 5
"""The delay at which the paper compares local rules (Fig. 5)."""

PAPER_WARM_UPS = (100, 200, 300, 400, 500)
"""Iterations of Fig. 4; 500 is what everything else is trained with."""

WARM_UP_SCALE = 5
LOCAL_LR = {"glu": 4.0, "sgd": 0.25, "dc-asgd-a": 1.0}
"""Local over global learning rate: 1.6, 0.1 and 0.4 over 0.4 (Section 4.4)."""

_EPOCHS_APART = 1000
"""Between the seeds, so that no two of them see the data in one order."""


class Row(NamedTuple):
    """One way of training.

    Attributes:
        name: on the command line and in files.
        title: in tables.
        rule: the local rule; empty for SSGD and ASGD.
        k: steps of delay; 0 for those.
        warm_up: the paper's iterations of it.
    """

    name: str
    title: str
    rule: str = ""
    k: int = 0
    warm_up: int = PAPER_WARM_UPS[-1]


ROWS = {
    row.name: row
    for row in (
        Row(SSGD, "SSGD"),
        *(Row(f"glu-{k}", f"{k}-Step", "glu", k) for k in PERIODS),
        Row(f"sgd-{RULES_AT}", "SGD", "sgd", RULES_AT),
        Row(f"dc-asgd-a-{RULES_AT}", "DC-ASGD-a", "dc-asgd-a", RULES_AT),
        *(Row(f"glu-1-{w}", f"1S-{w}", "glu", 1, w) for w in PAPER_WARM_UPS[:-1]),
        Row(ASGD, "ASGD"),
    )
}
TABLE_2 = (SSGD, *(f"glu-{k}" for k in PERIODS))
FIG_4 = (*(f"glu-1-{w}" for w in PAPER_WARM_UPS[:-1]), "glu-1")
FIG_5 = tuple(f"{rule}-{RULES_AT}" for rule in ("glu", "sgd", "dc-asgd-a"))


class Setting(Record, frozen=True, kw_only=True):
    """How a workload is trained.

    Attributes:
        batch_size: samples per rank and iteration.
        epochs: of a run.
        iterations: of an epoch.
        lr: the global learning rate.
        momentum: of the update of the global weights.
        weight_decay: the same.
        warm_up_scale: the paper's warm-up over ours.
    """

    batch_size: int
    epochs: int
    iterations: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warm_up_scale: int = WARM_UP_SCALE


class Run(Record, frozen=True, kw_only=True):
    """One training.

    Attributes:
        workload: a name in ``WORKLOADS``.
        row: a name in ``ROWS``.
        seed: of weights and of the order of the data.
        accuracy: test accuracy of the global weights at the end, in [0, 1].
        curve: the same after each epoch; empty with ASGD, where the others would not wait for the
            test.
        warm_up: ``wp`` as it was trained; 0 for SSGD and ASGD.
        seconds: that the training took, tests included; on shared cores it compares nothing.
    """

    workload: str
    row: str
    seed: int
    accuracy: float
    curve: tuple[float, ...]
    warm_up: int
    seconds: float


class Study(Artifact, frozen=True, kw_only=True):
    """All runs of a file.

    Attributes:
        ranks: that trained together.
        quick: whether the trainings were cut to see that they run; then no figure counts.
        settings: workload -> how it was trained.
        runs: in the order in which they were taken.
        metadata: command, hardware, versions, date.
    """

    KIND: ClassVar[str] = "ssd-sgd study"

    ranks: int
    quick: bool
    settings: dict[str, Setting]
    runs: tuple[Run, ...] = ()
    metadata: dict[str, str] = {}

    def found(self, workload: str, row: str) -> dict[int, Run]:
        """Return the runs of a row, by seed."""
        runs = (run for run in self.runs if (run.workload, run.row) == (workload, row))
        return {run.seed: run for run in runs}


class Place(NamedTuple):
    """One run that is asked for."""

    workload: str
    row: str
    seed: int


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        title: in tables.
        smaller: by how much it is smaller than the paper's.
        seeds: how many, unless fewer are asked for.
        rows: of the study.
        build: makes the model from a seed.
        loss: of output and targets.
        batches: one rank's batches: ``batches(size, epoch, rank, ranks)``.
        accuracy: on the test set, in [0, 1].
    """

    title: str
    smaller: str
    seeds: int
    rows: tuple[str, ...]
    build: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    batches: Callable[[int, int, int, int], Iterator[tuple[Tensor, Tensor]]]
    accuracy: Callable[[nn.Module], float]


def _on_digits() -> Workload:
    data = digits()
    return Workload(
        title="ResNet-20, digits",
        smaller=(
            "1437 images of 8 x 8 in grey instead of CIFAR-10's 50000 of 32 x 32 in colour, a rank "
            "instead of 4 GPUs with 32 samples each, and 360 images to test, of which one is 0.28 "
            "points"
        ),
        seeds=5,
        rows=tuple(ROWS),
        build=ResNet20,
        loss=functional.cross_entropy,
        batches=lambda size, epoch, rank, ranks: data.batches(
            size, epoch=epoch, rank=rank, world_size=ranks
        ),
        accuracy=data.test_accuracy,
    )


_CONTEXT = 32
_TRAINED = 0.3
_TESTED = 0.04


def _on_text() -> Workload:
    whole = python_text()
    length = len(whole.tokens)
    trained = Text(whole.vocabulary, whole.tokens[: round(_TRAINED * length)])
    tested = Text(whole.vocabulary, whole.tokens[-round(_TESTED * length) :])
    inputs, targets = next(tested.batches((len(tested.tokens) - 1) // _CONTEXT, _CONTEXT))

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        training = model.training
        guesses = model.eval()(inputs).argmax(dim=2)
        model.train(training)
        return float((guesses == targets).double().mean())

    return Workload(
        title="character GPT, text",
        smaller=(
            f"a transformer of two layers on {len(trained.tokens)} characters, where the paper has "
            f"convolutions alone; {targets.numel()} characters to test"
        ),
        seeds=3,
        rows=(*TABLE_2, *FIG_5[1:], ASGD),
        build=lambda: CharGPT(len(whole.vocabulary), context=_CONTEXT, width=64, layers=2),
        loss=token_loss,
        batches=lambda size, epoch, rank, ranks: trained.batches(
            size, _CONTEXT, epoch=epoch, rank=rank, world_size=ranks
        ),
        accuracy=accuracy,
    )


WORKLOADS = {"digits": _on_digits, "text": _on_text}
"""Name -> makes the workload; its data are read only then."""

_SIZES = {
    "digits": {"batch_size": 16, "epochs": 15, "lr": 0.05},
    "text": {"batch_size": 16, "epochs": 5, "lr": 0.05, "weight_decay": 0.0},
}
_QUICK_EPOCHS = 2
_QUICK_BATCHES = {"digits": 64, "text": 128}
_QUICK_WARM_UP_SCALE = 250


def setting_of(name: str, workload: Workload, ranks: int, quick: bool) -> Setting:
    """Return how a workload is trained on so many ranks."""
    sizes: dict[str, Any] = dict(_SIZES[name])
    if quick:
        sizes |= {"epochs": _QUICK_EPOCHS, "batch_size": _QUICK_BATCHES[name]}
        sizes["warm_up_scale"] = _QUICK_WARM_UP_SCALE
    iterations = sum(1 for _ in workload.batches(sizes["batch_size"], 0, 0, ranks))
    return Setting(iterations=iterations, **sizes)


def warm_up_of(row: Row, setting: Setting) -> int:
    """Return ``wp``: the smallest from the scaled one on of which (1 + wp) mod k is 0."""
    least = row.warm_up // setting.warm_up_scale
    return least + -(1 + least) % row.k


def delay_of(row: Row, setting: Setting) -> syncopate.Delay | None:
    """Return a row's delay; None for SSGD and ASGD."""
    if not row.k:
        return None
    return syncopate.Delay(
        k=row.k,
        warm_up=warm_up_of(row, setting),
        local_update=row.rule,
        loc_lr=LOCAL_LR[row.rule] * setting.lr,
    )


def one_bucket(model: nn.Module, ranks: int) -> Plan:
    """Return the plan of all runs: everything in one message, updated in shares."""
    tensors = [(name, p.numel(), "float32") for name, p in model.named_parameters()]
    bucket = Bucket(
        tensors=tuple(name for name, _, _ in reversed(tensors)),
        nbytes=4 * sum(numel for _, numel, _ in tensors),
        push=Recipe("reduce_scatter", "ring"),
        pull=Recipe("all_gather", "ring"),
    )
    return Plan(
        model=type(model).__name__,
        fingerprint=fingerprint(tensors),
        world_size=ranks,
        policy="one bucket",
        buckets=(bucket,),
        exchange=SHARDED,
    )


def train(place: Place, workload: Workload, setting: Setting, rank: int, ranks: int) -> Run:
    """Train once; every rank calls it, and gets the same result but for what rank 0 tested.

    Args:
        place: which run.
        workload: its workload.
        setting: of that.
        rank: this one.
        ranks: how many there are.
    """
    delay = delay_of(ROWS[place.row], setting)
    began_s = time.perf_counter()
    with seeded(place.seed):
        model = workload.build()

    def epochs() -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        for epoch in range(setting.epochs):
            order = place.seed * _EPOCHS_APART + epoch
            yield workload.batches(setting.batch_size, order, rank, ranks)

    curve: tuple[float, ...] = ()
    if place.row == ASGD:
        optimizer = SGD(lr=setting.lr, momentum=setting.momentum, weight_decay=setting.weight_decay)
        batches = chain.from_iterable(epochs())
        train_served(model, batches, workload.loss, optimizer, rank)
    else:
        curve = tuple(_distributed(model, workload, setting, delay, epochs()))
    return Run(
        workload=place.workload,
        row=place.row,
        seed=place.seed,
        accuracy=workload.accuracy(model) if rank == 0 else 0.0,
        curve=curve,
        warm_up=delay.wp if delay else 0,
        seconds=time.perf_counter() - began_s,
    )


def _distributed(
    model: nn.Module,
    workload: Workload,
    setting: Setting,
    delay: syncopate.Delay | None,
    epochs: Iterable[Iterable[tuple[Tensor, Tensor]]],
) -> Iterator[float]:
    """Train through ``distribute``; on rank 0 yield what each epoch's test says."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=setting.lr,
        momentum=setting.momentum,
        weight_decay=setting.weight_decay,
    )
    options = {"delay": delay} if delay else {}
    plan = one_bucket(model, dist.get_world_size())
    syncopate.distribute(model, optimizer, plan=plan, **options)
    for batches in epochs:
        for inputs, targets in batches:
            optimizer.zero_grad()
            workload.loss(model(inputs), targets).backward()
            optimizer.step()
        with model.syncopate.global_weights():
            tested = workload.accuracy(model) if dist.get_rank() == 0 else None
        if tested is not None:
            yield tested
    model.syncopate.detach()


def asked(
    names: Sequence[str], rows: Sequence[str], seeds: int | None, workloads: dict[str, Workload]
) -> list[Place]:
    """Return the runs of a study, seed by seed, so that a part of it is a smaller study.

    Args:
        names: of the workloads.
        rows: names of the rows; those that a workload has not are left out.
        seeds: how many; None for each workload's own.
        workloads: by name.
    """
    places = []
    for name in names:
        own = workloads[name]
        count = own.seeds if seeds is None else min(seeds, own.seeds)
        chosen = [row for row in own.rows if row in rows]
        places += [Place(name, row, seed) for seed in range(count) for row in chosen]
    return places

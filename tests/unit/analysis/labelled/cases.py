"""Cases by seed: a training, its faults, how it is noted, and whether explain is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from syncopate.analysis.causes.explanation import Explanation, explanation
from syncopate.tracing.foreign import read_timeline
from tests.unit.analysis.labelled import faults as wrong
from tests.unit.analysis.labelled import forms, noted
from tests.unit.analysis.labelled.faults import Fault
from tests.unit.analysis.labelled.machine import Row
from tests.unit.analysis.labelled.trainings import Training, lasts_s

WITHIN, POINTS = 0.15, 0.03
"""A gain is right within this part of itself, or this part of an iteration."""

WORTH = 0.03
"""A fault that costs less of an iteration than this need not be named."""

Noted = Callable[[list[Row]], list[Row]]
Form = Callable[[list[Row], Path], list[Path]]


@dataclass(frozen=True)
class Case:
    """A labelled training."""

    seed: int
    shape: str
    training: Training
    faults: tuple[Fault, ...]
    how: str
    note: Noted
    write: Form = forms.table

    @property
    def title(self) -> str:
        said = "; ".join(fault.title for fault in self.faults) or "healthy"
        return f"{self.seed} {self.shape} {self.training.ranks} ranks, {self.how}: {said}"


class Verdict(NamedTuple):
    """Whether explain was right of a case.

    Attributes:
        case: which.
        cost: what the faults cost, as a part of an iteration.
        first: whether the first cause is one of the faults, or none is named where there is none.
        gain: whether the gain is right.
        blamed: whether no other rank is blamed.
        abstains: why it says nothing.
        said: what it names.
    """

    case: Case
    cost: float
    first: bool
    gain: bool
    blamed: bool
    abstains: tuple[str, ...]
    said: str

    @property
    def may_abstain(self) -> bool:
        """Whether it abstains for a reason that there is."""
        said = any("now on one rank and now on another" in why for why in self.abstains)
        return said and any(fault.anywhere for fault in self.case.faults)


def explained(case: Case, folder: Path) -> tuple[Explanation, float, list[float]]:
    """Return what explain says, what all faults cost an iteration, and each when it goes alone."""
    rows = case.training.rows(case.faults)
    with_s = lasts_s(rows)
    without_s = lasts_s(case.training.rows(mended=case.faults))
    cost_s = with_s - without_s
    each_s = []
    for fault in case.faults:
        left = [one for one in case.faults if one is not fault]
        but_s = lasts_s(case.training.rows(left, [fault]))
        only_s = lasts_s(case.training.rows([fault], left))
        each_s.append(max(with_s - but_s, only_s - without_s))
    paths = case.write(case.note(rows), folder)
    return explanation(read_timeline(paths)), cost_s, each_s


def judged(case: Case, folder: Path) -> Verdict:
    """Return whether explain is right."""
    found, cost_s, each_s = explained(case, folder)
    named = [one for one in found.causes if one.kind not in ("transfers", "pipeline")]
    every = found.causes[:1]
    rows = list(zip(case.faults, each_s, strict=True))
    worth_s = WORTH * found.iteration_s
    wanted = [f for f, s in rows if s > worth_s and cost_s > worth_s]
    worst = max(each_s, default=0.0)

    def fits(cause: object, fault: Fault) -> bool:
        kind, ranks = cause.kind, frozenset(cause.ranks)  # type: ignore[attr-defined]
        return kind in fault.kinds and (not fault.ranks or not ranks or ranks <= fault.ranks)

    if not wanted:
        first = not [one for one in named if one.gain_s > WORTH * found.iteration_s]
    else:
        top = named or list(every)
        great = [f for f, s in rows if s > 0.5 * worst]
        first = bool(top) and any(fits(top[0], fault) for fault in great)
    gained_s = found.together_s
    if any("transfers" in fault.kinds for fault in case.faults) and not named:
        gained_s = cost_s
    gain = abs(gained_s - cost_s) <= max(WITHIN * cost_s, POINTS * found.iteration_s)
    theirs = frozenset(r for f in case.faults for r in f.ranks)
    free = {k for f in case.faults if not f.ranks for k in f.kinds}
    blamed = all(frozenset(one.ranks) <= theirs or one.kind in free for one in named)
    said = ", ".join(
        f"{c.kind}{list(c.ranks) if c.ranks else ''} {c.gain_s / found.iteration_s:.1%}"
        for c in found.causes
    )
    return Verdict(
        case, cost_s / found.iteration_s, first, gain, blamed, found.abstains,
        f"{said}; together {found.together_s / found.iteration_s:.1%}; "
        f"each {[f'{s / found.iteration_s:.1%}' for s in each_s]}",
    )  # fmt: skip


# -- drawn -----------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "ddp": lambda luck: {"replicas": luck.choice((2, 3, 4, 8, 16, 32))},
    "fsdp": lambda luck: {
        "replicas": luck.choice((2, 3, 4, 8, 16)), "sharded": True, "transfer_ms": 3.0,
    },
    "accumulated": lambda luck: {
        "replicas": luck.choice((2, 4, 8)), "micro_batches": 4, "layers": 2, "buckets": 2,
    },
    "tensor": lambda luck: {
        "replicas": luck.choice((2, 4)), "parts": luck.choice((2, 4)), "layers": 4,
    },
    "pipeline": lambda luck: {
        "replicas": luck.choice((2, 4)), "stages": luck.choice((2, 3, 4)),
        "micro_batches": luck.choice((4, 8)), "layers": 2, "buckets": 1, "layer_ms": 4.0,
    },
    "one pipeline": lambda luck: {
        "replicas": 1, "stages": luck.choice((2, 3, 4)),
        "micro_batches": luck.choice((4, 8)), "layers": 2, "buckets": 1, "layer_ms": 4.0,
    },
    "three ways": lambda luck: {
        "replicas": 2, "parts": 2, "stages": luck.choice((2, 4)), "micro_batches": 4,
        "layers": 2, "buckets": 1, "layer_ms": 4.0,
    },
}  # fmt: skip

NOTES: dict[str, Callable[[int], Noted]] = {
    "tidy": lambda seed: list,
    "clocks 20 us off": lambda seed: partial(noted.clocks_off, by_s=2e-5, seed=seed),
    "ends 10 us late": lambda seed: partial(noted.ends_late, by_s=1e-5, seed=seed),
    "ends 1 ms late": lambda seed: partial(noted.ends_late, by_s=1e-3, seed=seed),
    "as called": lambda seed: noted.as_called,
    "whole passes": lambda seed: noted.whole_passes,
    "small spans": lambda seed: noted.with_small_spans,
}


def drawn(seed: int) -> Case:
    """Return the case of a seed."""
    luck = random.Random(f"case {seed}")
    shape = list(SHAPES)[seed % len(SHAPES)]
    options = SHAPES[shape](luck)
    training = Training(
        **options, seed=seed, jitter=luck.choice((0.005, 0.02, 0.04)),
        iterations=luck.choice((8, 12, 20)),
    )  # type: ignore[arg-type]  # fmt: skip
    count = luck.choices((0, 1, 2, 3), (2, 6, 3, 1))[0]
    names = luck.sample(sorted(FAULTS), count)
    faults = tuple(fault for name in names for fault in FAULTS[name](training, luck))
    how = luck.choice(list(NOTES))
    return Case(seed, shape, training, faults, how, NOTES[how](seed))


def usual_s(of: Training) -> float:
    """Return about how long an iteration takes."""
    turns = of.micro_batches + of.stages - 1
    return 3 * of.layer_ms * of.layers * turns * 1e-3


def some(of: Training, luck: random.Random, most: int = 1) -> list[int]:
    return luck.sample(range(of.ranks), min(most, of.ranks))


def slow(of: Training, luck: random.Random, count: int, lanes: Sequence[str] = ()) -> list[Fault]:
    """Draw slow ranks; in a single pipeline they are stages that are long."""
    if of.stages > 1 and of.replicas * of.parts == 1:
        stage = luck.randrange(of.stages)
        return [wrong.long_stage(of.of_stage(stage), luck.uniform(1.3, 2.0), of.stages)]
    return [wrong.slow(some(of, luck, min(count, of.ranks - 1)), luck.uniform(1.2, 2.5), lanes)]


Draw = Callable[[Training, random.Random], Sequence[Fault]]
FAULTS: dict[str, Draw] = {
    "slow": lambda of, luck: slow(of, luck, 1),
    "slow backward": lambda of, luck: slow(of, luck, 1, ("backward",)),
    "two slow": lambda of, luck: slow(of, luck, 2),
    "late": lambda of, luck: [wrong.late_input(some(of, luck), usual_s(of) * luck.uniform(0.2, 1))],
    "all late": lambda of, luck: [wrong.late_input((), usual_s(of) * luck.uniform(0.2, 0.8))],
    "checkpoint": lambda of, luck: [
        wrong.checkpoints(0, usual_s(of) * luck.uniform(0.6, 2), luck.choice((3, 4)),
                          luck.random() < 0.5)
    ],
    "gc": lambda of, luck: [
        wrong.collections(usual_s(of) * luck.uniform(0.5, 1.5), luck.uniform(0.05, 0.3),
                          luck.random() < 0.7, luck.randrange(99))
    ],
    "now and then": lambda of, luck: [
        wrong.now_and_then(*some(of, luck), luck.uniform(1.6, 3.0), luck.choice((2, 3, 4)))
    ],
    "unequal": lambda of, luck: [
        wrong.unequal(luck.uniform(0.1, 0.4), luck.randrange(99), lambda r: of.place(r)[1],
                      of.replicas, of.micro_batches)
    ],
    "wandering": lambda of, luck: [wrong.wandering(of.ranks, luck.uniform(1.5, 2.5))],
    "slow end": lambda of, luck: [wrong.slow_end(*some(of, luck), luck.uniform(2, 8))],
    "slow group": lambda of, luck: (
        [wrong.slow_group(of.alike(*some(of, luck)), luck.uniform(3, 10),
                          "reduce_scatter" if of.sharded else "all_reduce")]
        if of.stages * of.parts > 1 else [wrong.slow_end(*some(of, luck), luck.uniform(2, 8))]
    ),
    "congestion": lambda of, luck: [
        wrong.congestion(luck.uniform(4, 10), luck.uniform(0.1, 0.3), luck.randrange(99))
    ],
    "long stage": lambda of, luck: (
        [wrong.long_stage(of.of_stage(luck.randrange(of.stages)), luck.uniform(1.2, 1.8),
                          of.stages)]
        if of.stages > 1 else []
    ),
}  # fmt: skip


# -- drawn otherwise -------------------------------------------------------------------------------

OTHER_SHAPES: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "ddp": SHAPES["ddp"],
    "accumulated": SHAPES["accumulated"],
    "tensor": SHAPES["tensor"],
    "experts": lambda luck: {
        "replicas": luck.choice((2, 4, 8)), "experts": True, "layers": 3, "buckets": 3,
    },
    "three ways": SHAPES["three ways"],
}  # fmt: skip

OTHER_NOTES: dict[str, Callable[[int], tuple[Noted, Form]]] = {
    "tidy": lambda seed: (list, forms.table),
    "objects": lambda seed: (list, forms.objects),
    "arrays": lambda seed: (list, forms.arrays),
    "arrays, one cut off": lambda seed: (list, forms.cut_off),
    "objects, clocks 5 ms off": lambda seed: (
        partial(noted.clocks_drift, by_s=5e-3, drift=0.0, seed=seed), forms.objects,
    ),
    "clocks 5 ms off": lambda seed: (
        partial(noted.clocks_drift, by_s=5e-3, drift=0.0, seed=seed), forms.table,
    ),
    "clocks drift": lambda seed: (
        partial(noted.clocks_drift, by_s=2e-3, drift=5e-4, seed=seed), forms.table,
    ),
    "labels alike": lambda seed: (noted.labels_alike, forms.table),
    "one rank cut": lambda seed: (partial(noted.one_cut, rank=1, share=0.8), forms.table),
}  # fmt: skip

_SILENT = ("slow", "slow backward", "two slow", "late", "all late", "now and then", "unequal")
"""Faults that every form can tell."""


def drawn_otherwise(seed: int) -> Case:
    """Return a case of the forms that :func:`drawn` does not draw."""
    luck = random.Random(f"other case {seed}")
    shape = list(OTHER_SHAPES)[seed % len(OTHER_SHAPES)]
    how = luck.choice([one for one in OTHER_NOTES if one != "tidy"])
    if shape == "three ways" and OTHER_NOTES[how](seed)[1] is not forms.table:
        shape = "ddp"  # kernels do not tell sends from receives
    training = Training(
        **OTHER_SHAPES[shape](luck), seed=seed, jitter=luck.choice((0.005, 0.02, 0.04)),
        iterations=luck.choice((8, 12, 20)),
    )  # type: ignore[arg-type]  # fmt: skip
    names = luck.sample(_SILENT, luck.choices((0, 1, 2), (2, 6, 2))[0])
    faults = [fault for name in names for fault in FAULTS[name](training, luck)]
    if luck.random() < 0.3:
        faults.append(wrong.evaluations(usual_s(training) * luck.uniform(0.5, 1.5), 4))
    note, write = OTHER_NOTES[how](seed)
    return Case(seed, shape, training, tuple(faults), how, note, write)

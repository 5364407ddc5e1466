"""Trainings: the steps of each rank, by what is parallel."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.unit.analysis.labelled.faults import Fault
from tests.unit.analysis.labelled.machine import Compute, Launch, Row, Step, Wait, ends_s, played

MS = 1e-3


@dataclass(frozen=True)
class Training:
    """A training; rank = (stage x replicas + replica) x parts + part.

    Attributes:
        replicas: that hold the same part of the model, and have other data.
        parts: of each layer (tensor parallel).
        stages: of the pipeline.
        sharded: weights are gathered, and gradients reduced and scattered, layer by layer.
        micro_batches: of an iteration.
        layers: of a stage.
        experts: whether each layer sends tokens to experts, one on each rank, and has them back.
        buckets: of gradients, each ready with a layer.
        layer_ms: forward of one layer and micro-batch; backward takes twice as long.
        update_ms: the optimizer.
        input_ms: between steps.
        transfer_ms: of the gradients of one bucket.
        part_ms: of what the parts of a layer exchange.
        between_ms: of what stages send.
        jitter: standard deviation of computation, relative.
        iterations: how many.
        warm_up: how many times as long the first iteration computes.
        seed: of all that is by chance.
    """

    replicas: int = 4
    parts: int = 1
    stages: int = 1
    sharded: bool = False
    micro_batches: int = 1
    layers: int = 4
    experts: bool = False
    buckets: int = 4
    layer_ms: float = 8.0
    update_ms: float = 4.0
    input_ms: float = 0.5
    transfer_ms: float = 5.0
    part_ms: float = 0.6
    between_ms: float = 0.4
    jitter: float = 0.02
    iterations: int = 12
    warm_up: float = 4.0
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.replicas * self.parts * self.stages

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return stage, replica and part of a rank."""
        rest, part = divmod(rank, self.parts)
        stage, replica = divmod(rest, self.replicas)
        return stage, replica, part

    def rank(self, stage: int, replica: int, part: int) -> int:
        return (stage * self.replicas + replica) * self.parts + part

    def alike(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same part of the model."""
        stage, _, part = self.place(rank)
        return tuple(self.rank(stage, one, part) for one in range(self.replicas))

    def layer(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the parts of the same layers."""
        stage, replica, _ = self.place(rank)
        return tuple(self.rank(stage, replica, one) for one in range(self.parts))

    def of_stage(self, stage: int) -> tuple[int, ...]:
        """Return all ranks of a stage."""
        return tuple(r for r in range(self.ranks) if self.place(r)[0] == stage)

    def rows(self, faults: Sequence[Fault] = (), mended: Sequence[Fault] = ()) -> list[Row]:
        """Return what all ranks do, with some faults, and with others mended."""
        ranks = [_Rank(self, rank, faults, mended) for rank in range(self.ranks)]
        return played([rank.steps() for rank in ranks])


def lasts_s(rows: Sequence[Row]) -> float:
    """Return how long an iteration takes in the mean, without the first."""
    ends = ends_s(rows)
    first, last = min(ends), max(ends)
    return (ends[last] - ends[first]) / (last - first)


Key = tuple[object, ...]
Group = tuple[str, tuple[int, ...]]
"""Its name and ranks."""


class _Message(NamedTuple):
    kind: str
    nbytes: int
    lasts_ms: float
    queue: str


class _Rank:
    """The steps of one rank."""

    def __init__(
        self, of: Training, rank: int, faults: Sequence[Fault], mended: Sequence[Fault]
    ) -> None:
        self.of, self.rank, self.faults, self.mended = of, rank, faults, mended
        self.stage, self.replica, self.part = of.place(rank)
        self.i = 0

    def steps(self) -> Iterator[Step]:
        for i in range(self.of.iterations):
            self.i = i
            yield from self._iteration()

    def _iteration(self) -> Iterator[Step]:
        late_s = self.of.input_ms * MS
        late_s += sum(fault.input_s(self.rank, self.i) for fault in self.faults)
        yield Compute("", late_s, self.i)
        yield from self._pauses("input")
        self.pending: list[tuple[object, ...]] = []
        if self.of.stages > 1:
            yield from self._pipeline()
        else:
            for micro in range(self.of.micro_batches):
                yield from self._forward(micro)
                yield from self._backward(micro, last=micro + 1 == self.of.micro_batches)
        for key in self.pending:
            yield Wait(key)
        yield self._computes("update", self.of.update_ms, 0, 0)
        yield from self._pauses("end")

    # -- what is computed --------------------------------------------------------------------------

    def _computes(self, lane: str, lasts_ms: float, micro: int, layer: int) -> Compute:
        of = self.of
        luck = random.Random(f"{of.seed} {self.rank} {self.i} {lane} {micro} {layer}")
        lasts_ms *= max(1 + of.jitter * luck.gauss(0, 1), 0.2)
        if self.i == 0:
            lasts_ms *= of.warm_up
        for fault in self.faults:
            lasts_ms *= fault.factor(self.rank, self.i, lane, micro)
        for fault in self.mended:
            lasts_ms *= fault.mended(self.rank, self.i, lane, micro)
        return Compute(lane, lasts_ms * MS, self.i)

    def _pauses(self, place: str) -> Iterator[Step]:
        for fault in self.faults:
            if pause := fault.pause(self.rank, self.i, place):
                yield Compute(pause.kind if pause.noted else "", pause.lasts_s, self.i)

    def _forward(self, micro: int) -> Iterator[Step]:
        of = self.of
        if of.sharded:
            yield from self._gather("f", micro, 0)
        for layer in range(of.layers):
            if of.sharded:
                if layer + 1 < of.layers:
                    yield from self._gather("f", micro, layer + 1)
                yield Wait(("gather", "f", self.i, micro, layer, self.rank // of.replicas))
            yield self._computes("forward", of.layer_ms, micro, layer)
            yield from self._parts("f", micro, layer)
            yield from self._experts("forward", micro, layer)

    def _backward(self, micro: int, *, last: bool) -> Iterator[Step]:
        of = self.of
        if of.sharded:
            yield from self._gather("b", micro, of.layers - 1)
        for layer in reversed(range(of.layers)):
            if of.sharded:
                if layer:
                    yield from self._gather("b", micro, layer - 1)
                yield Wait(("gather", "b", self.i, micro, layer, self.rank // of.replicas))
            yield from self._experts("backward", micro, layer)
            yield self._computes("backward", 2 * of.layer_ms, micro, layer)
            yield from self._parts("b", micro, layer)
            if last and layer == 0:
                yield from self._pauses("backward")
            if of.sharded:
                yield from self._reduce("reduce_scatter", micro, layer)
            elif last and of.replicas > 1 and layer % max(of.layers // of.buckets, 1) == 0:
                yield from self._reduce("all_reduce", micro, layer)

    # -- what is sent ------------------------------------------------------------------------------

    def _launch(self, key: Key, group: Group, what: _Message) -> Launch:
        kind, nbytes, lasts_ms, queue = what
        name, ranks = group
        lasts_ms *= 1 + 0.05 * random.Random(f"{self.of.seed} {key}").random()
        for fault in self.faults:
            lasts_ms *= fault.carried(kind, ranks, self.i)
        two = kind in ("send", "recv")  # which are over on both ranks at once
        tail = 0.0 if two else sum(fault.tail(self.rank, self.i) for fault in self.faults)
        return Launch(
            key, kind, name, ranks, nbytes, lasts_ms * MS, tail * lasts_ms * MS, queue,
            self.i,
        )  # fmt: skip

    def _alike(self) -> Group:
        return f"dp{self.stage}.{self.part}", self.of.alike(self.rank)

    def _gather(self, way: str, micro: int, layer: int) -> Iterator[Step]:
        key = ("gather", way, self.i, micro, layer, self.rank // self.of.replicas)
        what = _Message("all_gather", 1 << 22, self.of.transfer_ms * 0.5, "gather")
        yield self._launch(key, self._alike(), what)

    def _reduce(self, kind: str, micro: int, layer: int) -> Iterator[Step]:
        group = self._alike()
        key = ("reduce", self.i, micro, layer, group[0])
        yield self._launch(key, group, _Message(kind, 1 << 22, self.of.transfer_ms, "dp"))
        self.pending.append(key)

    def _parts(self, way: str, micro: int, layer: int) -> Iterator[Step]:
        of = self.of
        if of.parts < 2:
            return
        key = ("part", way, self.i, micro, layer, self.stage, self.replica)
        group = f"tp{self.stage}.{self.replica}", of.layer(self.rank)
        yield self._launch(key, group, _Message("all_reduce", 1 << 20, of.part_ms, "tp"))
        yield Wait(key)

    def _experts(self, lane: str, micro: int, layer: int) -> Iterator[Step]:
        of = self.of
        if not of.experts:
            return
        for way in ("there", "back"):
            key = ("expert", lane, way, self.i, micro, layer, self.stage, self.part)
            group = f"ep{self.stage}.{self.part}", of.alike(self.rank)
            yield self._launch(key, group, _Message("all_to_all", 1 << 20, of.part_ms, "ep"))
            yield Wait(key)
            if way == "there":
                lasts_ms = of.layer_ms * (0.5 if lane == "forward" else 1.0)
                yield self._computes(lane, lasts_ms, micro, of.layers + layer)

    # -- pipelines: one forward, one backward ------------------------------------------------------

    def _pipeline(self) -> Iterator[Step]:
        of = self.of
        first = min(of.stages - self.stage - 1, of.micro_batches)
        forwards, backwards = iter(range(of.micro_batches)), iter(range(of.micro_batches))
        for _ in range(first):
            yield from self._stage_forward(next(forwards))
        for _ in range(of.micro_batches - first):
            yield from self._stage_forward(next(forwards))
            yield from self._stage_backward(next(backwards))
        for micro in backwards:
            yield from self._stage_backward(micro)

    def _stage_forward(self, micro: int) -> Iterator[Step]:
        yield from self._message("f", micro, self.stage - 1, "recv")
        yield from self._forward(micro)
        yield from self._message("f", micro, self.stage + 1, "send")

    def _stage_backward(self, micro: int) -> Iterator[Step]:
        yield from self._message("b", micro, self.stage + 1, "recv")
        yield from self._backward(micro, last=micro + 1 == self.of.micro_batches)
        yield from self._message("b", micro, self.stage - 1, "send")

    def _message(self, way: str, micro: int, other: int, kind: str) -> Iterator[Step]:
        of = self.of
        if not 0 <= other < of.stages:
            return
        peer = of.rank(other, self.replica, self.part)
        key = (way, self.i, micro, min(self.stage, other), self.replica, self.part)
        low, high = sorted((self.rank, peer))
        group = f"pp{self.replica}.{self.part}", (low, high)
        what = _Message(kind, 1 << 18, of.between_ms, f"{way} {kind} {other}")
        yield self._launch(key, group, what)
        if kind == "recv":
            yield Wait(key)

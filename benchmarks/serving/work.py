"""Work: the tensors that are pushed and pulled, and every sample of the times that it took."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import torch
import zmq
from msgspec import structs
from torch import Tensor

from contest.conduct import reopened
from syncopate import KVStore
from syncopate.artifacts.artifact import Artifact, Record
from syncopate.lab.topology import TCP_GOODPUT
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.layout import Layout, TensorSpec
from syncopate.protocol.rules import SGD, Rules
from syncopate.units import MIB, dtype_name
from syncopate.zoo import ResNet50

LARGE, SMALL, MANY = "large", "small", "many"
LARGE_BYTES = 16 * MIB
SMALL_BYTES = 4
MANY_TENSORS, MANY_BYTES = 10_000, 64
LIMITS = Limits(silence_s=60.0)
"""The machine may be so busy that a process is silent for long; none counts as lost for that."""

RULES = Rules(mode="ssgd", optimizer=SGD(lr=0.1))
OPERATIONS = ("push", "pull", "step")
"""All tensors pushed until the servers have them; all pulled; all pushed and pulled at once."""


class Setting(Record, frozen=True, kw_only=True):
    """What one file was measured under; samples of another setting are not mixed in.

    Attributes:
        rate: of each emulated host's link, such as ``"1gbit"``.
        model_bytes: of all tensors of the model.
        large_bytes: of the one large tensor.
    """

    rate: str
    model_bytes: int
    large_bytes: int = LARGE_BYTES


class Cell(Record, frozen=True, kw_only=True):
    """One operation of one contender on one set of tensors.

    Attributes:
        place: ``"lab"`` or ``"loopback"``.
        contender: ``"syncopate"``, or on loopback one of those that :mod:`.loopback` names.
        workers: how many push and pull at once.
        servers: how many there are.
        what: ``"large"``, ``"model"``, ``"small"`` or ``"many"``: which tensors.
        operation: one of :data:`OPERATIONS`.
        bound_s: what the busiest link's bytes need at the line rate of payload; 0 on loopback.
        samples_s: seconds of every round, the longest worker's.
    """

    place: str
    contender: str
    workers: int
    servers: int
    what: str
    operation: str
    bound_s: float = 0.0
    samples_s: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int, str, str]:
        """What tells it from other cells."""
        place = (self.place, self.contender, self.workers, self.servers)
        return (*place, self.what, self.operation)

    @property
    def median_s(self) -> float:
        """The median of its samples."""
        return statistics.median(self.samples_s)


class Results(Artifact, frozen=True, kw_only=True):
    """Every sample.

    Attributes:
        setting: what all of them were taken under.
        cells: in the order in which they took turns.
        metadata: versions, and the machine.
    """

    KIND: ClassVar[str] = "paramserver-speed"

    setting: Setting
    cells: tuple[Cell, ...] = ()
    metadata: dict[str, str] = {}

    def joined(self, more: Iterable[Cell]) -> Results:
        """Return these results with the samples of one round more."""
        cells = {cell.key: cell for cell in self.cells}
        for cell in more:
            before = cells[cell.key].samples_s if cell.key in cells else ()
            cells[cell.key] = structs.replace(cell, samples_s=before + cell.samples_s)
        return structs.replace(self, cells=tuple(cells.values()))

    def rounds(self, place: str) -> int:
        """Return how many rounds all cells of ``place`` have."""
        counts = [len(cell.samples_s) for cell in self.cells if cell.place == place]
        return min(counts, default=0)


def facts() -> dict[str, str]:
    """Return the versions and the machine that something is measured with."""
    return {
        "torch": str(torch.__version__),
        "pyzmq": zmq.__version__,
        "zmq": zmq.zmq_version(),
        "machine": platform.platform(),
        "cores": str(os.cpu_count()),
    }


def with_facts(results: Results) -> Results:
    """Return the results with what they were measured with."""
    return structs.replace(results, metadata=results.metadata | facts())


def resumed(path: Path | None, setting: Setting) -> Results:
    """Return the samples that a file keeps, or none.

    Raises:
        ArtifactError: the file holds something else, or was measured under another setting.
    """
    return reopened(path, Results(setting=setting), "setting")


def shapes(quick: bool) -> dict[str, tuple[int, ...]]:
    """Return the model's tensors: those of ResNet-50, or three small ones."""
    if quick:
        return {"a": (256, 1024), "b": (1000,), "c": (512, 512)}
    with torch.device("meta"):
        model = ResNet50()
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def all_tensors(quick: bool) -> dict[str, dict[str, Tensor]]:
    """Return zeros of all sets of tensors: the model, one large, one small."""
    large_bytes = MIB if quick else LARGE_BYTES
    return {
        "model": {f"model.{name}": torch.zeros(shape) for name, shape in shapes(quick).items()},
        LARGE: {LARGE: torch.zeros(large_bytes // 4)},
        SMALL: {SMALL: torch.zeros(SMALL_BYTES // 4)},
    }


def many_tensors(quick: bool) -> dict[str, Tensor]:
    """Return ten thousand tensors of 64 bytes, which are pushed and pulled all at once."""
    count = MANY_TENSORS // 10 if quick else MANY_TENSORS
    return {f"{MANY}.{number:05d}": torch.zeros(MANY_BYTES // 4) for number in range(count)}


def setting_of(quick: bool, rate: str) -> Setting:
    """Return the setting of a run."""
    nbytes = {what: sum(t.nbytes for t in ts.values()) for what, ts in all_tensors(quick).items()}
    return Setting(rate=rate, model_bytes=nbytes["model"], large_bytes=nbytes[LARGE])


def flattened(sets: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all sets by name."""
    return {name: tensor for tensors in sets.values() for name, tensor in tensors.items()}


def layout_of(sets: Mapping[str, Mapping[str, Tensor]], servers: int) -> Layout:
    """Return how the servers share the tensors."""
    specs = [TensorSpec(n, dtype_name(t.dtype), t.numel()) for n, t in flattened(sets).items()]
    return Layout(specs, servers, LIMITS.slice_bytes)


def slices_bytes(layout: Layout, names: Iterable[str]) -> list[int]:
    """Return the bytes of every message with one of some tensors, or several."""
    return [piece.nbytes for piece in layout.pieces(list(names))]


def busiest_bytes(layout: Layout, names: Iterable[str], workers: int, servers: int) -> int:
    """Return what the busiest link carries in one direction when all push, or all pull.

    A worker's link carries all tensors once; a server's its share of them once for each worker.
    """
    loads = [0] * servers
    for name in names:
        for piece in layout.of_tensor(name):
            loads[layout.server_of[piece.key]] += piece.nbytes
    return max(sum(loads), workers * max(loads))


def operation(store: KVStore, tensors: Mapping[str, Tensor], name: str) -> Callable[[], None]:
    """Return the operation called ``name`` on some tensors; it returns when it is over.

    Those of :func:`many_tensors` are one submission; others one each.
    """
    if next(iter(tensors)).startswith(MANY):
        return _together(store, tensors, name)
    gradients = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}

    def run() -> None:
        handles = []
        for key, gradient in gradients.items():
            if name != "pull":
                handles.append(store.push(key, gradient))
        for key, tensor in tensors.items():
            if name != "push":
                handles.append(store.pull(key, tensor))
        for handle in handles:
            handle.wait()

    return run


def _together(store: KVStore, tensors: Mapping[str, Tensor], name: str) -> Callable[[], None]:
    gradients = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}

    def run() -> None:
        handles = []
        if name != "pull":
            handles.append(store.push_many(gradients))
        if name != "push":
            handles.append(store.pull_many(tensors))
        for handle in handles:
            handle.wait()

    return run


def timed(function: Callable[[], None]) -> tuple[float, float]:
    """Return when ``function`` began and ended, by a clock that all processes share."""
    began_s = time.monotonic()
    function()
    return began_s, time.monotonic()


def tell(results: Results, place: str) -> None:
    """Print the medians of one place: over the line rate in the lab, and side by side here."""
    cells = [cell for cell in results.cells if cell.place == place]
    if place == "lab":
        print("workers servers                median ms  of the line  of the raw   n")
        for cell in cells:
            share = cell.bound_s / cell.median_s
            print(
                f"{cell.workers:7d}{cell.servers:8d}  {cell.what:6s}{cell.operation:6s}"
                f"{cell.median_s * 1e3:10.1f}{share:13.1%}{share * TCP_GOODPUT:12.1%}"
                f"{len(cell.samples_s):4d}",
                flush=True,
            )
        return
    print(f"{'loopback':18s}{'contender':12s}{'median ms':>10s}{'its time / ours':>18s}{'n':>4s}")
    ours = {(c.what, c.operation): c.median_s for c in cells if c.contender == "syncopate"}
    for cell in cells:
        share = cell.median_s / ours[cell.what, cell.operation]
        print(
            f"{cell.what:10s}{cell.operation:8s}{cell.contender:12s}{cell.median_s * 1e3:10.3f}"
            f"{share:18.2f}{len(cell.samples_s):4d}",
            flush=True,
        )

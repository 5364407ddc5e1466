"""Sweep: what a benchmark measures and how; checked before any rank starts, so without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncopate.artifacts.results.benchmark import BARRIER, MODES, PEERS
from syncopate.errors import InvalidValueError, UnknownNameError, how_to_install
from syncopate.recipe import ORDER
from syncopate.schedules import registry
from syncopate.schedules.conditions import conditions
from syncopate.schedules.options import Option
from syncopate.units import dtype_bytes

MPI_NEEDED = (
    f"install an MPI library and mpi4py ({how_to_install('mpi4py')}), or leave mpi out of --against"
)
"""What to do where MPI cannot be used."""


def parse_algorithm(collective: str, text: str) -> tuple[str, dict[str, Option]]:
    """Read an algorithm and its options, such as ``"lp:blocks=8"``.

    A value is an integer, integers joined by ``x`` or words joined by ``+``:
    ``"blueconnect:factors=2x4:stages=ring+recursive"``. ``"auto"`` has no options: choosing them
    is what it does.

    Returns:
        The algorithm's name and its options; values are checked where the world size is known.

    Raises:
        UnknownNameError: no such algorithm of ``collective``, or an option that it does not take.
        InvalidValueError: something that is no ``option=value``.
    """
    name, *parts = text.split(":")
    known: tuple[str, ...] = ()
    if name not in (registry.AUTO, registry.NATIVE):
        conditions(collective)
        if not registry.has(collective, name):
            everything = (registry.NATIVE, *registry.names(collective), registry.AUTO)
            raise UnknownNameError("algorithm", name, everything, collective)
        known = (*registry.ALGORITHMS[collective, name].options, ORDER)
    options: dict[str, Option] = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals or not value:
            raise InvalidValueError("algorithm", text, "NAME:OPTION=VALUE, such as lp:blocks=8")
        if option not in known:
            raise UnknownNameError("option", option, known or ("none",), f"{collective} ({name})")
        options[option] = _value(value)
    return name, options


def _value(text: str) -> Option:
    if text.isdecimal():
        return int(text)
    parts = text.split("x")
    if all(part.isdecimal() for part in parts):
        return tuple(int(part) for part in parts)
    return tuple(text.split("+"))


@dataclass(frozen=True)
class Sweep:
    """The collective, sizes and conditions of a benchmark.

    Attributes:
        collective: such as ``"all_reduce"``.
        sizes: total buffers in bytes; rounded down to whole elements, at least one.
        dtype: element type, by torch's name.
        root: the root of a rooted collective; 0 for the others.
        algorithms: registered names, ``"native"`` or ``"auto"``, each with options if it takes any
            (see :func:`parse_algorithm`); those that suit the hosts when empty, and ``"auto"``
            where the cluster is known.
        against: peers to interleave, of :data:`syncopate.artifacts.results.benchmark.PEERS`.
    """

    collective: str
    sizes: Sequence[int]
    dtype: str = "float32"
    root: int = 0
    algorithms: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rooted = conditions(self.collective).rooted
        if self.root < 0 or (self.root and not rooted):
            rule = "a rank" if rooted else f"left out: {self.collective} has no root"
            raise InvalidValueError("root", self.root, rule)
        dtype_bytes(self.dtype)
        if not self.sizes or min(self.sizes) < 1:
            raise InvalidValueError("sizes", self.sizes, "sizes of at least one byte")
        for text in self.algorithms:
            parse_algorithm(self.collective, text)
        for name in self.against:
            if name not in PEERS:
                raise UnknownNameError("peer", name, PEERS)

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes in elements, ascending, each once."""
        width = dtype_bytes(self.dtype)
        return tuple(sorted({max(size // width, 1) for size in self.sizes}))


@dataclass(frozen=True)
class Effort:
    """How to measure it.

    Attributes:
        iterations: timed calls per contender, size and place; >= 1.
        warmup: untimed calls before them; >= 0.
        mode: one of :data:`syncopate.artifacts.results.benchmark.MODES`.
        check: whether to verify results.
    """

    iterations: int = 20
    warmup: int = 5
    mode: str = BARRIER
    check: bool = True

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise InvalidValueError("iterations", self.iterations, "an integer >= 1")
        if self.warmup < 0:
            raise InvalidValueError("warmup", self.warmup, "an integer >= 0")
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)

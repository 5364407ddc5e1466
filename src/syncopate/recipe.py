"""Recipe: how one message travels: which collective, by which algorithm, told what, where.

It is declared here alone. Plans hold it, costs price it, the communicator runs it.

[Note: narrow gradients] Gradients can travel in fewer bits than they have, and are summed in the
type that they have. Weights come back as they are: what is lost of a gradient is noise in one step,
what is lost of a weight stays lost. bfloat16 has the range of float32, and is what to take unless
there is a reason; float16 has three more bits, and nothing beyond 65504. Gradients of 16 bits, and
complex ones, travel as they are.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping

from msgspec.structs import force_setattr, replace

from syncopate.artifacts.artifact import Record
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import dtype_bytes

NATIVE = "native"
"""The backend's own algorithm: a name that recipes may use, but no schedule."""

ORDER = "order"
"""The option of every schedule: the rank that plays each of 0, 1, .., p - 1."""

SERVERS = "servers"
"""The option of what travels to and from parameter servers: how many there are."""

AlgorithmOptions = dict[str, int | tuple[int | str, ...]]
"""What an algorithm is told besides the world size, by name; see ``schedules/options.py``."""

ROOTED = frozenset({"broadcast", "reduce"})
"""Collectives that have a root."""

_SHOWN = 40
"""Characters of an option in a label; the order of many ranks is shown by its checksum."""


WIRE_DTYPES = ("bfloat16", "float16")
"""What gradients can be narrowed to on the wire."""

NARROWED = ("float32", "float64")
"""The types of gradients that are narrowed."""


def wire_dtype_of(dtype: str, wire_dtype: str) -> str:
    """Return what gradients of ``dtype`` travel as; see [Note: narrow gradients].

    Args:
        dtype: of the gradients.
        wire_dtype: a plan's.
    """
    return wire_dtype if wire_dtype and dtype in NARROWED else dtype


def wire_share(wire_dtype: str, nbytes: Mapping[str, int]) -> float:
    """Return the part of all gradients' bytes that goes on the wire.

    Args:
        wire_dtype: one of ``WIRE_DTYPES``; empty for the gradients' own.
        nbytes: of the gradients of each dtype. Where there are several, the part is that of all of
            them together, and no bucket's.

    Raises:
        UnknownNameError: gradients cannot be narrowed to it.
    """
    require_wire_dtype(wire_dtype)
    total = sum(nbytes.values())
    sent = sum(
        held * dtype_bytes(wire_dtype_of(dtype, wire_dtype)) / dtype_bytes(dtype)
        for dtype, held in nbytes.items()
    )
    return sent / total if total else 1.0


def require_wire_dtype(wire_dtype: str) -> None:
    """Refuse what gradients cannot be narrowed to.

    Raises:
        UnknownNameError: it is not empty, and none of ``WIRE_DTYPES``.
    """
    if wire_dtype and wire_dtype not in WIRE_DTYPES:
        raise UnknownNameError("dtype on the wire", wire_dtype, WIRE_DTYPES)


class Recipe(Record, frozen=True, kw_only=False, omit_defaults=True):
    """How one message travels.

    Attributes:
        collective: such as ``"reduce_scatter"``.
        algorithm: a registered one, or ``"native"``; ``"auto"`` before it is decided.
        root: the root of a rooted collective; 0 for the others.
        options: what the algorithm is told, such as ``{"blocks": 8}``; empty for its defaults.
        channel: which channel carries it, from 0 on.
    """

    collective: str
    algorithm: str = NATIVE
    root: int = 0
    options: AlgorithmOptions = {}
    channel: int = 0

    def __post_init__(self) -> None:
        # A default is left out of JSON where it is the very object: a copy must read the same.
        if self.algorithm == NATIVE and self.algorithm is not NATIVE:
            force_setattr(self, "algorithm", NATIVE)

    @property
    def label(self) -> str:
        """The recipe for people, and for comparing the ranks: ``"reduce (lp, root 2)"``."""
        parts = [self.algorithm]
        if self.collective in ROOTED:
            parts.append(f"root {self.root}")
        for name, value in sorted(self.options.items()):
            text = str(value)
            if len(text) > _SHOWN:
                text = f"{text[:16]}... (checksum {zlib.crc32(text.encode()):08x})"
            parts.append(f"{name}={text}")
        return f"{self.collective} ({', '.join(parts)})"

    @property
    def key(self) -> Hashable:
        """The key by which recipes differ, without channels; lists equal tuples."""
        what = (self.collective, self.algorithm, self.root)
        if not self.options:
            return what
        return (
            *what,
            *sorted(
                (name, tuple(value) if isinstance(value, list) else value)
                for name, value in self.options.items()
            ),
        )

    def in_order(self, order: tuple[int, ...]) -> Recipe:
        """Return the recipe with the ranks in ``order``, unless it names one of its own.

        The backend's own algorithm follows no order, and none is the order of the ranks' numbers.
        """
        if not order or self.algorithm == NATIVE:
            return self
        return replace(self, options={ORDER: order} | self.options)

    def require_sound(self, what: str) -> None:
        """Refuse what no cluster could run.

        Args:
            what: what to call it in the error, such as ``"push of bucket 3"``.

        Raises:
            InvalidValueError: a negative root or channel, or options for the backend's own.
        """
        if self.root < 0 or (self.root and self.collective not in ROOTED):
            rule = f"0, or a rank where the collective has a root ({', '.join(sorted(ROOTED))})"
            raise InvalidValueError(f"root of the {what}", self.root, rule)
        if self.channel < 0:
            raise InvalidValueError(f"channel of the {what}", self.channel, "an integer >= 0")
        if self.options and self.algorithm == NATIVE:
            rule = f"none for {NATIVE!r}, which takes none"
            raise InvalidValueError(f"options of the {what}", self.options, rule)

"""Ranks: what a launcher tells each of its processes, checked before any rank waits for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from syncopate.errors import CollectiveError, InvalidValueError

MOST_LOCAL = 256
"""Ranks that are started on one machine: each is a process of some hundred megabytes."""

BACKEND = "syncopate"
"""What torch.distributed calls the backend of this package."""

_MOST_PORT = 65535


def require_sound(environment: Mapping[str, str], *, meet: bool) -> None:
    """Refuse what torchrun's variables say that no job can be.

    Args:
        environment: of a rank, with torchrun's variables.
        meet: whether they also have to say where the ranks meet.

    Raises:
        CollectiveError: names the variable, its value and what it must be.
    """
    size = _whole_number(environment, "WORLD_SIZE", "an integer >= 1", range(1, 1 << 31))
    rule = f"an integer from 0 to {size - 1}, as WORLD_SIZE is {size}"
    _whole_number(environment, "RANK", rule, range(size))
    if not meet:
        return
    if not environment.get("MASTER_ADDR"):
        _refuse("MASTER_ADDR", None, "the address of the host of rank 0")
    rule = f"an integer from 1 to {_MOST_PORT}"
    _whole_number(environment, "MASTER_PORT", rule, range(1, _MOST_PORT + 1))


def _whole_number(environment: Mapping[str, str], name: str, rule: str, known: range) -> int:
    text = environment.get(name)
    if text is None or not (text.isascii() and text.isdecimal()) or int(text) not in known:
        _refuse(name, text, rule)
    return int(text)


def _refuse(name: str, value: str | None, rule: str) -> NoReturn:
    told = str(InvalidValueError(name, value, rule))
    raise CollectiveError("rendezvous", f"{told}; torchrun and mpirun set it on every rank")

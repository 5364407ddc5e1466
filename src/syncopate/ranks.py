"""Ranks: what a launcher tells each of its processes, checked before any rank waits for others."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from threading import Thread
from typing import NoReturn

from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.errors import CollectiveError, InvalidValueError

MOST_LOCAL = 256
"""Ranks that are started on one machine: each is a process of some hundred megabytes."""

BACKEND = "syncopate"
"""What torch.distributed calls the backend of this package."""

_MOST_PORT = 65535

_ADDRESS_RULE = "the address of the host of rank 0"
_RESOLVE_S = 10.0
"""How long an address is asked for: names of pods appear some seconds after these start."""

_AGAIN_S = 0.5


def require_sound(environment: Mapping[str, str], *, meet: bool) -> None:
    """Refuse what torchrun's variables say that no job can be.

    Args:
        environment: of a rank, with torchrun's variables.
        meet: whether they also have to say where the ranks meet.

    Raises:
        CollectiveError: names the variable, its value and what it must be.
    """
    rule = f"an integer from 1 to {MAX_RANKS}"
    size = _whole_number(environment, "WORLD_SIZE", rule, range(1, MAX_RANKS + 1))
    rule = f"an integer from 0 to {size - 1}, as WORLD_SIZE is {size}"
    _whole_number(environment, "RANK", rule, range(size))
    if not meet:
        return
    address = environment.get("MASTER_ADDR")
    if not address:
        _refuse("MASTER_ADDR", None, _ADDRESS_RULE)
    rule = f"an integer from 1 to {_MOST_PORT}"
    _whole_number(environment, "MASTER_PORT", rule, range(1, _MOST_PORT + 1))
    if not _has_address(address):
        _refuse("MASTER_ADDR", address, f"{_ADDRESS_RULE}, and this name has none")


def _has_address(name: str) -> bool:
    """Say whether a host's name has an address, after some seconds at most.

    A resolver may be silent for longer than that, so a thread asks it.
    """
    found: list[bool] = []

    def ask() -> None:
        until_s = time.monotonic() + _RESOLVE_S
        while not found:
            try:
                found.append(bool(socket.getaddrinfo(name, None)))
            except (OSError, UnicodeError):
                if time.monotonic() > until_s:
                    return
                time.sleep(_AGAIN_S)

    asking = Thread(target=ask, name="syncopate-resolve", daemon=True)
    asking.start()
    asking.join(_RESOLVE_S)
    return bool(found)


def _whole_number(environment: Mapping[str, str], name: str, rule: str, known: range) -> int:
    text = environment.get(name)
    if text is None or not (text.isascii() and text.isdecimal()) or int(text) not in known:
        _refuse(name, text, rule)
    return int(text)


def _refuse(name: str, value: str | None, rule: str) -> NoReturn:
    told = str(InvalidValueError(name, value, rule))
    raise CollectiveError("rendezvous", f"{told}; torchrun and mpirun set it on every rank")

"""Rescue: ends waits for Gloo that closing its connections does not end.

[Note: what Gloo forgets] When a connection of Gloo closes, whoever waits for a message on it fails,
but for the message that is being read or written at that moment: Gloo has taken it off its lists
already, and the wait lasts until its own time limit. So it goes with every large message that a
dead or silent rank leaves half sent. Two remedies:

* A message of this package's own is aborted: torch has that in C++, though not in Python.
* A collective of Gloo's own cannot be aborted. It is waited for in turns of a second, and given up
  once its group was broken. The thread of Gloo that it blocks stays blocked, so the group must not
  be destroyed, which would wait for that thread: not even when the process ends.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import transport

INTERRUPTED = "interrupted here"
"""What :func:`~syncopate.collectives.transport.failure_kind` knows such an end by."""

_TURN = datetime.timedelta(seconds=1)
_PATIENCE_S = 2.0
_KINDS = ("RecvWork", "SendWork")


class Breaking:
    """Which groups were broken, and when; used from all threads."""

    def __init__(self) -> None:
        self._broken_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, group: dist.ProcessGroup) -> None:
        """Note that ``group`` is broken now, unless it was before."""
        with self._lock:
            self._broken_s.setdefault(group.group_name, time.monotonic())

    def over(self, group: dist.ProcessGroup) -> bool:
        """Say whether ``group`` was broken so long ago that nothing on it can still end well."""
        broken_s = self._broken_s.get(group.group_name)
        return broken_s is not None and time.monotonic() - broken_s > _PATIENCE_S


BREAKING = Breaking()
"""The groups of this process; names of groups are never given twice."""


def finish(
    function: Callable[..., Any], *arguments: Any, group: dist.ProcessGroup, **further: Any
) -> None:
    """Run a collective of ``torch.distributed``; on Gloo in a way that can be given up.

    Raises:
        RuntimeError: it failed, or its group was broken from another thread.
    """
    if not all(
        argument.device.type == "cpu" for argument in arguments if torch.is_tensor(argument)
    ):
        function(*arguments, group=group, **further)
        return
    work = function(*arguments, group=group, async_op=True, **further)
    while work is not None:
        try:
            work.wait(_TURN)
            return
        except RuntimeError:
            if work.is_completed():
                work.wait()  # raises what it ended with, if anything
                return
            if BREAKING.over(group):
                _never_destroy(group)
                raise RuntimeError(f"{INTERRUPTED}: {function.__name__}") from None


def abort(works: Iterable[Any]) -> None:
    """End the waits for Gloo's own messages among ``works``, now or when they begin.

    A wait that was aborted returns as if the message were there: whoever calls this must see to it
    that nobody takes it for that.
    """
    aborts = _aborts()
    for work in list(works):
        if not aborts or type(work) is not dist.Work:
            continue
        # pybind11 keeps the address of the C++ object right behind the head of the Python one.
        # Only where that object's table of methods is that of a message is it one.
        address = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value
        table = ctypes.c_void_p.from_address(address).value if address else None
        if table in aborts:
            aborts[table](address)


@functools.cache
def _aborts() -> dict[int | None, Callable[[int | None], None]]:
    """Return C++'s ``abort`` by table of methods; empty where torch is built another way."""
    ending = "dylib" if sys.platform == "darwin" else "so"
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{ending}"))
    except OSError:
        return {}
    found: dict[int | None, Callable[[int | None], None]] = {}
    for kind in _KINDS:
        name = f"N4c10d16ProcessGroupGloo8{kind}"
        try:
            table = ctypes.c_void_p.in_dll(library, f"_ZTV{name}E")
            method = getattr(library, f"_Z{name}5abortEv")
        except (ValueError, AttributeError):
            continue
        method.argtypes, method.restype = [ctypes.c_void_p], None
        # Before the methods stand the offset to the whole object and its type.
        found[ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)] = method
    return found


def _never_destroy(group: dist.ProcessGroup) -> None:
    """Keep a reference that not even the end of the interpreter takes back."""
    for held in (group, transport.gloo_backend(group)):
        if held is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

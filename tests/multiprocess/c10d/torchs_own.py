"""Runs torch's own tests of CPU collectives on ranks that stay, one after the other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch.distributed as dist

MODULE = "torch.testing._internal.distributed.distributed_test"


def suite(rank: int, world_size: int, folder: str) -> Any:
    """Return the class of torch's tests, for a rank in a process of its own.

    The module asks the environment for the backend when it is imported, and leaves out what that
    one cannot do. It is told Gloo, whose tests are those of CPU collectives.
    """
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world_size), RANK=str(rank), TEMP_DIR=folder)
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        sys.modules["expecttest"] = _expecttest()
    argv, sys.argv = sys.argv, sys.argv[:1]
    try:
        module = importlib.import_module(MODULE)
    finally:
        sys.argv = argv

    class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        pass

    return Case


def _expecttest() -> types.ModuleType:
    """Return what torch's tests need of a package that they import: a class to be a test of."""
    module: Any = types.ModuleType("expecttest")
    module.TestCase = unittest.TestCase
    module.ACCEPT = False
    return module  # type: ignore[no-any-return]


IN_PARTS = (
    "test_all_gather_coalesced_group",
    "test_all_gather_group",
    "test_broadcast_group",
    "test_gather_group",
    "test_scatter_group",
    *(
        f"test_{what}_group_{how}"
        for what in ("all_reduce", "all_reduce_coalesced", "reduce")
        for how in ("sum", "product", "min", "max")
    ),
)
"""Tests of collectives of ranks 1 and 2."""


class Where(NamedTuple):
    """Where the ranks of torch's tests meet.

    Attributes:
        folder: an empty one, for their files.
        port: of a store on this machine.
        backend: of their process groups.
    """

    folder: str
    port: int
    backend: str


def run(rank: int, world_size: int, where: Where, wanted: list[str]) -> list[tuple[str, str]]:
    """Run tests on this rank; return the name of each, and how it ended.

    An end is ``"passed"``, ``"skipped: ..."`` or ``"failed: ..."``. After a failure the ranks may
    be anywhere, so no further one is run.
    """
    case_type = suite(rank, world_size, where.folder)
    for name in ("barrier", "test_dir"):
        (Path(where.folder) / name).mkdir(exist_ok=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    ends = []
    for name in wanted:
        _begin(name, rank, world_size, where)
        case = case_type(name)
        case.rank, case.file_name = rank, f"{where.folder}/{name}"
        ends.append((name, _end(case, name)))
        if ends[-1][1].startswith("failed"):
            break
    return ends


def _begin(name: str, rank: int, world_size: int, where: Where) -> None:
    limit = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", where.port, None, is_master=False, timeout=limit)
    dist.init_process_group(
        where.backend,
        store=dist.PrefixStore(name, store),
        rank=rank,
        world_size=world_size,
        timeout=limit,
    )


def _end(case: Any, name: str) -> str:
    try:
        # torch asks for eight ranks where tests make groups of two of them.
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "8"} if name in IN_PARTS else {}):
            getattr(case, name)()
        end = "passed"
    except unittest.SkipTest as error:
        end = f"skipped: {error}"
    except SystemExit as error:
        end = f"skipped: exit code {error.code}"
    except BaseException:
        return f"failed: {traceback.format_exc()}"
    try:
        case._barrier(timeout=60)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        return f"failed: after it: {traceback.format_exc()}"
    return end

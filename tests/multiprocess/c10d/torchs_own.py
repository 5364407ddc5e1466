"""Runs torch's own tests of CPU collectives on ranks that stay, one after the other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

_MODULE = "torch.testing._internal.distributed.distributed_test"


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
        module = importlib.import_module(_MODULE)
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


def names() -> list[str]:
    """Return the names of all tests, in the order of the alphabet."""
    case = suite(0, 4, tempfile.gettempdir())
    return unittest.TestLoader().getTestCaseNames(case)  # type: ignore[return-value]


def run(
    rank: int, world_size: int, folder: str, port: int, wanted: list[str], backend: str
) -> list[tuple[str, str]]:
    """Run tests on this rank; return the name of each, and how it ended.

    An end is ``"passed"``, ``"skipped: ..."`` or ``"failed: ..."``. After a failure the ranks may
    be anywhere, so no further one is run.
    """
    case_type = suite(rank, world_size, folder)
    (Path(folder) / "barrier").mkdir(exist_ok=True)
    (Path(folder) / "test_dir").mkdir(exist_ok=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    ends = []
    for name in wanted:
        ends.append((name, _end(case_type, name, rank, world_size, folder, port, backend)))
        if ends[-1][1].startswith("failed"):
            break
    return ends


def _end(
    case_type: Any, name: str, rank: int, world_size: int, folder: str, port: int, backend: str
) -> str:
    store = dist.TCPStore("127.0.0.1", port, None, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(name, store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    case = case_type(name)
    case.rank = rank
    case.file_name = f"{folder}/{name}"
    try:
        getattr(case, name)()
        end = "passed"
    except unittest.SkipTest as error:
        end = f"skipped: {error}"
    except SystemExit as error:
        end = f"skipped: exit code {error.code}"
    except BaseException:
        return f"failed: {traceback.format_exc()}"
    try:
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        return f"failed: after it: {traceback.format_exc()}"
    return end

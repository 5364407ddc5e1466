"""torch's own tests of CPU collectives, DDP and messages, on ranks of this backend.

``torch.testing._internal.distributed.distributed_test`` has them. They are told that the backend is
Gloo, whose tests are those of CPUs; their process groups are this backend's.

torch's wheel brings no tests of ZeRO-1, FSDP and FSDP2. Of the last two it brings the programs that
its tests run.
"""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from pathlib import Path

import torch.distributed as dist

from tests.multiprocess.c10d import torchs_own, torchs_programs
from tests.multiprocess.harness import run_ranks

BACKEND = "syncopate"
RANKS = 4

ON_GPUS = ("skip_if_no_gpu", "skip_if_lt_x_gpu")
"""Decorators of torch's tests that need GPUs."""

LEFT_OUT = {
    "_profiler": "asks the profiler for events that Gloo names",
    "test_monitored_barrier": "torch.distributed refuses it for every backend but Gloo",
    "test_barrier_timeout": "asks for the words of Gloo's error; ours says who did not arrive",
    "test_get_backend": "asks for the name gloo",
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_batch_isend_irecv_mixed_backend_err": "needs NCCL",
    "test_batch_isend_irecv_op_err": "needs a GPU",
    "_cuda": "needs a GPU",
}
"""Part of a name -> why tests with it are left out."""

PASSED = 107
"""How many tests pass at least; torch's own decorators leave out the others."""

PROGRAMS = 14
"""How many of torch's programs of FSDP, FSDP2 and DTensor are run."""


def source() -> str:
    """Return the text of torch's tests."""
    spec = importlib.util.find_spec(torchs_own.MODULE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def names() -> list[str]:
    """Return the tests that are run: those for CPUs, without what is left out."""
    classes = [node for node in ast.walk(ast.parse(source())) if isinstance(node, ast.ClassDef)]
    (base,) = (node for node in classes if node.name == "_DistTestBase")
    found = []
    for node in base.body:
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            continue
        marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
        if not marks.intersection(ON_GPUS) and not any(part in node.name for part in LEFT_OUT):
            found.append(node.name)
    return sorted(found)


def test_each_reason_leaves_something_out() -> None:
    text = source()
    assert [part for part in LEFT_OUT if part not in text] == []


def test_torchs_own_tests_pass(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    where = torchs_own.Where(str(tmp_path), store.port, BACKEND)
    results = run_ranks(torchs_own.run, RANKS, where, names())
    ends: Counter[str] = Counter()
    for told in zip(*results, strict=True):
        name = told[0][0]
        failed = [f"rank {rank}: {end}" for rank, (_, end) in enumerate(told) if "failed" in end]
        assert not failed, f"{name}\n" + "\n".join(failed)
        ends[told[0][1].partition(":")[0]] += 1
    assert ends["passed"] >= PASSED, ends


def test_torchs_own_programs_train_as_their_twins(tmp_path: Path) -> None:
    found = run_ranks(torchs_programs.run, RANKS, str(tmp_path), backend="cpu:syncopate")
    assert found == [PROGRAMS] * RANKS

"""torch's inside: each name that the backend takes of it does what the backend takes it for."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist

from syncopate.c10d import torch_compat as compat
from syncopate.c10d.group import Group


@pytest.mark.parametrize("name", dist.ReduceOp.RedOpType.__members__)
def test_reductions_are_taken_apart(name):
    if name == "PREMUL_SUM":
        assert compat.reduction_of(dist.ReduceOp.PREMUL_SUM(0.5)) == ("PREMUL_SUM", 0.5)
        return
    kind = getattr(dist.ReduceOp, name)
    assert compat.reduction_of(kind) == (name, None)
    assert compat.reduction_of(dist.ReduceOp(kind)) == (name, None)


def test_a_future_follows_another():
    source = torch.futures.Future()
    found = compat.follow(source)
    assert not found.done()
    source.set_result([1])
    assert found.wait() == [1]


def test_an_error_is_one_in_cplusplus_too():
    """What C++ waits for raises there, and so does what follows it without a callback of ours."""
    source = torch.futures.Future()
    found = compat.follow(source)
    source.set_exception(ValueError("rank 2 was lost"))
    with pytest.raises(RuntimeError, match="rank 2 was lost"):
        torch.futures.collect_all([found]).wait()[0].wait()
    with pytest.raises(RuntimeError, match="rank 2 was lost"):
        torch.futures.wait_all([found])


def test_compiled_code_calls_a_method_as_it_is():

    @compat.uncompiled
    class Adding:
        def __init__(self):
            self.traced = []

        def add(self, tensor):
            self.traced.append(torch.compiler.is_compiling())
            return tensor + 3

    adding = Adding()
    compiled = torch.compile(lambda x: adding.add(x * 2) + 1, backend="eager")
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [6.0, 6.0]
    assert adding.traced == [False, False]
    assert inspect.signature(Adding.add).parameters.keys() == {"self", "tensor"}


def test_groups_have_the_methods_that_torch_calls():
    """Each is one of torch's too, and takes its arguments under the same names and in order."""
    called_from_c = (
        "allgather",
        "all_gather_single_coalesced",
        "allreduce",
        "allreduce_coalesced",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "reduce_scatter",
        "reduce_scatter_single_coalesced",
        "send",
        "recv",
    )
    for name in called_from_c:
        assert callable(getattr(Group, name)), name
        assert getattr(dist.ProcessGroup, name, None) is not None, name
    by_python = (
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "all_gather_single",
        "reduce_scatter_single",
        "allgather_coalesced",
        "recv_anysource",
        "monitored_barrier",
        "shutdown",
        "abort",
        "_allgather_base",
        "_reduce_scatter_base",
        "_set_sequence_number_for_group",
        "_get_sequence_number_for_group",
        "_start_coalescing",
        "_end_coalescing",
    )
    for name in by_python:
        assert callable(getattr(Group, name)), name
        assert name in ("alltoall",) or hasattr(dist.ProcessGroup, name), name
    source = inspect.getsource(dist.barrier)
    assert "group.barrier(opts=opts)" in source

"""Several cases in one start of ranks: all that failed are reported, each rank's own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import Cases, RankFailedError, run_ranks


def _of_all_kinds(rank: int, world_size: int, broken: bool) -> None:
    with Cases() as case:
        with case("fine"):
            dist.all_reduce(torch.zeros(1))
        with case("on all ranks"):
            assert rank > 5, "too low"
        with case("on one rank"):
            assert rank == 0, "not the first"
        with case("nothing raised"), pytest.raises(ValueError, match="never"):
            pass
        with case("an error on one rank"):
            if broken and rank == 1:
                raise RuntimeError("out of order")
        with case("the last"):
            dist.all_reduce(torch.zeros(1))
            assert rank > 5, "too low again"


@pytest.mark.parametrize("broken", [False, True])
def test_every_failure_is_told_until_ranks_may_be_out_of_step(broken: bool) -> None:
    with pytest.raises(RankFailedError) as raised:
        run_ranks(_of_all_kinds, 2, broken)
    first, second = str(raised.value).split("\nrank 1: ")
    for told in (first, second):
        assert "in case on all ranks" in told
        assert "DID NOT RAISE" in told
        assert ("too low again" in told) != broken
        assert "in case fine" not in told
        assert ("the cases that follow were left out" in told) == broken
        assert "4 failed" in told
    assert "in case on one rank: failed on ranks [1]" in first
    assert "not the first" in second
    assert "not the first" not in first
    assert ("out of order" in second) == broken


def _waits_for_one_that_failed(rank: int, world_size: int) -> None:
    with Cases(patience_s=1.0) as case, case("alone"):
        assert rank == 0, "leaves the others"
        dist.barrier()


def test_who_fails_alone_is_heard() -> None:
    with pytest.raises(RankFailedError, match="leaves the others") as raised:
        run_ranks(_waits_for_one_that_failed, 2)
    assert "still running" not in str(raised.value)

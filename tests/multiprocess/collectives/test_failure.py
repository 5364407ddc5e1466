"""Ranks that die, never come or raise: every survivor names them, soon, and never hangs."""

from __future__ import annotations

import datetime
import os
import re
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from syncopate.collectives import Communicator
from syncopate.collectives.health.notices import GRACE_S
from syncopate.errors import CollectiveError
from syncopate.paramserver.launch import free_port
from syncopate.recipe import Recipe
from syncopate.schedules.registry import NATIVE, algorithms
from tests.multiprocess.harness import run_ranks

CULPRIT = 2
ALL_REDUCES = (NATIVE, *algorithms("all_reduce"))
LOST = re.compile(r"rank 2 (\(\S+\) )?was lost")
LIMIT_S = 300.0
"""The time limit where nobody may wait for it."""

SOON_S = 20.0
"""Bound on any failure here; in fact a few seconds, on a machine that others load too."""

PASSES_S = 6.0
"""A time limit that passes: long enough for ranks that a busy machine lets wait."""


def failure(communicator: Communicator, collective: str, algorithm: str) -> dict[str, Any]:
    """Run collectives until one fails; return what the error says and when it came."""
    tensor = torch.ones(300_000)
    began_s = time.monotonic()
    try:
        while True:
            getattr(communicator, collective)(tensor.zero_(), algorithm=algorithm)
    except CollectiveError as error:
        took_s = time.monotonic() - began_s
        first = error
    # It says so without trying: a collective that was tried would have failed by itself.
    with pytest.raises(CollectiveError, match="broken since") as again:
        communicator.all_reduce(tensor)
    assert again.value.ranks == first.ranks
    began_again_s = time.monotonic()
    communicator.close()
    communicator.close()
    assert time.monotonic() - began_again_s < SOON_S
    return {"ranks": first.ranks, "text": str(first), "took_s": took_s}


def killed(rank: int, world_size: int, collective: str, algorithm: str) -> dict[str, Any]:
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == CULPRIT:
        # From another thread and while collectives follow each other, so amid one.
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return failure(communicator, collective, algorithm)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_a_rank_killed_amid_an_all_reduce(algorithm: str) -> None:
    results = run_ranks(killed, 4, "all_reduce", algorithm, may_die=[CULPRIT])
    survivors = [result for rank, result in enumerate(results) if rank != CULPRIT]
    for result in survivors:
        assert result["ranks"] == (CULPRIT,), results
        assert f"all_reduce ({algorithm}) #" in result["text"]
        assert LOST.search(result["text"])
        assert result["took_s"] < SOON_S


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("reduce_scatter", NATIVE),
        ("reduce_scatter", "recursive"),
        ("all_gather", NATIVE),
        ("all_gather", "ring"),
    ],
)
def test_a_rank_killed_amid_half_a_collective(collective: str, algorithm: str) -> None:
    results = run_ranks(killed, 4, collective, algorithm, may_die=[CULPRIT])
    assert [result and result["ranks"] for result in results] == [(2,), (2,), None, (2,)], results


def absent(rank: int, world_size: int, algorithm: str) -> dict[str, Any] | None:
    communicator = Communicator(timeout_s=PASSES_S)
    communicator.barrier()
    result = None
    if rank != CULPRIT:
        # Not all come at the same time: their limits pass one after the other.
        time.sleep(0.3 * rank)
        result = failure(communicator, "all_reduce", algorithm)
    dist.barrier()  # the culprit is alive and busy here, in another group, until all have failed
    return result


@pytest.mark.parametrize("algorithm", [NATIVE, "ring", "halving_doubling"])
def test_a_rank_that_never_calls(algorithm: str) -> None:
    results = run_ranks(absent, 4, algorithm)
    survivors = [result for rank, result in enumerate(results) if rank != CULPRIT]
    for result in survivors:
        assert result is not None
        assert result["ranks"] == (CULPRIT,), results
        assert "rank 2 did not arrive within" in result["text"]
        assert result["took_s"] < SOON_S


def raises(rank: int, world_size: int, closes: bool) -> Any:
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == CULPRIT:
        try:
            raise ZeroDivisionError("a bug in the training script of rank 2")
        except ZeroDivisionError as error:
            if closes:
                communicator.close()
                dist.barrier()
            return repr(error)
    result = failure(communicator, "all_reduce", "recursive_doubling")
    if closes:
        dist.barrier()
    return result


@pytest.mark.parametrize("closes", [False, True])
def test_a_rank_that_raises(closes: bool) -> None:
    # Without close() its process ends, which closes the connections; with it, it says goodbye.
    results = run_ranks(raises, 4, closes)
    for rank in (0, 1, 3):
        assert results[rank]["ranks"] == (CULPRIT,), results
        text = results[rank]["text"]
        assert "rank 2 had closed the communicator" in text if closes else LOST.search(text), text
        assert results[rank]["took_s"] < SOON_S


def raises_amid(rank: int, world_size: int) -> Any:
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == CULPRIT:
        recipe = Recipe("all_reduce", "recursive_doubling")
        with pytest.raises(ZeroDivisionError):
            communicator.run(recipe, torch.ones(300_000), before=lambda: 1 // 0)
        result = None
    else:
        result = failure(communicator, "all_reduce", "recursive_doubling")
    dist.barrier()  # the culprit lives until all have failed
    return result


def test_a_rank_that_raises_amid_a_collective_and_goes_on() -> None:
    results = run_ranks(raises_amid, 4)
    for rank in (0, 1, 3):
        assert results[rank]["ranks"] == (CULPRIT,), results
        assert "rank 2 failed by itself: ZeroDivisionError" in results[rank]["text"]
        assert results[rank]["took_s"] < SOON_S


def late(rank: int, world_size: int) -> dict[str, Any]:
    communicator = Communicator(timeout_s=PASSES_S)
    communicator.barrier()
    if rank == CULPRIT:
        # It comes while the others are still finding out, which they do for GRACE_S.
        time.sleep(PASSES_S + GRACE_S / 2)
    return failure(communicator, "all_reduce", "ring")


def test_a_rank_that_comes_too_late() -> None:
    for result in run_ranks(late, 4):
        assert result["ranks"] == (CULPRIT,), result
        assert "rank 2 did not arrive" in result["text"]


def interrupted(rank: int, world_size: int, algorithm: str) -> dict[str, Any] | None:
    """Return what the others say where a rank is interrupted amid a collective, and lives on."""
    communicator = Communicator(timeout_s=LIMIT_S)
    store = dist.distributed_c10d._get_default_store()
    communicator.barrier()
    said = None
    if rank == CULPRIT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            communicator.all_reduce(torch.ones(300_000), algorithm=algorithm)
        store.set("interrupted", "")
        with pytest.raises(CollectiveError, match="rank 2 was interrupted"):
            communicator.barrier()
    else:
        store.wait(["interrupted"])  # until then it waits for these
        said = failure(communicator, "all_reduce", algorithm)
    dist.barrier()
    return said


@pytest.mark.parametrize("algorithm", ["ring", NATIVE])
def test_a_rank_that_is_interrupted_and_lives_on_is_named(algorithm: str) -> None:
    first, second, _ = run_ranks(interrupted, 3, algorithm)
    for said in (first, second):
        assert said["ranks"] == (CULPRIT,)
        assert "rank 2 failed by itself: KeyboardInterrupt" in said["text"]
        assert said["took_s"] < SOON_S


def objects(rank: int, world_size: int, what: str) -> Any:
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {
        "broadcast": lambda: communicator.broadcast(torch.ones(5), src=CULPRIT),
        "broadcast_object": lambda: communicator.broadcast_object("x", src=CULPRIT),
        "all_gather_object": lambda: communicator.all_gather_object("x"),
        "barrier": communicator.barrier,
        "widen": lambda: communicator.widen(2),
    }
    with pytest.raises(CollectiveError) as caught:
        calls[what]()
    return caught.value.ranks


@pytest.mark.parametrize(
    "what", ["broadcast", "broadcast_object", "all_gather_object", "barrier", "widen"]
)
def test_everything_else_fails_the_same_way(what: str) -> None:
    assert run_ranks(objects, 3, what, may_die=[CULPRIT])[:2] == [(CULPRIT,)] * 2


def background(rank: int, world_size: int, at_first: int) -> Any:
    communicator = Communicator(timeout_s=LIMIT_S, channels=at_first)
    communicator.widen(2)
    communicator.barrier()
    if rank == CULPRIT:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    handles = [
        communicator.all_reduce(torch.ones(1000), algorithm=name, channel=channel, async_op=True)
        for channel, name in ((0, "ring"), (0, NATIVE), (1, NATIVE), (1, "binary_tree"))
    ]
    blamed = []
    for handle in handles:
        with pytest.raises(CollectiveError) as caught:
            handle.wait()
        assert handle.done()
        blamed.append(caught.value.ranks)
    communicator.close()
    return blamed


@pytest.mark.parametrize("at_first", [2, 1])
def test_background_collectives_on_all_channels_fail(at_first: int) -> None:
    results = run_ranks(background, 4, at_first, may_die=[CULPRIT])
    for rank in (0, 1, 3):
        assert results[rank] == [(CULPRIT,)] * 4, results


def without_store(rank: int, world_size: int, port: int) -> Any:
    dist.destroy_process_group()
    limit = datetime.timedelta(seconds=LIMIT_S)
    store = dist.TCPStore("127.0.0.1", port, None, is_master=rank == 0, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return failure(communicator, "all_reduce", "ring")


def test_the_rank_with_the_store_dies() -> None:
    for result in run_ranks(without_store, 4, free_port(), may_die=[0])[1:]:
        assert result["ranks"] == (0,), result
        assert result["took_s"] < SOON_S


def disagreeing(rank: int, world_size: int, how: str) -> str:
    communicator = Communicator(timeout_s=LIMIT_S, check=True)
    communicator.all_reduce(torch.ones(8), algorithm="ring")
    numel, algorithm = 8, "ring"
    if rank == 1:
        numel = 9 if how == "size" else 8
        algorithm = "binary_tree" if how == "algorithm" else "ring"
    if how == "order" and rank == 1:
        call = communicator.barrier
    elif how == "bounds":
        bounds = (0, 3, 3, 8) if rank == 1 else (0, 3, 4, 8)
        call = partial(communicator.all_gather, torch.ones(8), bounds=bounds)
    else:
        call = partial(communicator.all_reduce, torch.ones(numel), algorithm=algorithm)
    with pytest.raises(CollectiveError, match="disagree") as caught:
        call()
    with pytest.raises(CollectiveError, match="broken"):
        communicator.barrier()
    return str(caught.value)


@pytest.mark.parametrize("how", ["size", "algorithm", "order", "bounds"])
def test_the_check_finds_ranks_that_disagree(how: str) -> None:
    for text in run_ranks(disagreeing, 3, how):
        assert "rank 0: all_" in text
        assert "rank 1: " in text
        if how == "bounds":
            assert "rank 1: all_gather (native) with bounds (0, 3, 3, 8)" in text


def other_shards(rank: int, world_size: int) -> str:
    communicator = Communicator(timeout_s=LIMIT_S)
    # Numbers so long that only a checksum of them is shown.
    bounds = (0, 10_000_000, 10_000_001, 10_000_002 + rank // 3, 10_000_004)
    tensor = torch.zeros(bounds[-1], dtype=torch.int8)
    with pytest.raises(CollectiveError) as caught:
        communicator.reduce_scatter(tensor, bounds=bounds, algorithm="ring")
    return str(caught.value)


def test_ranks_with_other_shards_are_told_without_a_check() -> None:
    for text in run_ranks(other_shards, 4):
        found = re.search(
            r"ranks 0, 1, 2 in reduce_scatter \(ring\) with bounds of checksum (\w{8}) .*; "
            r"rank 3 in reduce_scatter \(ring\) with bounds of checksum (\w{8}) ",
            text,
        )
        assert found, text
        assert found[1] != found[2]


def mismatched(rank: int, world_size: int, algorithm: str, numel: int) -> dict[str, Any]:
    communicator = Communicator(timeout_s=LIMIT_S)
    communicator.barrier()
    tensor = torch.ones(numel + (rank == 1))
    began_s = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        communicator.all_reduce(tensor, algorithm=algorithm)
    return {"text": str(caught.value), "took_s": time.monotonic() - began_s}


@pytest.mark.parametrize(("algorithm", "numel"), [("ring", 8), ("binary_tree", 400_000)])
def test_schedules_of_different_sizes_do_not_meet(algorithm: str, numel: int) -> None:
    for result in run_ranks(mismatched, 3, algorithm, numel):
        assert "the ranks were in different collectives: ranks 0, 2 in" in result["text"]
        assert f"rank 1 in all_reduce ({algorithm}) #1 of channel 0, {numel + 1}" in result["text"]
        assert result["took_s"] < SOON_S  # long before the time limit


def incomplete(rank: int, world_size: int) -> str:
    if rank == CULPRIT:
        dist.barrier()
        return ""
    with pytest.raises(CollectiveError, match="creating the communicator") as caught:
        Communicator(timeout_s=1.5)
    dist.barrier()
    return str(caught.value)


def test_a_rank_that_never_creates_its_communicator() -> None:
    assert "not every rank arrived within 1.5 s" in run_ranks(incomplete, 3)[0]

"""``algorithm="auto"`` on real ranks: one choice everywhere, right results, and the refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, Level, LinearFit
from syncopate.collectives import Communicator
from syncopate.costs.decide.decisions import choose
from syncopate.errors import CollectiveError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.schedules.registry import AUTO, NATIVE, collectives
from tests.multiprocess.collectives.test_rooted import NUMEL, inputs, right, run
from tests.multiprocess.harness import run_ranks

NUMELS = (1, 10_000, 300_000)
DTYPES = (torch.float32, torch.bfloat16, torch.int16)
LEVELS = (
    Level(name="device", size=2, latency_s=1e-6, bandwidth_bytes_per_s=1e10),
    Level(name="host", size=2, latency_s=5e-5, bandwidth_bytes_per_s=1e6),
)
PRICED = Cluster(name="priced", levels=LEVELS, placement=(0, 2, 1, 3))


def curve(collective: str, algorithm: str, seconds: float, **rest: Any) -> CollectiveCurve:
    points = tuple(CurvePoint(nbytes=n, samples_s=(seconds,), **rest) for n in (4, 1 << 20))
    fit = LinearFit(a_s=seconds, b_s_per_byte=0.0)
    return CollectiveCurve(collective=collective, algorithm=algorithm, points=points, fit=fit)


MEASURED = Cluster(
    name="measured",
    levels=LEVELS,
    curves=(
        curve("all_reduce", NATIVE, 1.0),
        curve("all_reduce", "ring", 2.0),
        curve("broadcast", NATIVE, 2.0),
        curve("broadcast", "lp", 1.0, options={"blocks": 3}),
    ),
)


@contextmanager
def heard(communicator: Communicator) -> Iterator[list[str]]:
    """Collect the labels of the collectives that run."""
    labels: list[str] = []
    submit = communicator._submit

    def listening(label: str, *rest: Any) -> Any:
        labels.append(label)
        return submit(label, *rest)

    communicator._submit = listening  # type: ignore[method-assign]
    try:
        yield labels
    finally:
        del communicator._submit  # type: ignore[method-assign]


def chosen(cluster: Cluster, collective: str, nbytes: int, root: int) -> str:
    return structs.replace(choose(cluster, collective, nbytes), root=root).label


def everywhere(communicator: Communicator, cluster: Cluster) -> list[str]:
    """Run every collective, size, dtype and channel; return what was wrong."""
    wrong = []
    communicator.use_cluster(cluster)
    if communicator.detector is not None and communicator.detector.expected is not cluster:
        wrong.append("links are not judged by the cluster")
    rank, size = communicator.rank, communicator.world_size
    for collective in collectives():
        root = 1 % size if collective in ("broadcast", "reduce") else 0
        for channel, dtype in enumerate((*DTYPES, *DTYPES)):
            tensor = inputs(rank, dtype)
            with heard(communicator) as labels:
                run(
                    communicator, collective, tensor, root, algorithm=AUTO,
                    channel=channel % 2, async_op=True,
                )  # fmt: skip
            if not right(collective, tensor, rank, size, root):
                wrong.append(f"{collective} {dtype} on {cluster.name}")
            expected = [chosen(cluster, collective, NUMEL * dtype.itemsize, root)]
            if labels != (expected if size > 1 else []):
                wrong.append(f"{labels} instead of {expected}")
        run(communicator, collective, torch.empty(0), root, algorithm=AUTO)
    return wrong


def several_sizes(communicator: Communicator) -> set[str]:
    """Return how all-reduces of very different sizes were carried out."""
    communicator.use_cluster(PRICED)
    with heard(communicator) as labels:
        for numel in NUMELS:
            tensor = torch.full((numel,), float(communicator.rank))
            communicator.all_reduce(tensor, algorithm=AUTO)
            assert (tensor == sum(range(communicator.world_size))).all()
    return set(labels)


def refusals(communicator: Communicator) -> list[str]:
    rank, tensor = communicator.rank, torch.ones(4)
    other = Cluster.flat(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    calls = (
        (lambda: communicator.all_reduce(tensor, algorithm=AUTO), InvalidValueError),
        (lambda: communicator.all_reduce(torch.empty(0), algorithm=AUTO), InvalidValueError),
        (lambda: communicator.use_cluster(other if rank in (1, 2) else PRICED), CollectiveError),
        (lambda: communicator.use_cluster(other if rank == 3 else PRICED), CollectiveError),
        (lambda: communicator.use_cluster(Cluster.preset("10gbe", 3)), InvalidValueError),
        (lambda: communicator.use_cluster("cluster.json"), InvalidValueError),
        (lambda: communicator.all_reduce(tensor, algorithm="rign"), UnknownNameError),
    )
    messages = []
    for call, kind in calls:
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))
    communicator.use_cluster(PRICED)
    with pytest.raises(UnknownNameError) as option:
        communicator.all_reduce(tensor, algorithm=AUTO, options={"blocks": 2})
    return [*messages, str(option.value)]


def halves(rank: int) -> bool:
    """Two groups of two, each with a cluster of its own."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    cluster = Cluster.flat(2, latency_s=1e-3 * (1 + rank // 2), bandwidth_bytes_per_s=1e9)
    with Communicator(pairs[rank // 2], timeout_s=60, cluster=cluster) as communicator:
        tensor = torch.tensor([float(rank)])
        communicator.all_reduce(tensor, algorithm=AUTO)
        return tensor.item() == (1.0 if rank < 2 else 5.0)


def forgotten(rank: int) -> str:
    """Rank 0 brings no cluster and goes on to something else; nobody waits for ever."""
    try:
        with Communicator(timeout_s=60, cluster=PRICED if rank else None) as communicator:
            communicator.all_reduce(torch.ones(4))
    except SyncopateError as error:
        return str(error)
    return ""


def everything(rank: int, world_size: int) -> dict[str, Any]:
    with Communicator(timeout_s=60, channels=2) as communicator:
        found = {
            "refusals": refusals(communicator),
            "wrong": everywhere(communicator, PRICED) + everywhere(communicator, MEASURED),
            "sizes": several_sizes(communicator),
        }
    with Communicator(timeout_s=60, check=True, cluster=MEASURED) as communicator:
        tensor = torch.ones(3)
        with heard(communicator) as labels:
            communicator.broadcast(tensor, src=3, algorithm=AUTO)
    found["halves"] = halves(rank)
    return found | {"checked": labels, "forgotten": forgotten(rank)}


def test_four_ranks_choose_alike() -> None:
    ranks = run_ranks(everything, 4)
    for rank in ranks:
        assert rank["wrong"] == []
        assert rank["sizes"] == {chosen(PRICED, "all_reduce", 4 * n, 0) for n in NUMELS}
        assert len(rank["sizes"]) > 1
        assert rank["checked"] == ["broadcast (lp, root 3, blocks=3)"]
        assert rank["halves"]
        assert "rank 0 in all_reduce (native)" in rank["forgotten"]
        messages = rank["refusals"]
        assert messages == ranks[0]["refusals"]
        assert "knows no cluster; call use_cluster(" in messages[0]
        assert messages[1] == messages[0]
        assert "ranks 1, 2 were given another cluster" in messages[2]
        assert "rank 3 was given another cluster" in messages[3]
        assert "is 3; it must be that of the communicator, 4" in messages[4]
        assert "cluster is 'str'; it must be a syncopate.Cluster" in messages[5]
        assert "known: native, ring, flat_tree" in messages[6]
        assert messages[6].endswith("blueconnect, auto")
        assert "unknown option 'blocks' for all_reduce (auto); known: none" in messages[7]


def alone(rank: int, world_size: int) -> list[str]:
    cluster = Cluster.flat(1, latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    with Communicator(channels=2) as communicator:
        with pytest.raises(InvalidValueError, match="knows no cluster"):
            communicator.broadcast(torch.ones(2), algorithm=AUTO)
        with pytest.raises(InvalidValueError, match="that of the communicator, 1"):
            communicator.use_cluster(PRICED)
        return everywhere(communicator, cluster)


def test_one_rank_has_nothing_to_choose() -> None:
    assert run_ranks(alone, 1) == [[]]

"""What the engine's multi-process tests share: side-by-side training with DDP, and plans."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import ALLREDUCE, EXCHANGES, ROOTED, Bucket, Plan, joined
from syncopate.artifacts.workload import GradientTensor, Workload, fingerprint
from syncopate.engine.distribute import distribute
from syncopate.planning import filled_to, make_plan
from syncopate.recipe import NATIVE, Recipe
from syncopate.schedules.base import chunk_offsets
from syncopate.units import dtype_bytes, dtype_name
from tests.multiprocess.harness import Cases

TIMEOUT_S = 300.0


def planned(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that a plan has, by name: not those whose gradients have rows."""
    sparse = {id(each.weight) for each in model.modules() if getattr(each, "sparse", False)}
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad and id(p) not in sparse]


def tensors_of(model: nn.Module) -> list[tuple[str, int, str]]:
    return [(name, p.numel(), dtype_name(p.dtype)) for name, p in planned(model)]


def plan_of(
    model: nn.Module,
    world_size: int,
    sizes: Iterable[int] | None = None,
    *,
    algorithm: str = "",
    channels: int = 1,
    exchange: str = ALLREDUCE,
    pull: str = "",
    wire_dtype: str = "",
) -> Plan:
    """Buckets of ``sizes`` gradients, in reverse order of definition; one each by default.

    Weights that are pulled travel by the algorithm ``pull``, by default as gradients are pushed;
    roots and channels take turns. Without an ``algorithm`` the backend carries the first bucket,
    and our own links the others: a small message costs Gloo six to twelve times the computation.
    """
    kind = EXCHANGES[exchange]
    carried = [algorithm] if algorithm else [NATIVE, "mst" if exchange == ROOTED else "ring"]
    tensors = tensors_of(model)
    nbytes = {name: numel * dtype_bytes(dtype) for name, numel, dtype in reversed(tensors)}
    names = list(nbytes)
    buckets, start = [], 0
    for size in [1] * len(names) if sizes is None else sizes:
        chosen = tuple(names[start : start + size])
        start += size
        by = carried[min(len(buckets), len(carried) - 1)]
        buckets.append(
            Bucket(
                tensors=chosen,
                nbytes=sum(nbytes[name] for name in chosen),
                push=Recipe(kind.push, by),
                pull=Recipe(kind.pull, pull or by) if kind.pull else None,
            )
        )
    assert start == len(names)
    return Plan(
        model="test",
        fingerprint=fingerprint(tensors),
        world_size=world_size,
        policy="by hand",
        buckets=_in_turn(buckets, channels, world_size if exchange == ROOTED else 1),
        exchange=exchange,
        channels=channels,
        wire_dtype=wire_dtype,
    )


def _in_turn(buckets: Iterable[Bucket], channels: int, roots: int) -> tuple[Bucket, ...]:
    """Return the buckets with channels and roots that take turns."""
    found = []
    for index, bucket in enumerate(buckets):
        recipes = {
            phase: msgspec.structs.replace(recipe, root=index % roots, channel=index % channels)
            for phase, recipe in bucket.recipes
        }
        found.append(msgspec.structs.replace(bucket, **recipes))
    return tuple(found)


def in_parts(plan: Plan, model: nn.Module, parts: int) -> Plan:
    """Return the plan of ``model`` with every bucket of one tensor in ``parts``, if it has so many.

    Roots and channels take turns, as in :func:`plan_of`.
    """
    numels = {name: numel for name, numel, _ in tensors_of(model)}
    buckets: list[Bucket] = []
    for bucket in plan.buckets:
        numel = numels[bucket.tensors[0]]
        if len(bucket.tensors) > 1 or min(parts, numel) < 2:
            buckets.append(bucket)
            continue
        for start, stop in pairwise(chunk_offsets(numel, min(parts, numel))):
            nbytes = bucket.nbytes * (stop - start) // numel
            part = msgspec.structs.replace(bucket, nbytes=nbytes, elements=(start, stop))
            buckets.append(part)
    roots = plan.world_size if plan.exchange == ROOTED else 1
    taken = _in_turn(buckets, plan.channels, roots)
    return msgspec.structs.replace(plan, buckets=taken)


def replicating(plan: Plan, count: int) -> Plan:
    """Return a sharded plan with its first ``count`` buckets all-reduced, parts counted as one."""
    changed = list(plan.buckets)
    for places in joined(plan.buckets)[:count]:
        for place in places:
            push = changed[place].push
            algorithm = NATIVE if push.algorithm == NATIVE else "ring"
            push = msgspec.structs.replace(push, collective="all_reduce", algorithm=algorithm)
            changed[place] = msgspec.structs.replace(changed[place], push=push, pull=None)
    return msgspec.structs.replace(plan, buckets=tuple(changed))


def made_up_workload(model: nn.Module) -> Workload:
    """The gradients of a model, ready at made-up times."""
    return Workload(
        model="test",
        tensors=tuple(
            GradientTensor(name=name, numel=numel, dtype=dtype, backward_s=2e-5)
            for name, numel, dtype in reversed(tensors_of(model))
        ),
        forward_s=1e-4,
        backward_s=1e-2,
    )


def policy_plan(model: nn.Module, world_size: int, policy: str, algorithm: str) -> Plan:
    """The policy's plan of a made-up workload on a made-up network, run with ``algorithm``."""
    workload = made_up_workload(model)
    cluster = Cluster.flat(world_size, latency_s=1e-5, bandwidth_bytes_per_s=1e9)
    asked = filled_to(4096) if policy == "threshold" else policy
    plan = make_plan(workload, cluster, asked, algorithm="ring")
    buckets = tuple(
        msgspec.structs.replace(b, push=Recipe("all_reduce", algorithm)) for b in plan.buckets
    )
    return msgspec.structs.replace(plan, buckets=buckets)


class Pair:
    """The same model twice, wrapped in DDP and distributed by Syncopate, from the same start.

    Ranks start from different weights, so that only the initial broadcast can make them agree.
    """

    def __init__(
        self,
        rank: int,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        *,
        sizes: Iterable[int] | None = None,
        plan: Callable[[nn.Module, int], Plan] | None = None,
        **ddp_options: Any,
    ) -> None:
        build = optimizer or (
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)
        )
        torch.manual_seed(rank)
        plain = model()
        twin = copy.deepcopy(plain)
        self.reference = DistributedDataParallel(plain, **ddp_options)
        self.reference_optimizer = build(plain.parameters())
        self.model, self.optimizer = distribute(
            twin,
            build(twin.parameters()),
            plan=(plan or (lambda m, w: plan_of(m, w, sizes)))(twin, dist.get_world_size()),
            timeout_s=TIMEOUT_S,
        )

    def run(self, step: Callable[[Any, torch.optim.Optimizer], Any]) -> None:
        """Run one step on both, under the same random state."""
        state = torch.get_rng_state()
        step(self.reference, self.reference_optimizer)
        torch.set_rng_state(state)
        step(self.model, self.optimizer)

    def check(self, *, tolerance: float = 1e-5, buffers: bool = True) -> None:
        """Weights and gradients as with DDP, and bit-identical on every rank."""
        reference = dict(self.reference.module.named_parameters())
        for name, parameter in self.model.named_parameters():
            expected = reference[name]
            torch.testing.assert_close(parameter, expected, rtol=tolerance, atol=tolerance)
            assert (parameter.grad is None) == (expected.grad is None), name
            if expected.grad is not None:
                torch.testing.assert_close(
                    parameter.grad, expected.grad, rtol=tolerance, atol=tolerance
                )
        identical_everywhere(self.model.parameters())
        if buffers:
            identical_everywhere(buffers_of_a_forward(self.model))

    def close(self) -> None:
        self.model.syncopate.detach()


def buffers_of_a_forward(model: Any) -> list[Tensor]:
    """Return the buffers that a forward now begins with; until then they are each rank's own."""
    model.syncopate.forward_alone()
    return list(model.buffers())


def identical_everywhere(tensors: Iterable[Tensor]) -> None:
    """Assert that all ranks hold the same bits."""
    with torch.no_grad():
        own = [tensor.detach().clone() for tensor in tensors]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    for other in everyone:
        for mine, theirs in zip(own, other, strict=True):
            assert torch.equal(mine, theirs)


def average(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Average plain tensors over the ranks: the reference where DDP has none."""
    averages = []
    for tensor in tensors:
        result = tensor.detach().clone()
        dist.all_reduce(result)
        averages.append(result / dist.get_world_size())
    return averages


def data(rank: int, step: int, *shape: int) -> Tensor:
    """A batch that differs by rank and step."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 24),
        nn.ReLU(),
        nn.Linear(24, 5),
    )


def train_convnet(
    model: nn.Module,
    rank: int,
    parameters: Iterable[nn.Parameter],
    steps: int,
    device: torch.device | str = "cpu",
) -> None:
    """Train :func:`convnet`, wrapped or not, on batches that differ by rank and step."""
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    wanted = torch.arange(6, device=device) % 5
    for step in range(steps):
        optimizer.zero_grad()
        images = data(rank, step, 6, 1, 8, 8).to(device)
        nn.functional.cross_entropy(model(images), wanted).backward()
        optimizer.step()


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Add to whatever is raised within the block where that was."""
    try:
        yield
    except BaseException as error:
        error.add_note(what)
        raise


def run_cases(cases: Iterable[Callable[..., object]], *place: Any) -> None:
    """Run cases at this rank, of so many where they ask; what failed is reported at the end."""
    with Cases() as one:
        for case in cases:
            with one(getattr(case, "__name__", str(case))):
                case(*place)

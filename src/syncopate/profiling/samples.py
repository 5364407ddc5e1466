"""Samples: from the stamps of some iterations on some ranks to one workload.

[Note: slowest rank] Synchronous ranks wait for the last one at every collective. So the workload is
that of a rank that is, at every moment of every iteration, where the slowest one is: maxima over
ranks are taken of the time since the iteration's start, and durations are differences of those.

[Note: a late start] The ranks of one host leave the collective before an iteration one after the
other: where they share cores, the first to leave begins to compute and keeps the others waiting.
That delay is part of every synchronous iteration, so the iteration starts with the first rank of
each host. Ranks of one host read one clock; clocks of different hosts are not compared.

[Note: true ready order] The order is that of the median ready times, not of definition: branches,
shared parameters and scheduling inside autograd decide it, and it may change between iterations.
Durations are medians of the differences between neighbours in this order, scaled so that the last
gradient is ready at the robust mean of its ready times: medians of parts do not add up to the time
of the whole, and an iteration is a whole.

[Note: order of forward] A module needs its parameters as it begins, so they stand in the order in
which the modules that own them began first, in the last iteration on rank 0. Backward mostly takes
the reverse way; but a module that also ran earlier without gradients was needed then. A parameter
whose module never ran was used by another one, and stands where backward has it: behind the one
that it preceded in ready order. So do those of one module, which needs them at once. What has no
gradient and never ran is never needed, and last.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from syncopate.artifacts.cluster import robust_mean
from syncopate.artifacts.workload import GradientTensor, Workload


@dataclass
class Iteration:
    """The durations of one iteration on one rank.

    Attributes:
        forward_s: forward with the loss.
        backward_s: the whole of backward.
        update_s: optimizer step and zeroing.
        ready_s: per parameter, from the start of backward to its gradient; unused ones are absent.
        module_forward_s: per parameter, forward time of the modules that own it.
        used: parameters in the order in which forward needs them, those whose modules ran.
        began_s: the host's ``time.perf_counter`` at its start; None when not known.
        host: name of the machine it ran on.
    """

    forward_s: float
    backward_s: float
    update_s: float
    ready_s: dict[str, float] = field(default_factory=dict)
    module_forward_s: dict[str, float] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    began_s: float | None = None
    host: str = ""


def slowest(ranks: Sequence[Iteration]) -> Iteration:
    """Return the iteration of the slowest rank at every moment; see [Note: slowest rank].

    Args:
        ranks: the same iteration on each rank, started together.
    """
    ends = [(_late_s(one, ranks) + one.forward_s, one) for one in ranks]
    forward_s = max(forward_end_s for forward_end_s, _ in ends)
    computed_s = max(forward_end_s + one.backward_s for forward_end_s, one in ends)
    updated_s = max(forward_end_s + one.backward_s + one.update_s for forward_end_s, one in ends)
    ready_s: dict[str, float] = {}
    for forward_end_s, one in ends:
        for name, ready in one.ready_s.items():
            # A gradient of a fast rank may be ready before the slowest rank ends its forward.
            since_s = max(forward_end_s + ready - forward_s, 0.0)
            ready_s[name] = max(ready_s.get(name, 0.0), since_s)
    names = {name for one in ranks for name in one.module_forward_s}
    return Iteration(
        forward_s=forward_s,
        backward_s=computed_s - forward_s,
        update_s=updated_s - computed_s,
        ready_s=ready_s,
        module_forward_s={
            name: max(one.module_forward_s.get(name, 0.0) for one in ranks) for name in names
        },
        used=ranks[0].used,
    )


def _late_s(one: Iteration, ranks: Sequence[Iteration]) -> float:
    """Return by how much ``one`` started after the first on its host; see [Note: a late start]."""
    if one.began_s is None:
        return 0.0
    began = [peer.began_s for peer in ranks if peer.host == one.host]
    return one.began_s - min((at for at in began if at is not None), default=one.began_s)


def workload(
    model: str,
    sizes: Mapping[str, tuple[int, str]],
    iterations: Sequence[Iteration],
    metadata: Mapping[str, str],
    whole: Collection[str] = (),
) -> Workload:
    """Return the workload of some iterations; see the notes of this module.

    Args:
        model: its name.
        sizes: ``name -> (numel, dtype)`` of every trainable parameter.
        iterations: at least one.
        metadata: goes into the workload, with the parameters that never became ready.
        whole: names of the parameters that the optimizer looks at whole.
    """
    order = _ready_order(iterations)
    unused = [name for name in sizes if name not in order]
    backward_parts_s, last_s = _backward_parts(order, iterations)
    forward_s = robust_mean([one.forward_s for one in iterations])
    forward_parts_s = np.array(
        [
            statistics.median(one.module_forward_s.get(name, 0.0) for one in iterations)
            for name in order
        ]
    )
    if forward_parts_s.sum() > forward_s:
        forward_parts_s *= forward_s / forward_parts_s.sum()
    tensors = tuple(
        GradientTensor(
            name=name,
            numel=sizes[name][0],
            dtype=sizes[name][1],
            backward_s=float(backward_parts_s[i]) if i < len(order) else 0.0,
            forward_s=float(forward_parts_s[i]) if i < len(order) else 0.0,
        )
        for i, name in enumerate([*order, *unused])
    )
    return Workload(
        model=model,
        tensors=tensors,
        forward_s=forward_s,
        backward_s=max(robust_mean([one.backward_s for one in iterations]), last_s),
        update_s=robust_mean([one.update_s for one in iterations]),
        forward_order=_forward_order(order, unused, iterations[-1].used),
        whole=tuple(i for i, tensor in enumerate(tensors) if tensor.name in whole),
        metadata=dict(metadata) | ({"unused": ", ".join(unused)} if unused else {}),
    )


def _ready_order(iterations: Sequence[Iteration]) -> list[str]:
    # The names in order of readiness in the last iteration break ties as they were seen.
    names = list(dict.fromkeys(name for one in reversed(iterations) for name in one.ready_s))
    ready_s = {
        name: statistics.median(one.ready_s[name] for one in iterations if name in one.ready_s)
        for name in names
    }
    return sorted(names, key=lambda name: ready_s[name])


def _forward_order(
    ready: Sequence[str], unused: Sequence[str], used: Sequence[str]
) -> tuple[int, ...]:
    """Return a workload's order of forward; see [Note: order of forward].

    Args:
        ready: tensors in ready order.
        unused: those that were never ready, behind them.
        used: tensors in the order in which modules that ran began; none where it was not measured.
    """
    if not used:
        return ()
    names = [*ready, *unused]
    index = {name: at for at, name in enumerate(names)}
    begun: dict[str, int] = {}
    for name in used:
        begun.setdefault(_owner(name), len(begun))
    used = sorted((n for n in used if n in index), key=lambda n: (begun[_owner(n)], -index[n]))
    followers: dict[str, list[str]] = {name: [] for name in ("", *used)}
    before = ""
    for name in reversed(ready):
        if name in followers:
            before = name
        else:
            followers[before].append(name)
    order = followers.pop("")
    for name, others in followers.items():
        order += [name, *others]
    order += [name for name in unused if name not in followers]
    found = tuple(index[name] for name in order)
    return () if found == tuple(reversed(range(len(names)))) else found


def _owner(name: str) -> str:
    """Return the module that a tensor belongs to; one of the model's own stands for itself."""
    return name.rpartition(".")[0] or name


def _backward_parts(
    order: Sequence[str], iterations: Sequence[Iteration]
) -> tuple[NDArray[np.float64], float]:
    """Return backward time per tensor in ready order, and the last one's ready time."""
    if not order:
        return np.zeros(0), 0.0
    ready_s = np.array([[one.ready_s.get(name, 0.0) for name in order] for one in iterations])
    # Where an iteration finished two gradients in the other order, the later one takes no time.
    ready_s = np.maximum.accumulate(ready_s, axis=1)
    parts_s = np.median(np.diff(ready_s, axis=1, prepend=0.0), axis=0)
    last_s = robust_mean(ready_s[:, -1].tolist())
    if parts_s.sum() > 0:
        parts_s = parts_s * (last_s / parts_s.sum())
    return parts_s, float(parts_s.sum())

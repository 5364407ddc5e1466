"""Curves: what NCCL's all-reduce takes where it was not measured.

Where it was measured on another number of nodes, the measurement is carried over
(:func:`carried`). A measured time is taken apart into bytes and steps::

    T(n) = network_bytes(n) / B + steps h(n)

B is the rate at which the largest messages went, steps counts the messages in a row that cross the
network, and h(n) is what each of them took beside its bytes. On another number of nodes NCCL may
choose another algorithm for the same size (:mod:`syncopate.costs.nccl.tuning`): bytes and steps are
then those of that one, and h(n) is kept. So a tree on 8 nodes, 6 steps, becomes a ring on 2, 3.5
steps, where NCCL would take one. The same gives the curve of another network with the same
transport, whose B is known and whose h(n) is not: TCP's own work does not depend on the cable.

Nothing here is fitted: the curve at the number of nodes that it was measured on is the measured one
wherever B is the measured rate.

Where nothing was measured, the levels of a cluster give a price (:func:`priced`): the same formula,
with the latency of each level for its steps and the bandwidth of the narrowest for its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from syncopate.artifacts.cluster import Cluster, CollectiveCurve, CurvePoint, LinearFit
from syncopate.costs.nccl.tuning import PCIE, Layout, chosen
from syncopate.errors import InvalidValueError
from syncopate.recipe import NATIVE

_SIZES = tuple(1 << power for power in range(6, 31))
"""At which a price is worked out: NCCL's corrections begin with 64 bytes."""


class Measured(NamedTuple):
    """The times of NCCL's all-reduces, as nccl-tests prints them.

    Attributes:
        layout: of the cluster that they were measured on.
        points: bytes and seconds, by ascending size.
    """

    layout: Layout
    points: tuple[tuple[int, float], ...]

    @property
    def bus_bytes_per_s(self) -> float:
        """The bus bandwidth of the largest message, as nccl-tests defines it."""
        nbytes, seconds = self.points[-1]
        return chosen(nbytes, self.layout).network_bytes(nbytes, self.layout.ranks) / seconds


def carried(
    measured: Measured, layout: Layout, bus_bytes_per_s: float | None = None
) -> CollectiveCurve:
    """Return the curve of ``native`` all-reduces on another layout; see the module.

    Args:
        measured: on several nodes.
        layout: where the curve is wanted; several nodes, too.
        bus_bytes_per_s: of large messages there; that of the measurement when left out.

    Raises:
        InvalidValueError: a single node, no points, or no bandwidth.
    """
    if not measured.points:
        raise InvalidValueError("points", measured.points, "at least one size and its seconds")
    for there in (measured.layout, layout):
        if there.nodes < 2:
            raise InvalidValueError("nodes", there.nodes, "at least 2: steps cross a network")
    wanted = measured.bus_bytes_per_s if bus_bytes_per_s is None else bus_bytes_per_s
    if not wanted > 0:
        raise InvalidValueError("bus_bytes_per_s", wanted, "a number > 0")
    points = tuple(
        (nbytes, _carried_s(measured, layout, wanted, nbytes, seconds))
        for nbytes, seconds in measured.points
    )
    return curve_of(points)


def priced(cluster: Cluster, inside: str = PCIE) -> CollectiveCurve:
    """Return the curve of NCCL's all-reduce by a cluster's levels alone; see the module.

    The innermost of several levels joins the GPUs of a node, and the outermost the nodes.

    Args:
        cluster: of at least two ranks; its curves are not looked at.
        inside: what joins the GPUs of a node, ``"pcie"`` or ``"nvlink"``.

    Raises:
        InvalidValueError: a single rank.
        UnknownNameError: nothing is known of what joins the GPUs of a node.
    """
    inner, outer = cluster.levels[0], cluster.levels[-1]
    per_node = cluster.ranks_per_host
    layout = Layout(cluster.host_count, per_node, outer.bandwidth_bytes_per_s, inside)
    narrowest = min(level.bandwidth_bytes_per_s for level in cluster.joining)
    points = []
    for nbytes in _SIZES:
        way = chosen(nbytes, layout)
        steps_s = way.network_steps(layout.nodes, per_node) * outer.latency_s
        steps_s += way.inner_steps(layout.nodes, per_node) * inner.latency_s
        points.append((nbytes, steps_s + way.network_bytes(nbytes, layout.ranks) / narrowest))
    return curve_of(points)


def curve_of(points: Iterable[tuple[int, float]]) -> CollectiveCurve:
    """Return bytes and seconds as a curve of the backend's own all-reduce.

    Beyond the largest size the curve goes on with its own slope.
    """
    found = tuple(points)
    nbytes, seconds = found[-1]
    return CollectiveCurve(
        collective="all_reduce",
        algorithm=NATIVE,
        points=tuple(CurvePoint(nbytes=size, samples_s=(took_s,)) for size, took_s in found),
        fit=LinearFit(a_s=found[0][1], b_s_per_byte=seconds / nbytes if nbytes else 0.0),
    )


def with_native(cluster: Cluster, curve: CollectiveCurve) -> Cluster:
    """Return a cluster on which the backend's own all-reduce costs what ``curve`` says.

    Its own curves are left out: what NCCL runs is what the plan is priced by.
    """
    return structs.replace(cluster, curves=(curve,))


def _carried_s(
    measured: Measured, layout: Layout, bus_bytes_per_s: float, nbytes: int, seconds: float
) -> float:
    here, there = chosen(nbytes, measured.layout), chosen(nbytes, layout)
    from_s = here.network_bytes(nbytes, measured.layout.ranks) / measured.bus_bytes_per_s
    steps = here.network_steps(measured.layout.nodes, measured.layout.per_node)
    step_s = max(seconds - from_s, 0.0) / steps
    bytes_s = there.network_bytes(nbytes, layout.ranks) / bus_bytes_per_s
    return bytes_s + step_s * there.network_steps(layout.nodes, layout.per_node)

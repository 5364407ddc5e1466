"""Machines: the cluster of a setting, made from the one that is known.

Inside a host are the levels before the one called ``"host"``, as
:attr:`~syncopate.artifacts.cluster.Cluster.host_count` counts them. More or fewer nodes change the
levels of hosts: full racks first. A cluster of unequal units (racks of 3 and 5 hosts) grows by
whole copies of itself alone. Links of another rate or latency between hosts change those of
outer levels in proportion, so that the network keeps its shape; what names a level changes that
level alone (:func:`settled`), and gives the shape that other links keep (:func:`linked`).

Curves, probes and places of ranks were measured on the base cluster and nowhere else. So all
points, the base among them, are priced from links: like is compared with like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.level import Level, unit_counts
from syncopate.artifacts.results.whatif import Setting
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import format_link

DEVICE = Level(name="device", size=1, latency_s=5e-6, bandwidth_bytes_per_s=12e9)
"""The level inside a host that has none: 16 lanes of PCIe 3, 12 GB/s each direction."""

BANDWIDTH, LATENCY = "bandwidth", "latency"

_FIELDS = {BANDWIDTH: "bandwidth_bytes_per_s", LATENCY: "latency_s"}
"""What may be changed of a level -> its field, which a setting calls the same."""

GPU_REDUCTION_S_PER_BYTE = 5e-12
"""γ of GPUs on a typical network: an addition reads two bytes and writes one, at 600 GB/s."""


def on_device(cluster: Cluster, device: str) -> Cluster:
    """Return a typical network's cluster whose ranks add gradients where they compute.

    Args:
        cluster: of :meth:`~syncopate.artifacts.cluster.Cluster.preset`, whose ranks are CPUs.
        device: that the workload was profiled on; empty: not known.
    """
    if device in ("", "cpu"):
        return cluster
    changed: Cluster = replace(cluster, reduction_s_per_byte=GPU_REDUCTION_S_PER_BYTE)
    return changed


def setting_of(cluster: Cluster, batch: int | None = None) -> Setting:
    """Return the setting of a cluster as it is."""
    outer = cluster.levels[cluster.first_outer :]
    ranks, nodes = cluster.world_size, unit_counts(outer)[0]
    return Setting(
        nodes=nodes,
        gpus_per_node=ranks // nodes if ranks % nodes == 0 else ranks / nodes,
        bandwidth_bytes_per_s=outer[0].bandwidth_bytes_per_s,
        latency_s=outer[0].latency_s,
        oversubscription=_oversubscription(outer, _hosts_below(outer)),
        batch=batch,
    )


def cluster_of(base: Cluster, setting: Setting) -> Cluster:
    """Return the machines of a setting, priced by their links alone.

    Args:
        base: the cluster that is known.
        setting: as far as it speaks of machines.

    Raises:
        InvalidValueError: the nodes fill no whole racks, or the GPUs no whole switches; a level
            that is oversubscribed is not there.
        UnknownNameError: a level that is not there.
    """
    first = base.first_outer
    inside, between = base.levels[:first], base.levels[first:]
    if _equal(inside):
        inner = _inside(inside, setting.gpus_per_node)
    else:
        inner = _copied(inside, _copies(base, setting, gpus=True))
    if _equal(base.levels):
        outer = _nodes(between, setting.nodes)
    else:
        count = _copies(base, setting, gpus=False)
        outer = _copied(between, count)
        outer[-1] = replace(between[-1], size=between[-1].largest * count)
    rate = setting.bandwidth_bytes_per_s / outer[0].bandwidth_bytes_per_s
    late = setting.latency_s / outer[0].latency_s if outer[0].latency_s else None
    outer = [
        replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * rate,
            latency_s=setting.latency_s if late is None else level.latency_s * late,
        )
        for level in outer
    ]
    outer = _oversubscribed(outer, base.levels[first:], setting.oversubscription)
    levels = _named([*inner, *outer], dict(setting.levels))
    return replace(
        base,
        name=_name(setting),
        levels=tuple(levels),
        placement=(),
        hosts=(),
        curves=(),
        probes=(),
        warnings=(),
    )


def settled(base: Cluster, setting: Setting) -> Setting:
    """Return the same setting, whose other figures say of links what its levels say.

    Raises:
        InvalidValueError, UnknownNameError: as :func:`cluster_of`.
    """
    if not setting.levels:
        return setting
    outer = base.levels[base.first_outer :]
    there = cluster_of(base, setting).levels[-len(outer) :]
    told = dict(setting.levels)
    for what, field in _FIELDS.items():
        if f"{there[0].name}.{what}" in told:
            # Levels further out do not follow this one, as they do a setting's own figure.
            for level in there[1:]:
                told.setdefault(f"{level.name}.{what}", getattr(level, field))
    return replace(
        setting,
        levels=tuple(told.items()),
        oversubscription=_oversubscription(there, _hosts_below(outer)),
        **{field: getattr(there[0], field) for field in _FIELDS.values()},
    )


def linked(base: Cluster, setting: Setting, what: str, value: float) -> Setting:
    """Return a setting with another link between hosts; those of outer levels keep in proportion.

    Args:
        base: the cluster that is known.
        setting: with any link, of one as :func:`settled` returns it.
        what: ``BANDWIDTH`` or ``LATENCY``.
        value: bytes per second, or seconds.
    """
    field = _FIELDS[what]
    outer = {f"{level.name}.{what}" for level in base.levels[base.first_outer :]}
    before = getattr(setting, field)
    levels = tuple(
        (name, told * value / before if name in outer and before else told)
        for name, told in setting.levels
    )
    return replace(setting, levels=levels, **{field: value})


def _name(setting: Setting) -> str:
    gpus = f" of {setting.gpus_per_node:g}" if setting.gpus_per_node > 1 else ""
    return f"{setting.nodes} nodes{gpus}, {format_link(setting.bandwidth_bytes_per_s)}"


def _equal(levels: Sequence[Level]) -> bool:
    """Say whether the units of each level are of one size."""
    return all(isinstance(level.size, int) for level in levels)


def _copies(base: Cluster, setting: Setting, *, gpus: bool) -> int:
    """Return how many copies a setting has of a cluster of unequal units, joined at the outermost.

    Args:
        base: the cluster that is known.
        setting: which has as many nodes as whole copies of it.
        gpus: whether hosts are unequal, so that they are copied with what is in them.
    """
    today = setting_of(base)
    if gpus and setting.gpus_per_node != today.gpus_per_node:
        rule = f"{today.gpus_per_node:g}, as on today's cluster, whose hosts are unequal"
        raise InvalidValueError("gpus_per_node", setting.gpus_per_node, rule)
    count, rest = divmod(setting.nodes, today.nodes)
    if rest or not count:
        rule = f"a multiple of the {today.nodes} of today's cluster, whose units are unequal"
        raise InvalidValueError("nodes", setting.nodes, rule)
    return count


def _copied(levels: Sequence[Level], count: int) -> list[Level]:
    return [
        replace(level, size=level.size * count) if isinstance(level.size, tuple) else level
        for level in levels
    ]


def _inside(inner: Sequence[Level], gpus: float) -> list[Level]:
    """Return the levels of a host of so many GPUs: the outermost of them takes what differs."""
    if gpus < 1 or gpus != int(gpus):
        raise InvalidValueError("gpus_per_node", gpus, "an integer >= 1")
    if not inner:
        return [replace(DEVICE, size=int(gpus))] if gpus > 1 else []
    *fixed, last = inner
    below = math.prod(level.largest for level in fixed)
    if gpus % below:
        rule = f"a multiple of the {below} GPUs on each {fixed[-1].name} of the cluster"
        raise InvalidValueError("gpus_per_node", gpus, rule)
    return [*fixed, replace(last, size=int(gpus) // below)]


def _nodes(outer: Sequence[Level], nodes: int) -> list[Level]:
    """Return the levels of so many hosts: the outermost takes what differs, racks stay full."""
    if nodes < 1:
        raise InvalidValueError("nodes", nodes, "an integer >= 1")
    *fixed, last = outer
    below = math.prod(level.largest for level in fixed)
    if nodes == below * last.largest or not fixed:
        return [*fixed, replace(last, size=nodes // below)]
    if nodes < fixed[0].largest:
        return [replace(fixed[0], size=nodes), *(replace(o, size=1) for o in outer[1:])]
    if nodes % below:
        rule = f"fewer than {fixed[0].largest} or a multiple of {below}, which fill racks"
        raise InvalidValueError("nodes", nodes, rule)
    return [*fixed, replace(last, size=nodes // below)]


def _oversubscription(outer: Sequence[Level], hosts: float) -> float:
    """Return what so many hosts send together, over what a link of the outermost level carries."""
    if len(outer) < 2:
        return 1.0
    return hosts * outer[0].bandwidth_bytes_per_s / outer[-1].bandwidth_bytes_per_s


def _hosts_below(outer: Sequence[Level]) -> float:
    """Return how many hosts a unit has that the outermost level joins, in the mean."""
    counts = unit_counts(outer)
    return counts[0] / counts[len(outer) - 1]


def _oversubscribed(levels: Sequence[Level], known: Sequence[Level], wanted: float) -> list[Level]:
    if not 0 < wanted < math.inf:
        raise InvalidValueError("oversubscription", wanted, "a finite number > 0")
    if len(levels) < 2:
        if wanted != 1:
            rule = "1 on a cluster with one level of hosts; one with racks has an uplink to share"
            raise InvalidValueError("oversubscription", wanted, rule)
        return list(levels)
    # Where fewer hosts stand in a rack its uplink stays; so the ratio is that of the known racks.
    rate = _hosts_below(known) * levels[0].bandwidth_bytes_per_s / wanted
    return [*levels[:-1], replace(levels[-1], bandwidth_bytes_per_s=rate)]


def _named(levels: Sequence[Level], changes: Mapping[str, float]) -> list[Level]:
    """Return levels of which some have another rate or latency, by ``"level.bandwidth"``."""
    found = list(levels)
    known = [f"{level.name}.{what}" for level in levels for what in _FIELDS]
    for key, value in changes.items():
        name, _, what = key.rpartition(".")
        places = [place for place, level in enumerate(found) if level.name == name]
        if not places or what not in _FIELDS:
            raise UnknownNameError("level", key, known)
        for place in places:
            found[place] = replace(found[place], **{_FIELDS[what]: value})
    return found

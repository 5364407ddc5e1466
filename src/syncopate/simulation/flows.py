"""Flows: schedules played message by message, every link shared max-min fairly at every moment.

It is the reference that prices are held against. A price (:mod:`syncopate.costs.schedule.price`)
takes a formula where there is one, plays messages that are alike once, and joins a few sizes to a
curve; here every message is played for itself, at the size in question
(:mod:`syncopate.costs.flows.kernel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from syncopate.artifacts.cluster import Cluster
from syncopate.costs.flows.kernel import play
from syncopate.costs.flows.traffic import Traffic, traffic_of
from syncopate.costs.model.pieces import FloatArray
from syncopate.costs.schedule.links import Machines
from syncopate.errors import InvalidValueError
from syncopate.schedules.base import Schedule


class Case(NamedTuple):
    """The messages to play.

    Attributes:
        schedule: for as many ranks as the cluster has, with at least one transfer.
        cluster: levels, placement and γ; its measured curves play no part.
        nbytes: size of the whole buffer, > 0, fractions allowed.
    """

    schedule: Schedule
    cluster: Cluster
    nbytes: float


class Flows(NamedTuple):
    """The times of the messages of a schedule, in s from its start.

    Attributes:
        seconds: when all is done.
        begins_s: when the bytes of each message began to flow, shape (m,).
        sent_s: when they had left, shape (m,).
        added_s: when they had been added, shape (m,).
        nbytes: how long each message is, shape (m,).
        peak: the most that any link carried at any time, as a share of its rate.
        carried: bytes that flowed over each link, shape (l,).
        expected: bytes of the messages whose way leads over each link, shape (l,).
    """

    seconds: float
    begins_s: FloatArray
    sent_s: FloatArray
    added_s: FloatArray
    nbytes: FloatArray
    peak: float
    carried: FloatArray
    expected: FloatArray


def flow_seconds(cases: Sequence[Case]) -> FloatArray:
    """Return how long each of at least one schedule takes; they are played side by side.

    Raises:
        InvalidValueError: a schedule is for another number of ranks than its cluster has, or sends
            nothing.
    """
    return play([_traffic(case) for case in cases], [case.nbytes for case in cases]).seconds


def flows(case: Case) -> Flows:
    """Return what happens to every message of a schedule, and how busy links are.

    Raises:
        InvalidValueError: as for :func:`flow_seconds`.
    """
    traffic = _traffic(case)
    played = play([traffic], [case.nbytes], watched=True)
    nbytes = traffic.share * case.nbytes
    return Flows(
        seconds=float(played.seconds[0]),
        begins_s=played.begins_s[0],
        sent_s=played.sent_s[0],
        added_s=played.added_s[0],
        nbytes=nbytes,
        peak=played.peak,
        carried=played.carried[0],
        expected=traffic.over_links(nbytes),
    )


def _traffic(case: Case) -> Traffic:
    schedule, cluster = case.schedule, case.cluster
    if schedule.world_size != cluster.world_size:
        what = "world size of the schedule"
        rule = f"that of the cluster, {cluster.world_size}"
        raise InvalidValueError(what, schedule.world_size, rule)
    if not len(schedule.table) or not case.nbytes > 0:
        what = f"bytes that {schedule.title} sends"
        raise InvalidValueError(what, 0, "more than none")
    return traffic_of(schedule, Machines.of(cluster)._replace(levels=cluster.joining))

"""Axes: values and ranges as users write them, and the settings that come of them."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.planning.whatif.axes import MOST_POINTS, Axes, seconds, values_of
from syncopate.planning.whatif.machines import setting_of

BASE = setting_of(Cluster.preset("10gbe", 8), batch=32)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("4..64", (4, 8, 16, 32, 64)),
        ("4..48", (4, 8, 16, 32, 48)),
        ("4..16:4", (4, 8, 12, 16)),
        ("3..3", (3,)),
        ("2, 8..16, 8", (2, 8, 16)),
        (7, (7,)),
        ([1, "2..4"], (1, 2, 4)),
    ],
)
def test_counts_are_listed_or_ranges(given, values):
    assert values_of("nodes", given) == values


@pytest.mark.parametrize("given", ["0", "8..4", "4..8:0", "4.5", -1, True, "", [], "many"])
def test_what_is_no_count_is_refused(given):
    with pytest.raises(InvalidValueError, match="nodes is"):
        values_of("nodes", given)


def test_a_delay_may_be_none():
    assert values_of("pull_period", "0,1,4") == (0, 1, 4)


@pytest.mark.parametrize(
    ("axis", "given", "values"),
    [
        ("bandwidth", "10g,9.4gbit,100mbit", (1.175e9, 12.5e6)),
        ("bandwidth", [2e9], (2e9,)),
        ("latency", "20us,1ms,0.5", (20e-6, 1e-3, 0.5)),
        ("oversubscription", "1,4", (1.0, 4.0)),
        ("exchange", "best,sharded", ("", "sharded")),
        ("wire_dtype", "none,bfloat16", ("", "bfloat16")),
    ],
)
def test_other_values_have_units_and_names(axis, given, values):
    assert values_of(axis, given) == pytest.approx(values) if axis == "bandwidth" else True
    assert len(values_of(axis, given)) == len(values)
    assert values_of(axis, given)[-1] == pytest.approx(values[-1])


@pytest.mark.parametrize(
    ("axis", "given"),
    [
        ("bandwidth", "10 cows"),
        ("bandwidth", 0.0),
        ("bandwidth", 10**400),
        ("latency", "-1us"),
        ("latency", None),
        ("latency", [[1e-6]]),
        ("gpu_speed", "fast"),
    ],
)
def test_what_is_no_quantity_is_refused(axis, given):
    with pytest.raises(InvalidValueError):
        values_of(axis, given)


def test_an_unknown_exchange_names_those_there_are():
    with pytest.raises(UnknownNameError, match="known: allreduce, decoupled"):
        values_of("exchange", "gossip")


def test_seconds_are_read_with_their_unit():
    assert [seconds(text) for text in ("5us", "2 ms", "1e-3")] == pytest.approx([5e-6, 2e-3, 1e-3])


def test_every_combination_is_a_setting_the_last_axis_first():
    axes = Axes({"nodes": (4, 8), "gpu_speed": (1.0, 2.0)})
    found = [(one.nodes, one.gpu_speed) for one in axes.settings(BASE)]
    assert found == [(4, 1.0), (4, 2.0), (8, 1.0), (8, 2.0)]
    assert axes.varied == ("nodes", "gpu_speed")
    assert all(one.batch == 32 for one in axes.settings(BASE))


def test_machines_are_the_outermost_axes_whatever_the_order_given():
    axes = Axes({"gpu_speed": (1.0, 2.0), "bandwidth": (1e9, 2e9), "nodes": (4, 8)})
    assert axes.varied == ("nodes", "bandwidth", "gpu_speed")


def test_levels_are_axes_of_their_own():
    axes = Axes({"levels": {"rack.bandwidth": (1e9, 2e9)}})
    assert [one.levels for one in axes.settings(BASE)] == [
        (("rack.bandwidth", 1e9),),
        (("rack.bandwidth", 2e9),),
    ]
    assert axes.varied == ("rack.bandwidth",)


def test_today_is_the_known_value_where_it_is_among_those_asked_for():
    axes = Axes({"nodes": (4, 8, 16), "bandwidth": values_of("bandwidth", "1g,10g")})
    today = axes.start(BASE)
    assert (today.nodes, today.bandwidth_bytes_per_s) == (8, pytest.approx(1.175e9))
    others = Axes({"nodes": (2, 4), "batch": (64, 128)}).start(BASE)
    assert (others.nodes, others.batch) == (4, 64)


def test_a_profile_among_speeds_is_one_setting():
    axes = Axes({"gpu_speed": (2.0, "h100", 1.0)})
    found = [(one.profile, one.gpu_speed) for one in axes.settings(BASE)]
    assert found == [("", 2.0), ("h100", 1.0), ("", 1.0)]


def test_an_unknown_axis_and_too_many_points_are_refused():
    with pytest.raises(UnknownNameError, match="unknown axis 'gpus'; known: nodes"):
        Axes({"gpus": (1,)})
    counts = tuple(range(1, 200))
    with pytest.raises(InvalidValueError, match=f"at most {MOST_POINTS}"):
        Axes({"nodes": counts, "batch": counts})

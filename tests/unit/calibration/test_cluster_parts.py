"""The decisions of a calibration that need no second rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs

from syncopate.artifacts.cluster import CollectiveCurve, CurvePoint, LinearFit, LinkProbe
from syncopate.calibration import calibrate as calibrating
from syncopate.calibration import curves, interference, links
from syncopate.calibration.timing import lower_quartile, lowest_decile
from syncopate.errors import InvalidValueError, SyncopateError, UnknownNameError
from syncopate.recipe import Recipe
from syncopate.topology import topology
from syncopate.units import KIB, MIB


def point(nbytes: int, *samples_s: float) -> CurvePoint:
    return CurvePoint(nbytes=nbytes, samples_s=samples_s)


def points(*sizes_and_samples: float) -> dict[int, CurvePoint]:
    pairs = zip(sizes_and_samples[::2], sizes_and_samples[1::2], strict=True)
    return {int(size): point(int(size), sample) for size, sample in pairs}


class TestLevel:
    def test_fit_of_probes(self) -> None:
        points = tuple(point(n, 1e-4 + n * 1e-9, 1.0, 1.0) for n in links.PROBE_SIZES)
        level = links._level("host", 2, [LinkProbe(src=0, dst=1, points=points)])
        assert level.latency_s == pytest.approx(1e-4, rel=1e-3)
        assert level.bandwidth_bytes_per_s == pytest.approx(1e9, rel=1e-3)

    def test_rates_of_exchanges_at_the_same_time_replace_those_of_pairs(self) -> None:
        points = tuple(point(n, 1e-4 + max(n - 2e4, 0) * 1e-8) for n in links.PROBE_SIZES)
        probe = LinkProbe(src=0, dst=1, points=points)
        hosts = ("a", "b", "c", "d")
        where = topology(hosts, [hosts[:2], hosts[2:]])
        probes = [structs.replace(probe, src=a, dst=b) for pairs in where.pairs for a, b in pairs]
        plain = links.levels_of(where, probes)
        known = links.levels_of(replace(where, rates_bytes_per_s=(0.0, 5e7)), probes)
        assert known[0] == plain[0]
        assert known[1].bandwidth_bytes_per_s == 5e7
        assert known[1].latency_s == plain[1].latency_s
        # What was saved up for a burst is time.
        assert plain[1].burst_bytes > 0
        assert known[1].burst_bytes * known[1].byte_time_s == pytest.approx(
            plain[1].burst_bytes * plain[1].byte_time_s
        )

    def test_no_probes(self) -> None:
        assert links._level("host", 1, []).latency_s == 0.0

    def test_a_hidden_slope_does_not_make_a_link_infinite(self) -> None:
        points = tuple(point(n, 1e-3) for n in links.PROBE_SIZES)
        level = links._level("host", 2, [LinkProbe(src=0, dst=1, points=points)])
        assert level.bandwidth_bytes_per_s == pytest.approx(4 * MIB / 1e-3)

    def test_quantiles(self) -> None:
        assert lowest_decile([3.0, 2.0]) == 2.0
        assert lowest_decile([*range(20)]) == 2
        assert lower_quartile([3.0]) == 3.0
        assert lower_quartile([9.0, 1.0, 2.0, 3.0]) == 2.0


class TestCurves:
    def test_default_sizes(self) -> None:
        sizes = curves.DEFAULT_SIZES
        assert sizes == tuple(sorted(set(sizes)))
        assert (sizes[0], sizes[-1]) == (4, 64 * MIB)

    def test_duration(self) -> None:
        moments = [(0.0, 5.0), (2.0, 4.0)]
        assert curves.duration(moments, shared_clock=True) == 3.0
        assert curves.duration(moments, shared_clock=False) == 5.0

    def test_a_short_budget_still_spans_the_range(self) -> None:
        order = curves.coarse_first(curves.DEFAULT_SIZES)
        assert sorted(order) == list(curves.DEFAULT_SIZES)
        assert order[: curves.ALWAYS_MEASURED] == [4, 1 * KIB, 256 * KIB]
        assert order[3:5] == [8 * MIB, 64 * MIB]
        assert curves.coarse_first([4]) == [4]
        assert sorted(curves.coarse_first([4, 8, 12])) == [4, 8, 12]

    def test_hopeless_is_measured_no_further(self) -> None:
        found = {
            "native": points(256 * KIB, 1.0, 1 * MIB, 4.0),
            "slow": points(256 * KIB, 4.0, 1 * MIB, 17.0),
            "catching_up": points(256 * KIB, 9.0, 1 * MIB, 16.0),
        }
        assert [name for name in found if curves.hopeless(name, found)] == ["slow"]
        options = {name: {size: {} for size in (256 * KIB, MIB, 4 * MIB)} for name in found}
        reasons = curves._left_out(found, options, {})
        assert reasons["slow"] == "1 of 3 sizes (4.2 times the best)"
        assert reasons["native"] == "1 of 3 sizes (time budget)"

    def test_small_sizes_condemn_nobody(self) -> None:
        found = {"native": points(4, 1.0, 16, 1.0), "ring": points(4, 50.0, 16, 50.0)}
        assert not curves.hopeless("ring", found)

    def test_the_budget_leaves_out_the_slowest(self) -> None:
        found = {name: points(MIB, float(i + 1)) for i, name in enumerate("abc")}
        for left_s, expected in ((1000.0, "abc"), (200.0, "ab"), (100.0, "a"), (-1.0, "")):
            assert curves.affordable([*"abc"], found, 4 * MIB, left_s, {}) == [*expected]

    def test_what_a_size_is_expected_to_take(self) -> None:
        curve = points(4, 1.0, 1 * MIB, 5.0)
        assert curves._expected_s(curve, 16, {}) == 1.0
        assert curves._expected_s(curve, 4 * MIB, {}) == 20.0
        assert curves._expected_s(curve, 512 * KIB, {}) == 2.5


class TestArguments:
    def test_sizes_are_whole_floats_in_order(self) -> None:
        assert calibrating._sizes([1000, 1, 3, 1000]) == (4, 1000)
        assert calibrating._sizes(None) == curves.DEFAULT_SIZES

    def test_algorithms(self) -> None:
        # Nothing stands for those that suit the cluster.
        assert calibrating._algorithms(["all_reduce"], None) == {"all_reduce": ()}
        assert calibrating._algorithms(["broadcast", "reduce"], None) == {
            "broadcast": (),
            "reduce": (),
        }
        assert calibrating._algorithms(["all_reduce"], ["ring", "native", "ring"]) == {
            "all_reduce": ("ring", "native")
        }
        # Each collective is measured by what it has.
        assert calibrating._algorithms(["all_reduce", "broadcast"], ["ring", "mst"]) == {
            "all_reduce": ("ring", "mst"),
            "broadcast": ("mst",),
        }

    @pytest.mark.parametrize(
        ("arguments", "kind", "word"),
        [
            ({"budget_s": 0}, InvalidValueError, "budget_s"),
            ({"budget_s": float("nan")}, InvalidValueError, "budget_s"),
            ({"sizes": []}, InvalidValueError, "sizes"),
            ({"sizes": [0]}, InvalidValueError, "sizes"),
            ({"sizes": [1.5]}, InvalidValueError, "sizes"),
            ({"algorithms": []}, InvalidValueError, "algorithms"),
            ({"algorithms": ["rign"]}, UnknownNameError, "ring"),
            ({"collectives": ["all_redcue"]}, UnknownNameError, "all_reduce"),
            ({"collectives": []}, InvalidValueError, "a list of at least one of all_reduce"),
            ({"collectives": "all_reduce"}, InvalidValueError, "a list of at least one of"),
            (
                {"collectives": ["all_reduce", "broadcast"], "algorithms": ["ring"]},
                InvalidValueError,
                "at least one of broadcast: native, mst, flat_tree, be, lp",
            ),
            (
                {"collectives": ["broadcast", "reduce"], "algorithms": ["ring"]},
                UnknownNameError,
                "'ring' for broadcast, reduce; known: native, mst, flat_tree, be, lp",
            ),
        ],
    )
    def test_refusals(
        self, arguments: dict[str, Any], kind: type[SyncopateError], word: str
    ) -> None:
        with pytest.raises(kind, match=word):
            calibrating.calibrate(None, **arguments)


class TestInterference:
    def test_the_unit_computes(self) -> None:
        state = torch.random.get_rng_state()
        unit = interference.compute_unit(torch.device("cpu"))
        assert torch.equal(torch.random.get_rng_state(), state)
        units, seconds = interference._count_for(unit, 0.02)
        assert units >= 1
        assert seconds >= 0.02

    def test_loads_are_the_fastest_at_the_nearest_sizes(self) -> None:
        fit = LinearFit(a_s=0.0, b_s_per_byte=0.0)
        measured = [
            CollectiveCurve(
                collective="all_reduce",
                algorithm=name,
                points=(point(256 * KIB, small), point(2 * MIB, large)),
                fit=fit,
            )
            for name, small, large in (("native", 2.0, 3.0), ("ring", 1.0, 4.0))
        ]
        assert calibrating._loads(measured) == [
            interference.Load(256 * KIB, Recipe("all_reduce", "ring"), 1.0),
            interference.Load(2 * MIB, Recipe("all_reduce"), 3.0),
        ]
        assert calibrating._loads([]) == []

    def test_loads_are_all_reduces_as_they_were_measured(self) -> None:
        fit = LinearFit(a_s=0.0, b_s_per_byte=0.0)
        piped = CurvePoint(nbytes=256 * KIB, samples_s=(1.0,), options={"blocks": 3})
        measured = [
            CollectiveCurve(collective=name, algorithm="lp", points=(piped,), fit=fit, order=(1, 0))
            for name in ("all_reduce", "broadcast")
        ]
        found = calibrating._loads(measured)
        ran = Recipe("all_reduce", "lp", options={"blocks": 3, "order": (1, 0)})
        assert found == [interference.Load(256 * KIB, ran, 1.0)]
        assert calibrating._loads(measured[1:]) == []

"""SSD-SGD's Eqs. 2, 4 and 7 against timelines that are played."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulas.ssd_sgd import (
    Times,
    case,
    mean_iteration_s,
    saved_s,
    ssgd_iteration_s,
    steady_iteration_s,
)
from syncopate.errors import InvalidValueError
from syncopate.simulation.fluid import Collective, Piece, run
from syncopate.simulation.iteration import IDEAL
from tests.unit.simulation.workloads import play_collectives, workload

ROUNDS = 160
"""Rounds of k iterations after which a timeline has settled: times are small whole seconds."""

seconds = st.integers(0, 4).map(float)


@st.composite
def any_times(draw: st.DrawFn) -> Times:
    layers = draw(st.integers(1, 3))
    several = st.lists(seconds, min_size=layers, max_size=layers).map(tuple)
    return Times(
        forward_s=draw(seconds),
        backward_s=draw(several),
        push_s=draw(several),
        pull_s=draw(several),
        local_update_s=draw(seconds),
    )


@st.composite
def like_layers(draw: st.DrawFn) -> Times:
    layers = draw(st.integers(1, 4))
    backward_s, push_s, pull_s = ((draw(seconds),) * layers for _ in range(3))
    return Times(draw(seconds), backward_s, push_s, pull_s, draw(seconds))


def played_ssgd_s(times: Times) -> float:
    """Play an iteration that waits for all communication."""
    work = workload(list(reversed(times.backward_s)), forward_s=times.forward_s)
    messages_s = reversed(times.communication_s)
    found = [Collective(r, s) for r, s in zip(work.ready_s, messages_s, strict=True)]
    return play_collectives(work, found).iteration_s


def played_s(times: Times, period: int) -> float:
    """Play SSD-SGD's steps delay stage, Fig. 2, and return its mean iteration once settled.

    The local update after an iteration that pulls belongs to the next one, and waits for the pull.
    """
    computed_s = times.forward_s + sum(times.backward_s)
    pieces: list[Piece] = []
    messages: list[Collective] = []
    awaited: tuple[int, ...] = ()
    for iteration in range(2 * ROUNDS * period):
        pulls = iteration % period == period - 1
        ready_s = times.forward_s
        first = len(messages)
        for layer in reversed(range(len(times.backward_s))):
            ready_s += times.backward_s[layer]
            took_s = times.push_s[layer] + (times.pull_s[layer] if pulls else 0.0)
            messages.append(Collective(min(ready_s, computed_s), took_s, piece=len(pieces)))
        pieces += [Piece(computed_s), Piece(times.local_update_s, awaited)]
        awaited = tuple(range(first, len(messages))) if pulls else ()
    ends_s = run(pieces, messages, IDEAL).finishes_s[1::2]
    count = ROUNDS * period
    return (ends_s[-1] - ends_s[-1 - count]) / count


class TestEquation2:
    @given(like_layers())
    def test_exact_where_layers_are_alike(self, times: Times) -> None:
        assert ssgd_iteration_s(times) == pytest.approx(played_ssgd_s(times))

    @given(any_times())
    def test_never_too_long(self, times: Times) -> None:
        assert ssgd_iteration_s(times) <= played_ssgd_s(times) + 1e-9

    def test_a_layer_in_the_middle_makes_it_too_short(self) -> None:
        times = Times(0.0, (3.0, 1.0, 1.0), (1.0, 4.0, 0.0), (0.0, 0.0, 0.0))
        assert (ssgd_iteration_s(times), played_ssgd_s(times)) == (6.0, 7.0)


class TestEquation4:
    @settings(max_examples=60, deadline=None)
    @given(any_times(), st.integers(1, 4))
    def test_the_steady_iteration_is_the_timeline_s(self, times: Times, period: int) -> None:
        assert steady_iteration_s(times, period) == pytest.approx(played_s(times, period))

    @pytest.mark.parametrize("period", [2, 3, 5])
    def test_case_1(self, period: int) -> None:
        times = Times(2.0, (1.0,) * 3, (1.0,) * 3, (3.0,) * 3, 0.5)
        assert case(times) == 1
        # T_f + T_b + h_loc = 5.5 and T_c + h_b^L - T_f - 2 T_b - h_loc = 13 - 8.5.
        assert mean_iteration_s(times, period) == pytest.approx(5.5 + 4.5 / period)
        assert mean_iteration_s(times, period) == pytest.approx(played_s(times, period))

    @given(like_layers(), st.integers(2, 6))
    def test_case_1_holds_where_the_pushes_that_waited_are_gone(
        self, times: Times, period: int
    ) -> None:
        free_s = times.local_update_s + times.forward_s + times.backward_s[-1]
        channel = sum(times.communication_s) + times.backward_s[-1]
        if case(times) != 1 or sum(times.push_s) > free_s:
            return
        if channel >= sum(times.backward_s) + times.communication_s[0]:
            found = mean_iteration_s(times, period)
            assert steady_iteration_s(times, period) == pytest.approx(found)

    @pytest.mark.parametrize("period", [1, 2, 5])
    def test_case_2_is_short_of_what_the_channel_carries(self, period: int) -> None:
        times = Times(1.0, (1.0,) * 3, (2.0,) * 3, (2.0,) * 3, 0.5)
        assert case(times) == 2
        # S = 6, T_c = 12, T_b - h_b^L = 2.
        assert mean_iteration_s(times, period) == pytest.approx(6 + (12 + 1 - 3 - 6) / period)
        short_s = played_s(times, period) - mean_iteration_s(times, period)
        assert short_s == pytest.approx(2.0 / period)

    @pytest.mark.parametrize("period", [1, 2, 5])
    def test_case_3_does_not_depend_on_the_period(self, period: int) -> None:
        times = Times(4.0, (1.0,) * 3, (1.0,) * 3, (0.5,) * 3, 0.5)
        assert case(times) == 3
        assert mean_iteration_s(times, period) == 7.5 == played_s(times, period)

    def test_at_one_it_promises_less_than_the_channel_takes(self) -> None:
        times = Times(2.0, (1.0,) * 3, (1.0,) * 3, (3.0,) * 3, 0.5)
        assert mean_iteration_s(times, 1) == pytest.approx(10.0)
        assert played_s(times, 1) == sum(times.communication_s) == 12.0

    @given(any_times())
    def test_a_longer_period_is_never_slower(self, times: Times) -> None:
        means = [mean_iteration_s(times, period) for period in range(1, 7)]
        steady = [steady_iteration_s(times, period) for period in range(1, 7)]
        assert steady == sorted(steady, reverse=True)
        if case(times) != 2 or sum(times.pull_s) >= sum(times.push_s):
            assert means == sorted(means, reverse=True)


class TestEquation7:
    @given(any_times(), st.integers(1, 6))
    def test_is_the_difference_of_the_other_two(self, times: Times, period: int) -> None:
        halved = Times(
            times.forward_s, times.backward_s, times.push_s, times.push_s, times.local_update_s
        )
        total_s = sum(halved.communication_s)
        ssgd_s = halved.forward_s + total_s + halved.backward_s[-1]
        if case(halved) == 3:
            ssgd_s = ssgd_iteration_s(halved)
        expected = period * (ssgd_s - mean_iteration_s(halved, period))
        assert saved_s(halved, period) == pytest.approx(expected)

    def test_by_hand(self) -> None:
        first = Times(2.0, (1.0,) * 3, (1.0,) * 3, (3.0,) * 3, 0.5)
        assert saved_s(first, 3) == pytest.approx(2 * (12 - 3 + 1 - 0.5) + 2 + 3)
        second = Times(1.0, (1.0,) * 3, (2.0,) * 3, (2.0,) * 3, 0.5)
        assert saved_s(second, 3) == pytest.approx(3 * 1 + 12 + 2 * 1 + 3)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"push_s": (1.0,)}, "push_s"),
            ({"pull_s": ()}, "pull_s"),
            ({"backward_s": (), "push_s": (), "pull_s": ()}, "at least one"),
            ({"forward_s": -1.0}, "time of an iteration"),
            ({"pull_s": (1.0, float("nan"))}, "time of an iteration"),
        ],
    )
    def test_times(self, changes: dict[str, object], match: str) -> None:
        whole = {"forward_s": 1.0, "backward_s": (1.0,) * 2, "push_s": (1.0,) * 2}
        with pytest.raises(InvalidValueError, match=match):
            Times(**(whole | {"pull_s": (1.0,) * 2} | changes))

    @pytest.mark.parametrize("function", [mean_iteration_s, saved_s, steady_iteration_s])
    def test_periods(self, function) -> None:
        with pytest.raises(InvalidValueError, match="period"):
            function(Times(1.0, (1.0,), (1.0,), (1.0,)), 0)

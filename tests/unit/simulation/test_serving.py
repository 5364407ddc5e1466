"""Iterations on parameter servers: both directions at once, part by part, by priority."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.artifacts.workload import Workload
from syncopate.delay import Delay
from syncopate.simulation.fluid import Collective, Piece, run
from syncopate.simulation.iteration import IDEAL, play_period, play_several, play_traffic
from syncopate.simulation.serving import updated_apart
from syncopate.simulation.traffic import MOST_PARTS, Pull, Traffic, parts_at_servers
from syncopate.units import MIB
from tests.unit.simulation.workloads import times_s, workload, workloads


def served(work: Workload, message_s: list[float], parts: int = 1) -> Traffic:
    """Return traffic that sends each gradient by itself, and its weights back in the same time."""
    both = list(zip(work.ready_s, work.needed_s, message_s, strict=True))
    return Traffic(
        pushes=tuple(Collective(ready_s, lasts_s) for ready_s, _, lasts_s in both),
        pulls=tuple(Pull(needed_s, lasts_s, parts=parts) for _, needed_s, lasts_s in both),
        update_s=work.update_s,
        served=True,
    )


@st.composite
def served_traffics(draw: st.DrawFn, work: Workload) -> Traffic:
    count = len(work.tensors)
    return served(work, [draw(times_s) for _ in range(count)], draw(st.integers(1, 3)))


class TestKernel:
    def test_what_is_after_another_waits_for_its_end_on_its_own_link(self) -> None:
        up = Collective(0.0, 4.0, channel=0)
        down = Collective(0.0, 3.0, channel=1, link=1, after=(0,))
        beside = Collective(0.0, 5.0, channel=2, link=1)
        found = run([Piece(1.0)], [up, down, beside], IDEAL)
        # Alone on its link, `beside` has a second left when `down` comes and shares with it.
        assert found.ends_s == (4.0, 8.0, 6.0)
        assert found.starts_s == (0.0, 4.0, 0.0)

    def test_a_lower_turn_goes_first_whatever_was_under_way(self) -> None:
        late = Collective(0.0, 4.0, channel=0, turn=1)
        first = Collective(1.0, 2.0, channel=1, turn=0)
        other = Collective(0.0, 4.0, channel=2, turn=1, link=1)
        found = run([Piece(1.0)], [late, first, other], IDEAL)
        assert found.ends_s == (6.0, 3.0, 4.0)

    def test_what_ends_as_another_comes_is_not_held_up_by_rounding(self) -> None:
        for begins_s in (0.0, 0.1, 0.7, 1.3, 5.0363098221889135):
            late = Collective(begins_s + 0.1, 1.78, channel=0, turn=1)
            first = Collective(begins_s + 1.88, 2.5, channel=1)
            found = run([Piece(9.0)], [late, first], IDEAL)
            assert found.ends_s == pytest.approx((begins_s + 1.88, begins_s + 4.38))

    def test_a_start_up_takes_no_turn(self) -> None:
        late = Collective(0.0, 5.0, startup_s=1.0, channel=0, turn=1)
        first = Collective(0.0, 3.0, startup_s=2.0, channel=1)
        # One second each alone, one together, of which `first` has the link.
        assert run([Piece(0.0)], [late, first], IDEAL).ends_s == (6.0, 3.0)


class TestSynchronous:
    def test_weights_come_back_while_gradients_still_go(self) -> None:
        work = workload([0.0, 2.0], forward_s=1.0)
        found = play_traffic(work, served(work, [4.0, 4.0]))
        # From the start of backward: the last layer's gradient 0 to 2, the first one's 2 to 6, the
        # rest of the last one's 6 to 8. Weights of the first layer 6 to 10, of the last 10 to 14,
        # where forward, which began at 10, has waited for 3 s.
        backward_s = found.backward_end_s - 2
        assert found.starts_s == pytest.approx([backward_s, backward_s + 2])
        assert found.ends_s == pytest.approx([backward_s + 8, backward_s + 6])
        assert found.iteration_s == pytest.approx(14.0)
        # The same from the end of backward, where the step ends too. The last layer's may begin
        # when they are there, though it is not their turn.
        assert found.pull_starts_s == pytest.approx([6.0, 4.0])
        assert found.pull_ends_s == pytest.approx([12.0, 8.0])
        assert [b - a for a, b in found.waits_s] == pytest.approx([8.0, 3.0])

    @given(st.data())
    def test_the_second_iteration_is_as_all_after_it(self, data: st.DataObject) -> None:
        work = data.draw(workloads())
        traffic = data.draw(served_traffics(work))
        several = play_several(work, traffic, IDEAL, 4)
        assert several[0].pull_ends_s == ()
        for one in several[2:]:
            assert one.iteration_s == pytest.approx(several[1].iteration_s, rel=0.02, abs=1e-6)

    @given(st.data())
    def test_no_direction_carries_more_than_it_can_and_nothing_overtakes_its_push(
        self, data: st.DataObject
    ) -> None:
        work = data.draw(workloads())
        traffic = data.draw(served_traffics(work))
        before, after = play_several(work, traffic, IDEAL, 2)
        pushed_s = sum(push.duration_s for push in traffic.pushes)
        computed_s = work.forward_s + work.backward_s
        assert after.iteration_s >= max(pushed_s, computed_s) - 1e-9
        # Each direction is busy once for all messages, and an update.
        most_s = computed_s + 2 * pushed_s + work.update_s
        assert after.iteration_s <= most_s + 1e-6
        for end_s, pulled_s in zip(before.ends_s, after.pull_ends_s, strict=True):
            assert pulled_s + before.iteration_s >= end_s - 1e-6
        assert after.push_waits_s == ()

    def test_more_parts_overlap_more(self) -> None:
        work = workload([1.0], forward_s=1.0)
        times_s = [play_traffic(work, served(work, [8.0], n)).iteration_s for n in (1, 2, 4)]
        # The last part goes up when all others are there, and comes down alone.
        assert times_s == pytest.approx([2 + 8 + 8, 2 + 8 + 4, 2 + 8 + 2])


class TestDelayed:
    @pytest.mark.parametrize("parts", [1, 4])
    @pytest.mark.parametrize("push_s", [1.0, 2.5, 3.5, 6.0])
    @pytest.mark.parametrize("k", [2, 3, 5])
    def test_one_bucket_by_hand(self, k: int, push_s: float, parts: int) -> None:
        work = workload([2.0], forward_s=1.0)
        traffic = served(work, [push_s], parts)
        computed_s = work.forward_s + work.backward_s
        # Pushed as a step ends, and the next step ends no sooner than that push; pulled in the
        # first of k steps, for the forward after the second.
        ready_s = [0.0]
        for step in range(1, 40 * k + 1):
            begins_s = ready_s[-1]
            if (step - 2) % k == 0 and step > 1:
                begins_s = max(begins_s, ready_s[-2] + push_s * (1 + 1 / parts))
            ready_s.append(max(begins_s + computed_s, ready_s[-1] + push_s))
        expected_s = ready_s[-1] - ready_s[-1 - k]
        period = play_period(work, traffic, Delay(k=k))
        assert sum(one.iteration_s for one in period) == pytest.approx(expected_s)
        assert [bool(one.pull_ends_s) for one in period] == [True] + [False] * (k - 1)

    @pytest.mark.parametrize("k", [1, 3])
    @pytest.mark.parametrize("message_s", [(1.0, 3.0), (6.0, 1.0), (1.0, 6.0), (3.0, 6.0)])
    def test_iterations_that_alternate_count_in_pairs(
        self, message_s: tuple[float, float], k: int
    ) -> None:
        work = workload([1.0, 2.0], forward_s=2.0)
        traffic, delay = served(work, list(message_s)), Delay(k=k)
        period = play_period(work, traffic, delay)
        several = play_several(work, traffic, IDEAL, 24 * k, delay)[-12 * k :]
        mean_s = sum(one.iteration_s for one in several) / len(several)
        assert sum(one.iteration_s for one in period) / len(period) == pytest.approx(mean_s)

    def test_backward_waits_for_the_push_before_where_the_gradient_is_ready(self) -> None:
        work = workload([1.0, 1.0], forward_s=1.0)
        traffic = served(work, [3.0, 3.0])
        period = play_period(work, traffic, Delay(k=4))
        waited_s = [sum(b - a for a, b in one.push_waits_s) for one in period]
        assert all(one.waits_s == () for one in period[2:])
        # Six seconds of pushes a step, three of computation.
        assert waited_s[2:] == pytest.approx([3.0, 3.0])
        assert sum(one.iteration_s for one in period) == pytest.approx(4 * 6.0)


def test_a_bucket_travels_in_as_many_parts_as_a_server_has_slices_of_it() -> None:
    assert parts_at_servers(100 * MIB, None) == 1
    assert parts_at_servers(0, 2) == 1
    assert parts_at_servers(8 * MIB, 2) == 1
    assert parts_at_servers(8 * MIB + 4, 2) == 2
    assert parts_at_servers(1000 * MIB, 2) == MOST_PARTS


def test_servers_update_weights_of_each_size_in_their_share_of_the_time() -> None:
    pushes = (Collective(0.0, 1.0), Collective(0.0, 3.0))
    pulls = (Pull(0.0, 1.0, startup_s=0.25), Pull(0.0, 3.0))
    found = updated_apart(Traffic(pushes=pushes, pulls=pulls, update_s=2.0, served=True))
    assert found.update_s == 0
    assert [pull.duration_s for pull in found.pulls if pull] == [1.5, 4.5]
    assert [pull.startup_s for pull in found.pulls if pull] == [0.75, 1.5]


def test_messages_that_take_no_time_share_an_update_equally() -> None:
    pushes, pulls = (Collective(0.0, 0.0),) * 2, (Pull(0.0, 0.0),) * 2
    found = updated_apart(Traffic(pushes=pushes, pulls=pulls, update_s=2.0, served=True))
    assert [pull.duration_s for pull in found.pulls if pull] == [1.0, 1.0]

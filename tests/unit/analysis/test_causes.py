"""What iterations would gain without a cause, against the same training made without it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from syncopate.analysis.causes.counterfactuals import Counterfactuals
from syncopate.analysis.causes.explanation import explanation
from syncopate.analysis.evidence.links import RECORDED, Carried, Entry, SlowLinks
from syncopate.analysis.evidence.servers import Servers
from syncopate.analysis.replay import Replay
from syncopate.artifacts.timeline import Span, Timeline
from syncopate.errors import InvalidValueError
from syncopate.planning.planner import make_plan
from syncopate.reports.explanation import told
from syncopate.simulation import simulate
from tests.unit import examples
from tests.unit.analysis.made import UNDISTURBED_S, made

SLOW = {"forward_s": 6.0, "backward_s": 12.0, "update_s": 3.0}
COLLECTS = {"backward_s": 14.0, "pause": ("garbage collection", 10.0)}


def of(rank, fields):
    return lambda r, i: fields if r == rank else {}


def once(fields):
    return lambda r, i: fields if (r, i) == (1, 3) else {}


def at(where, fields):
    """Of each rank, in the iterations given for it."""
    return lambda r, i: fields if i in where.get(r, ()) else {}


SLEEP = {"backward_s": 14.0, "ready": (12 / 14, 1.0)}
"""10 s more in the first half of backward: what bucket 0 waits for comes as much later."""

STANDS = {"input_s": 6.0, "before": "evaluation"}
EVERYBODY = dict.fromkeys(range(4), (2, 4))

CASES = {
    "slow": (of(1, SLOW), ("compute", (1,), ())),
    "a sleep in every backward": (of(2, SLEEP), ("compute", (2,), ())),
    "a sleep in one half": (at({2: (2, 4)}, SLEEP), ("pause", (2,), (2, 4))),
    "a checkpoint": (
        at({0: (2, 4)}, {"input_s": 6.0, "before": "checkpoint"}),
        ("checkpoint", (0,), (2, 4)),
    ),
    "a first run's planning": (
        at(EVERYBODY, {"input_s": 6.0, "before": "self-planning"}),
        ("self-planning", (0, 1, 2, 3), (2, 4)),
    ),
    "an evaluation": (at(EVERYBODY, STANDS), ("evaluation", (0, 1, 2, 3), (2, 4))),
    "nobody says what": (at(EVERYBODY, {"input_s": 6.0}), ("pause", (0, 1, 2, 3), (2, 4))),
    "collections in turn": (
        at({0: (1, 5), 1: (2,), 2: (3,), 3: (4,)}, COLLECTS),
        ("garbage collection", (0, 1, 2, 3), (1, 2, 3, 4, 5)),
    ),
    "input of one": (of(2, {"input_s": 5.0}), ("input", (2,), ())),
    "input of all": (lambda r, i: {"input_s": 5.0}, ("input", (), ())),
    "a sleep": (once({"backward_s": 14.0}), ("pause", (1,), (3,))),
    "a late input": (once({"input_s": 12.0}), ("pause", (1,), (3,))),
    "collection": (once(COLLECTS), ("garbage collection", (1,), (3,))),
    "link": (of(3, {"tail_s": 3.0}), ("link", (3,), ())),
    "congestion": (
        lambda r, i: {"transfers_s": (10.0, 20.0)} if i == 3 else {},
        ("congestion", (), (3,)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gain_is_what_the_cause_cost(case):
    """Without it an iteration takes 9 s, of which 2 s of transfers are exposed."""
    change, expected = CASES[case]
    timeline = made(4, 6, change)
    found = explanation(timeline)
    assert found.abstains == ()
    assert found.error < 1e-9
    causes = {(one.kind, one.ranks, one.iterations): one.gain_s for one in found.causes}
    assert causes == {
        expected: pytest.approx(found.iteration_s - UNDISTURBED_S),
        ("transfers", (), ()): pytest.approx(2.0),
    }
    assert (found.even_s, found.bound_s) == (pytest.approx(UNDISTURBED_S), pytest.approx(7.0))


RING = {(rank, (rank + 1) % 4): 10**8 for rank in range(4)}
"""Bytes from each rank to the next."""


def carried(*slow, nbytes=RING):
    """What connections of four ranks carried, those to and from slow hosts at a tenth."""
    entries = {}
    for rank in range(4):
        busy = tuple(
            Carried(0, peer, count, count / (1e7 if {rank, peer} & set(slow) else 1e8))
            for (sender, peer), count in nbytes.items()
            if sender == rank
        )
        entries[rank] = Entry(f"host{rank}", {0: 10}, busy)
    nothing = {rank: Entry(f"host{rank}", {0: 0}) for rank in range(4)}
    return {RECORDED: msgspec.json.encode({"before": nothing, "after": entries}).decode()}


def test_a_slow_link_is_known_by_what_kernels_counted():
    """All ranks have their messages equally late: ten times as late as without it."""
    timeline = made(4, 6, lambda r, i: {"transfers_s": (10.0, 20.0)})
    assert [one.kind for one in explanation(timeline).causes] == ["transfers"]
    first, second = explanation(replace(timeline, metadata=carried(2))).causes
    assert (first.kind, first.ranks) == ("link", (2,))
    assert (first.own, first.others) == (pytest.approx(1e7), pytest.approx(1e8))
    assert first.gain_s == pytest.approx(35.0 - UNDISTURBED_S)
    assert (second.kind, second.gain_s) == ("transfers", pytest.approx(2.0))
    assert [one.kind for one in explanation(replace(timeline, metadata=carried())).causes] == [
        "transfers"
    ]
    with pytest.raises(InvalidValueError, match="what connections carried, as JSON"):
        explanation(replace(timeline, metadata={RECORDED: "{}"}))


def test_a_host_is_cleared_by_links_that_carry_half_of_what_others_do_with_what_is_sent_twice():
    timeline = made(4, 6, lambda r, i: {"transfers_s": (10.0, 20.0)})
    nbytes = {(0, 1): 10**8, (1, 0): 10**8, (2, 3): 101 * 10**6, (3, 2): 10**8, (3, 1): 5 * 10**7}
    first, *_ = explanation(replace(timeline, metadata=carried(2, nbytes=nbytes))).causes
    assert (first.kind, first.ranks) == ("link", (2,))


def test_of_two_hosts_no_rank_has_the_slow_link_by_its_ends():
    """In a ring over a slow link the rank before it ends a round later."""
    timeline = made(4, 6, lambda r, i: {"transfers_s": (10.0, 20.0), "tail_s": 5.0 * (r == 1)})
    assert ("link", (1,)) in [(one.kind, one.ranks) for one in explanation(timeline).causes]
    found = explanation(replace(timeline, metadata={"hosts": "2"}))
    assert [(one.kind, one.ranks) for one in found.causes] == [("transfers", ())]


def test_a_forward_that_is_once_far_shorter_hides_no_slow_rank():
    """It makes no short batch, for backward is as long as ever."""

    def change(rank, iteration):
        pace = 1 + 0.1 * ((rank + iteration) % 3)
        usual = {"forward_s": 2.0 * pace, "backward_s": (14.0 if rank == 2 else 4.0) * pace}
        return usual | ({"forward_s": 0.1} if (rank, iteration) == (2, 6) else {})

    first, *_ = explanation(made(4, 8, change)).causes
    assert (first.kind, first.ranks) == ("compute", (2,))


def test_pauses_that_come_and_go_on_any_rank_are_blamed_on_nobody():
    where = {0: (1,), 1: (3, 4), 2: (2,), 3: (5,)}
    found = explanation(made(4, 9, at(where, {"backward_s": 5.0})))
    assert [one.kind for one in found.causes] == ["transfers"]
    assert found.noise_s == pytest.approx(5 / 8)
    much = explanation(made(4, 9, at(where, {"backward_s": 14.0})))
    assert much.causes == ()
    (said,) = much.abstains
    assert "41% of an iteration goes to pauses now on one rank and now on another" in said


def test_who_is_surely_slow_is_named_in_noise():
    where = {0: (1,), 1: (3, 4), 2: (2,), 3: (5,)}

    def change(rank, iteration):
        noisy = 2.0 * (iteration in where[rank])
        return {"forward_s": 6.0 if rank == 1 else 2.0, "backward_s": 4.0 + noisy}

    first = explanation(made(4, 9, change)).causes[0]
    assert (first.kind, first.ranks, first.lane) == ("compute", (1,), "forward")


def test_iterations_that_a_rank_lacks_are_left_out():
    timeline = made(2, 9, lambda r, i: {"input_s": 9.0} if i == 1 else {})
    spans = tuple(s for s in timeline.spans if (s.rank, s.iteration) not in {(0, 1), (1, 8)})
    found = explanation(replace(timeline, spans=spans))
    assert found.between == (2, 7)
    assert (found.iterations, found.iteration_s) == (5, pytest.approx(UNDISTURBED_S))


def test_two_slow_ranks_are_one_cause():
    """To mend one of them gains nothing."""
    found = explanation(made(4, 6, lambda r, i: SLOW if r in {1, 2} else {}))
    first = found.causes[0]
    assert (first.kind, first.ranks, first.gain_s) == ("compute", (1, 2), pytest.approx(14.0))


def test_of_a_slow_and_a_slower_rank_each_has_its_own_gain():
    """Alone they give 8 s and 0, after the other 10 s and 2 s: each has the mean of the two."""
    found = explanation(
        made(4, 6, lambda r, i: {"forward_s": 12.0 if r == 1 else 4.0} if r in {1, 2} else {})
    )
    gains = {one.ranks: one.gain_s for one in found.causes if one.kind == "compute"}
    assert gains == {(1,): pytest.approx(9.0), (2,): pytest.approx(1.0)}


@pytest.mark.parametrize("updates", [True, False])
def test_a_replay_without_a_change_is_the_recording(updates):
    def mixed(rank, iteration):
        return {
            "forward_s": 2.0 + rank / 3 + iteration % 2,
            "input_s": 0.25 * (iteration == rank),
            "tail_s": 0.1 * rank,
            "transfers_s": (1.0 + iteration % 3, 2.0),
        }

    replay = Replay(made(3, 7, mixed, updates=updates))
    assert replay.iteration_s() == pytest.approx(replay.recorded_s, rel=1e-12)


@pytest.mark.parametrize("exchange", ["allreduce", "sharded", "rooted"])
@pytest.mark.parametrize("channels", [1, 2])
def test_simulated_trainings_are_replayed_exactly(exchange, channels):
    where, model = examples.cluster(), examples.workload()
    plan = make_plan(model, where, "wfbp", exchange=exchange, channels=channels)
    replay = Replay(simulate(model, plan, where, iterations=5))
    assert replay.iteration_s() == pytest.approx(replay.recorded_s, rel=1e-9)


def test_faster_transfers_start_no_earlier_than_their_gradients_are_there():
    """Both buckets are ready at the end of backward; freed transfers leave computation alone."""
    found = explanation(made(2, 5, lambda r, i: {"ready": (1.0, 1.0)}))
    (cause,) = found.causes
    assert (cause.kind, cause.gain_s) == ("transfers", pytest.approx(3.0))


def test_ranks_that_leave_one_message_late_and_come_late_to_the_next_are_transferring():
    """Of each message another rank's part takes twice as long; no rank computes meanwhile."""
    count = 24

    def takes(rank: int, _: int) -> dict[str, object]:
        transfers_s = tuple(1.0 + ((bucket + rank) % 4 == 0) for bucket in range(count))
        return {"ready": (1.0,) * count, "transfers_s": transfers_s}

    found = explanation(made(4, 6, takes, nbytes=(100,) * count))
    assert (found.abstains, [one.kind for one in found.causes]) == ((), ["transfers"])
    assert found.causes[0].gain_s > 0.5 * found.iteration_s


def test_no_bound_is_above_what_was_recorded():
    """Ranks that never wait for each other, of which one begins late and computes without gaps."""
    spans = []
    for rank, begin_s, gap_s in ((0, 0.0, 2.0), (1, 15.0, 0.0)):
        for iteration in range(6):
            start_s = begin_s + iteration * (1.0 + gap_s)
            for lane, at_s in (("forward", start_s), ("backward", start_s + 0.5 + gap_s)):
                what = {"name": lane, "lane": lane, "rank": rank, "iteration": iteration}
                spans.append(Span(**what, start_s=at_s, end_s=at_s + 0.5))
    found = explanation(Timeline(name="t", source="measured", world_size=2, spans=spans))
    assert found.iteration_s == pytest.approx(1.0)
    assert found.bound_s <= found.even_s <= found.replayed_s


def test_thin_evidence_is_refused_with_what_to_record():
    (few,) = explanation(made(2, 2, of(1, SLOW))).abstains
    assert "2 iterations do not tell" in few
    assert "record at least 4" in few
    one = made(2, 5)
    alone = replace(one, spans=tuple(s for s in one.spans if s.lane not in {"push", "wait"}))
    assert any("no push or pull is recorded" in said for said in explanation(alone).abstains)
    lonely = replace(one, spans=tuple(s for s in one.spans if s.rank == 0))
    assert any("nothing is recorded of ranks 1" in said for said in explanation(lonely).abstains)
    assert explanation(lonely).causes == ()


def test_a_replay_that_is_far_off_explains_nothing():
    """Two models train at once on one rank: the replay has them one after the other."""
    spans = tuple(
        Span(
            name=lane,
            lane=lane,
            rank=0,
            start_s=11.0 * i + begin,
            end_s=11.0 * i + begin + 10.0,
            iteration=i,
        )
        for i in range(5)
        for begin, lane in enumerate(("forward", "backward"))
    )
    timeline = Timeline(name="two models", source="measured", world_size=1, spans=spans)
    found = explanation(timeline)
    assert found.error > 0.5
    assert found.causes == ()
    assert "overlaps itself" in found.abstains[0]


def test_gains_below_what_clocks_can_tell_are_left_out():
    timeline = made(4, 6, of(1, {"forward_s": 2.5}))
    assert any(one.kind == "compute" for one in explanation(timeline).causes)
    unsure = replace(timeline, metadata={"clock_error_s": "0.6"})
    assert not any(one.kind == "compute" for one in explanation(unsure).causes)


def test_one_rank_may_wait_for_input():
    found = explanation(made(1, 5, lambda r, i: {"input_s": 3.0}))
    assert ("input", 3.0) in [(c.kind, pytest.approx(c.gain_s)) for c in found.causes]


def test_a_server_has_its_name():
    timeline = replace(made(2, 5), metadata={"exchange": "served"})
    assert [one.kind for one in explanation(timeline).causes] == ["server"]


@pytest.mark.parametrize(("period", "warm_up"), [(1, 0), (3, 0), (3, 6)])
def test_who_pulls_weights_seldom_is_not_told_to_begin_with_it(period, warm_up):
    timeline = replace(made(2, 20), metadata={"exchange": "served"})
    pulls = tuple(
        replace(span, lane="pull")
        for span in timeline.spans
        if span.lane == "push" and (span.iteration < warm_up or span.iteration % period == 0)
    )
    found = explanation(replace(timeline, spans=(*timeline.spans, *pulls)))
    assert found.pull_period == period
    (words,) = [told(cause, found) for cause in found.causes if cause.kind == "server"]
    assert ("weights pulled every k-th step" in words["fix"]) == (period == 1)
    assert ("pulled more seldom than in one of 3 steps" in words["fix"]) == (period == 3)


def test_a_timeline_without_computation_is_refused():
    push = Span(name="bucket 0", lane="push", rank=0, start_s=0.0, end_s=1.0)
    for spans in ((), (push,)):
        timeline = Timeline(name="empty", source="measured", world_size=1, spans=spans)
        with pytest.raises(InvalidValueError, match="with computation in at least one iteration"):
            explanation(timeline)


@pytest.mark.parametrize(("longest_s", "paused"), [(8.0, []), (12.0, [(4, "forward")])])
def test_a_pause_exceeds_the_usual_by_four_times_the_spread(longest_s, paused):
    """Forward takes 5 s, give or take 1: a spread of 1.48 s."""
    forward_s = [5.0, 4.0, 6.0, 5.0, longest_s, 4.0, 6.0, 5.0, 5.0]
    replay = Replay(made(2, len(forward_s), lambda r, i: {"forward_s": forward_s[i]}))
    found = Counterfactuals(replay, SlowLinks(), Servers((), replay))
    for rank in range(2):
        assert found.unusual(rank) == paused


@pytest.mark.parametrize("text", ["", "soon", "nan", "-1"])
def test_a_damaged_error_of_clocks_is_refused(text):
    with pytest.raises(InvalidValueError, match=r"clock_error_s.*a number of seconds >= 0"):
        explanation(replace(made(4, 6), metadata={"clock_error_s": text}))


def test_clocks_that_nothing_compares_are_said_to_be_so():
    """As of workers on several hosts whose servers wrote no files."""
    timeline = replace(made(4, 6), metadata={"clock_error_s": "inf"})
    found = explanation(timeline)
    assert Replay(timeline).clocks_off_s == 0.0
    assert (found.causes, found.replayed_s) == ((), explanation(made(4, 6)).replayed_s)
    assert "nothing says how far the clocks of hosts are apart" in found.abstains[0]

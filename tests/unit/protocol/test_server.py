"""One server's machine: what it refuses, counts and asks for."""

from __future__ import annotations

import pytest

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import SGD, Adam, Compensation, Rules, Updater
from syncopate.protocol.server import Kept, Seat, ServerMachine
from syncopate.protocol.slice import Position

SLICES = (Slice(0, "a", "float32", 0, 2), Slice(3, "b", "float32", 0, 4))
SIZES = {0: 8, 3: 16}


def _server(rules=None, workers=2, *, durable=False, kept=None, limits=None, greeted=True):
    tokens = tuple(f"t{rank}" for rank in range(workers))
    seat = Seat(msg.Roster("run", 0, ("tcp://s",), tokens), "boot", durable)
    machine = ServerMachine(seat, limits or Limits(), kept)
    for rank in range(workers if greeted else 0):
        machine.receive(b"p%d" % rank, msg.Hello("run", rank, tokens[rank]), None)
        machine.receive(b"p%d" % rank, msg.Declare("d", rules or Rules(), SLICES), None)
    return machine


def _push(machine, worker, key, sequence, lr=None):
    return machine.receive(b"p%d" % worker, msg.Push(key, sequence, lr), SIZES[key])


def _pull(machine, worker, key, after, *, request=1, priority=0):
    return machine.receive(b"p%d" % worker, msg.Pull(key, after, request, priority), None)


def _of(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def _acks(actions):
    return {
        a.to: (a.message.received, a.message.done)
        for a in _of(actions, act.Send)
        if isinstance(a.message, msg.Ack)
    }


def test_an_update_waits_for_all_workers_and_adds_in_their_order():
    machine = _server(workers=3)
    _push(machine, 0, 0, 0)
    assert _of(_push(machine, 2, 0, 1), act.Update) == []
    assert _of(_push(machine, 0, 0, 1, lr=0.5), act.Update) == []
    assert _of(_pull(machine, 1, 0, 0), act.Answer)[0].message == msg.Weights(0, 0, 1)
    assert _pull(machine, 2, 0, 1, request=7, priority=4) == []
    found = _push(machine, 1, 0, 1, lr=0.25)
    assert _of(found, act.Update) == [act.Update(0, 1, ((0, 1), (1, 1), (2, 1)), 0.5, None)]
    assert _of(found, act.Answer) == [act.Answer(b"p2", msg.Weights(0, 1, 7), 4, None)]
    assert _acks(found) == {b"p0": (1, 1), b"p1": (1, 1), b"p2": (1, 1)}


def test_a_push_that_came_before_is_acknowledged_again_and_counted():
    machine = _server()
    _push(machine, 0, 0, 0)
    _push(machine, 0, 0, 1)
    assert _push(machine, 0, 0, 1) == [act.Send(b"p0", msg.Ack(0, 1, 0), msg.SOON)]
    assert _push(machine, 0, 0, 3) == [act.Send(b"p0", msg.Ack(0, 1, 0), msg.SOON)]
    assert machine.refused == {msg.REPLAYED: 1, msg.EARLY: 1}


def test_a_worker_has_no_more_pushes_here_than_its_window():
    machine = _server(Rules(window=2))
    for sequence in range(3):
        assert _of(_push(machine, 0, 0, sequence), act.Stage)
    assert _of(_push(machine, 0, 0, 3), act.Stage) == []
    assert machine.refused == {msg.EARLY: 1}


@pytest.mark.parametrize(
    ("message", "size", "kind"),
    [
        (msg.Push(0, 1), None, msg.MALFORMED),
        (msg.Pull(0, 1, 1), 4, msg.MALFORMED),
        (msg.Push(0, 1), 7, msg.WRONG_SIZE),
        (msg.Push(1, 1), 8, msg.UNKNOWN),
        (msg.Hello("other", 0, "t0"), None, msg.OTHER_RUN),
        (msg.Hello("run", 0, "t1"), None, msg.OTHER_RUN),
        (msg.Hello("run", 9, "t0"), None, msg.OTHER_RUN),
        (msg.Heartbeat("t0"), None, msg.MALFORMED),
    ],
)
def test_what_does_not_fit_is_refused_and_counted(message, size, kind):
    machine = _server()
    found = machine.receive(b"p0", message, size)
    assert all(isinstance(a, act.Send) and isinstance(a.message, msg.Refused) for a in found)
    assert machine.refused == {kind: 1}


def test_who_did_not_say_hello_is_asked_to_and_served_nothing():
    machine = _server()
    assert machine.receive(b"x", msg.Pull(0, 0, 1), None) == [act.Send(b"x", msg.HelloWanted())]
    assert machine.receive(b"x", msg.Push(0, 1), 8) == [act.Send(b"x", msg.HelloWanted())]
    assert machine.refused == {msg.UNKNOWN: 2}


@pytest.mark.parametrize("hello", [msg.Hello("old", 0, "t0"), msg.Hello("run", 0, "x")])
def test_strangers_are_not_told_the_run(hello):
    tokens = ("t0",)
    machine = ServerMachine(Seat(msg.Roster("secret run", 0, ("s",), tokens), "boot"), Limits())
    (answer,) = machine.receive(b"x", hello, None)
    assert isinstance(answer.message, msg.Refused)
    assert "secret" not in answer.message.reason


def test_who_did_not_declare_is_asked_to():
    machine = _server(greeted=False)
    machine.receive(b"p0", msg.Hello("run", 0, "t0"), None)
    assert machine.receive(b"p0", msg.Pull(0, 0, 1), None) == [act.Send(b"p0", msg.HelloWanted())]


def test_first_values_may_bring_what_the_optimizer_remembers():
    machine = _server(Rules(optimizer=Adam()))
    state = ("steps", "mean", "square")
    begin = msg.Begin(0, 0, None, state)
    found = machine.receive(b"p0", begin, 8 + 8 + 8 + 8)  # an integer and three times two floats
    assert _of(found, act.Initialise) == [act.Initialise(0, 0, state)]
    assert _of(_pull(machine, 1, 0, 0), act.Answer)[0].message == msg.Weights(0, 0, 1)


@pytest.mark.parametrize(
    ("begin", "nbytes", "kind"),
    [
        (msg.Begin(0, 0, None, ("momentum",)), 16, msg.MALFORMED),
        (msg.Begin(0, 0, None, ("mean",)), 8, msg.WRONG_SIZE),
        (msg.Begin(0, 1, None, ("mean",)), 16, msg.MALFORMED),
    ],
)
def test_state_that_does_not_fit_is_refused(begin, nbytes, kind):
    machine = _server(Rules(optimizer=Adam()))
    assert _of(machine.receive(b"p0", begin, nbytes), act.Stage) == []
    assert machine.refused == {kind: 1}


def test_state_is_pulled_with_the_weights_it_belongs_to():
    machine = _server(Rules(optimizer=SGD(lr=1.0, momentum=0.9)), workers=1)
    _push(machine, 0, 0, 0)
    assert _of(machine.receive(b"p0", msg.PullState(0, 1, 5), None), act.Answer) == []
    found = _of(_push(machine, 0, 0, 1), act.Answer)
    assert found == [act.Answer(b"p0", msg.State(0, 1, 5), 0, None)]


def test_state_that_no_frame_may_hold_is_refused_in_words():
    limits = Limits(payload_bytes=20, slice_bytes=16)
    machine = _server(Rules(optimizer=SGD(lr=1.0, momentum=0.9)), workers=1, limits=limits)
    _push(machine, 0, 3, 0)
    (answer,) = machine.receive(b"p0", msg.PullState(3, 0, 5), None)
    assert "b with the optimizer's state in 32 bytes; at most 20" in answer.message.reason


def test_what_a_worker_asked_before_it_left_is_no_strangers_message():
    machine = _server()
    machine.left(1)
    machine.receive(b"p1", msg.Query(0, 1), None)
    assert machine.refused == {}
    machine.receive(b"other", msg.Query(0, 1), None)
    assert machine.refused == {msg.UNKNOWN: 1}


def test_a_worker_on_a_new_connection_leaves_the_old_one():
    machine = _server()
    found = machine.receive(b"new", msg.Hello("run", 0, "t0"), None)
    assert found == [act.Forget(b"p0"), act.Send(b"new", msg.Welcome("boot", False))]
    assert machine.receive(b"p0", msg.Query(0, 1), None) == [act.Send(b"p0", msg.HelloWanted())]


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (msg.Declare("d", Rules(mode="asgd"), SLICES), "mode 'asgd', and another worker 'ssgd'"),
        (msg.Declare("other", Rules(), SLICES), "other tensors"),
    ],
)
def test_workers_that_do_not_agree_end_the_job(declare, words):
    fail = _server().receive(b"p1", declare, None)[0]
    assert words in fail.reason
    assert fail.ranks == (1,)


def test_a_slice_that_is_too_large_ends_the_job():
    limits = Limits(payload_bytes=10, slice_bytes=10)
    machine = _server(limits=limits, greeted=False)
    machine.receive(b"p0", msg.Hello("run", 0, "t0"), None)
    fail = machine.receive(b"p0", msg.Declare("d", Rules(), SLICES), None)[0]
    assert "a slice of 16 bytes; at most 10 (payload_bytes)" in fail.reason


def test_a_slice_of_a_group_that_the_rules_have_not_ends_the_job():
    machine = _server(greeted=False)
    machine.receive(b"p0", msg.Hello("run", 0, "t0"), None)
    declare = msg.Declare("d", Rules(groups=(Adam(),)), (Slice(0, "a", "float32", 0, 2, None, 2),))
    assert (
        "a slice of group 2; the last one is 1" in machine.receive(b"p0", declare, None)[0].reason
    )


def test_each_group_has_state_of_its_own():
    machine = _server(greeted=False, workers=1)
    machine.receive(b"p0", msg.Hello("run", 0, "t0"), None)
    slices = (SLICES[0], Slice(3, "b", "float32", 0, 4, None, 1))
    machine.receive(b"p0", msg.Declare("d", Rules(groups=(Adam(),)), slices), None)
    machine.receive(b"p0", msg.Begin(0, 0, None, ("mean",)), 16)
    assert machine.refused == {msg.MALFORMED: 1}
    assert _of(machine.receive(b"p0", msg.Begin(3, 0, None, ("mean",)), 32), act.Initialise)


def test_a_narrowed_push_has_fewer_bytes_and_first_values_have_all():
    machine = _server(Rules(push_dtype="int8"), workers=1)
    assert _of(machine.receive(b"p0", msg.Push(3, 0), 16), act.Stage)
    assert _of(machine.receive(b"p0", msg.Push(3, 1), 8), act.Stage)  # a scale and 4 elements
    machine.receive(b"p0", msg.Push(3, 2), 16)
    assert machine.refused == {msg.WRONG_SIZE: 1}


def test_a_lost_worker_ends_the_job_or_not_as_the_rules_say():
    fail = _server().lost(1, 6.0)[0]
    assert "worker 1 was lost (silent for 6.0 s)" in fail.reason
    assert fail.ranks == (1,)
    machine = _server(Rules(on_worker_loss="continue"))
    for key in SIZES:
        _push(machine, 0, key, 0)
        _push(machine, 0, key, 1)
    found = machine.lost(1, 6.0)
    assert _of(found, act.Update) == [
        act.Update(key, 1, ((0, 1),), None, None) for key in sorted(SIZES)
    ]
    refused = machine.receive(b"again", msg.Hello("run", 1, "t1"), None)[0]
    assert "worker 1 was given up" in refused.message.reason


def _greeted_late(loss):
    """Return a server that lost worker 1 of 3 before it heard a declaration, and what it does."""
    machine = _server(workers=3, greeted=False)
    assert machine.lost(1, 6.0) == []
    found = []
    for rank in (0, 2):
        machine.receive(b"p%d" % rank, msg.Hello("run", rank, f"t{rank}"), None)
        declare = msg.Declare("d", Rules(on_worker_loss=loss), SLICES)
        found += machine.receive(b"p%d" % rank, declare, None)
    return machine, found


def test_a_worker_lost_before_any_declaration_is_gone_on_without():
    machine, found = _greeted_late("continue")
    assert _of(found, act.Fail) == []
    _push(machine, 0, 0, 0)
    assert _of(_push(machine, 0, 0, 1), act.Update) == []
    assert _of(_push(machine, 2, 0, 1), act.Update)[0].gradients == ((0, 1), (2, 1))
    refused = machine.receive(b"again", msg.Hello("run", 1, "t1"), None)[0]
    assert "worker 1 was given up" in refused.message.reason


def test_a_worker_lost_before_any_declaration_ends_the_job_where_that_says_so():
    (fail,) = _of(_greeted_late("abort")[1], act.Fail)
    assert fail.reason.startswith("worker 1 was lost (silent for 6.0 s)")
    assert fail.ranks == (1,)


@pytest.mark.parametrize("declared", [False, True])
def test_who_gives_the_first_values_may_not_be_lost_before_it_did(declared):
    machine = _server(Rules(on_worker_loss="continue"), greeted=declared)
    fail = machine.lost(0, 6.0)[0]
    assert fail == act.Fail(
        "worker 0 was lost (silent for 6.0 s) before it gave the servers the first weights, and no "
        "other worker gives them; start everything again",
        (0,),
    )


def test_a_push_that_came_from_a_lost_worker_counts():
    machine = _server(Rules(on_worker_loss="continue"), workers=3)
    for key in SIZES:
        _push(machine, 0, key, 0)
    for worker in (0, 2):
        _push(machine, worker, 0, 1)
    found = machine.lost(2, 6.0)
    assert _of(found, act.Update) == []
    update = _of(_push(machine, 1, 0, 1), act.Update)[0]
    assert update.gradients == ((0, 1), (1, 1), (2, 1))


def test_with_state_on_disk_a_push_is_done_when_it_is_there():
    machine = _server(durable=True, workers=1)
    _push(machine, 0, 0, 0)
    assert _acks(_push(machine, 0, 0, 1)) == {b"p0": (1, -1)}
    assert machine.positions([0]) == {0: Position(1, {0: 1})}
    assert _acks(machine.committed({0: Position(0, {0: 0})})) == {b"p0": (1, 0)}
    assert _acks(machine.committed({0: Position(1, {0: 1})})) == {b"p0": (1, 1)}
    assert machine.committed({0: Position(1, {0: 1})}) == []


def test_what_was_on_disk_counts_and_nothing_that_came_later():
    kept = Kept("d", Rules(), SLICES, {0: Position(4, {0: 4, 1: 4})})
    machine = _server(kept=kept, durable=True)
    assert _acks(_push(machine, 0, 0, 4)) == {b"p0": (4, 4)}
    assert machine.refused == {msg.REPLAYED: 1}
    _push(machine, 1, 0, 5)
    update = _of(_push(machine, 0, 0, 5), act.Update)[0]
    assert (update.version, update.gradients) == (5, ((0, 5), (1, 5)))


def test_delay_compensation_names_the_worker_and_keeps_its_backup():
    machine = _server(Rules(mode="dc-asgd"))
    _push(machine, 0, 0, 0)
    assert _of(_pull(machine, 1, 0, 0), act.Answer)[0].backup_for == 1
    assert _of(_push(machine, 1, 0, 1), act.Update)[0].compensate == 1


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(mode="gossip"), "unknown mode 'gossip'; known: ssgd, asgd, dc-asgd"),
        (Rules(on_worker_loss="panic"), "unknown on_worker_loss 'panic'"),
        (Rules(staleness=1), "staleness is 1"),
        (Rules(mode="asgd", staleness=-1), "staleness is -1"),
        (Rules(window=0), "window is 0"),
        (Rules(optimizer=SGD(lr=-1)), "lr is -1"),
        (Rules(optimizer=SGD(lr=1, form="caffe")), "unknown form 'caffe'"),
        (Rules(optimizer=SGD(lr=1, nesterov=True)), "nesterov"),
        (Rules(optimizer=SGD(lr=1, form="mxnet", dampening=0.1)), "form"),
        (Rules(optimizer=Adam(betas=(0.9, 1.0))), "betas is 1.0"),
        (Rules(groups=(Adam(), SGD(lr=-1))), "lr is -1"),
        (Rules(optimizer=Updater(name="a.b", lr=1)), "updater is 'a.b'; it must be such as"),
        (Rules(optimizer=Updater(name="a:b", lr=-1)), "lr is -1"),
        (Rules(optimizer=Updater(name="a:b", lr=1, state=("x y",))), "state of a:b is"),
        (Rules(optimizer=Updater(name="a:b", lr=1, state=("mean_square",))), "state of a:b is"),
        (Rules(mode="dc-asgd", compensation=Compensation(decay=1.0)), "decay is 1.0"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules, words):
    with pytest.raises((InvalidValueError, UnknownNameError), match=words):
        rules.require_valid()


@pytest.mark.parametrize("durable", [False, True])
def test_an_acknowledgement_goes_before_all_weights(durable):
    machine = _server(durable=durable)
    _push(machine, 0, 0, 0)
    most = 2**31 - 1
    assert _pull(machine, 0, 0, 1, priority=most) == []
    found = _push(machine, 0, 0, 1) + _push(machine, 1, 0, 1)
    found += machine.committed({0: Position(1, {0: 1, 1: 1})})
    acks = [a for a in _of(found, act.Send) if isinstance(a.message, msg.Ack)]
    assert {a.to for a in acks} == {b"p0", b"p1"}
    assert [a.priority for a in _of(found, act.Answer)] == [most]
    assert min(a.priority for a in acks) > most


@pytest.mark.parametrize(
    ("order", "held"),
    [
        ((0, 1, 2, 3), [1, 1, 1]),
        ((3, 2, 1, 0), [1, 2, 3]),
        ((1, 0, 3, 2), [1, 1, 2]),
    ],
)
def test_gradients_are_added_as_soon_as_those_of_the_ranks_before_are(order, held):
    machine = _server(workers=4)
    _push(machine, 0, 0, 0)
    counts, found = [], []
    for worker in order:
        found += _push(machine, worker, 0, 1)
        staged = len(_of(found, act.Stage)) - len(_of(found, act.Add))
        counts.append(staged + bool(_of(found, act.Add)))
    assert counts[:-1] == held
    adds = [add.worker for add in _of(found, act.Add)]
    assert adds == sorted(adds)
    assert _of(found, act.Update)[0].gradients == ((0, 1), (1, 1), (2, 1), (3, 1))


def test_a_lost_worker_that_did_not_push_keeps_nobody_from_being_added():
    machine = _server(Rules(on_worker_loss="continue"), workers=4)
    for key in SIZES:
        _push(machine, 0, key, 0)
    for worker in (0, 2):
        _push(machine, worker, 0, 1)
    assert _of(machine.lost(1, 6.0), act.Add) == [act.Add(0, 2, 1)]
    update = _of(_push(machine, 3, 0, 1), act.Update)[0]
    assert update.gradients == ((0, 1), (2, 1), (3, 1))

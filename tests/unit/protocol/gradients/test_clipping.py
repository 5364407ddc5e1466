"""Clipping: all servers take a step with the same norm, on lossy links too."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncopate.errors import InvalidValueError
from syncopate.protocol import actions as act
from syncopate.protocol import messages as msg
from syncopate.protocol.gradients.clipping import Norms, StepNorm
from syncopate.protocol.limits import Limits
from syncopate.protocol.placement.bundle import Cut
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import Rules
from syncopate.protocol.server import Seat, ServerMachine
from syncopate.protocol.table import require_rows
from tests.unit.protocol.test_exactly_once import TOGETHER, TROUBLE, run

CLIPPING = Rules(clip_norm=1.0)


@settings(max_examples=100)
@given(
    trouble=TROUBLE,
    seed=st.integers(0, 2**32),
    sizes=st.fixed_dictionaries(
        {"workers": st.integers(1, 3), "servers": st.integers(1, 3), "rounds": st.integers(1, 5)}
    ),
    together=TOGETHER,
)
def test_every_step_is_taken_once_with_the_norm_of_all_slices(trouble, seed, sizes, together):
    world, logs = run(CLIPPING, trouble, seed, together, **sizes)
    assert world.norms == {math.sqrt(len(world.layout.slices))}
    workers, versions = range(sizes["workers"]), range(1, sizes["rounds"] + 1)
    whole = tuple(tuple((worker, version) for worker in workers) for version in versions)
    assert set(logs.values()) == {whole}
    assert {machine.last_norm for machine in world.workers} <= {*world.norms, None}


@settings(max_examples=30)
@given(trouble=TROUBLE, seed=st.integers(0, 2**32))
def test_workers_may_be_some_steps_ahead(trouble, seed):
    world, logs = run(CLIPPING, trouble, seed, workers=2, servers=2, rounds=8, period=4)
    assert {len(log) for log in logs.values()} == {8}
    assert len(world.norms) == 1


def _server(slices=2, workers=2):
    tokens = tuple(f"t{rank}" for rank in range(workers))
    machine = ServerMachine(Seat(msg.Roster("run", 0, ("s",), tokens), "boot"), Limits())
    specs = tuple(Slice(key, f"s{key}", "float32", 0, 2) for key in range(slices))
    for rank in range(workers):
        machine.receive(b"%d" % rank, msg.Hello("run", rank, tokens[rank]), None)
        machine.receive(b"%d" % rank, msg.Declare("d", CLIPPING, specs), None)
    for key in range(slices):
        machine.receive(b"0", msg.Push(key, 0), 8)
    return machine


def _of(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def test_a_server_updates_when_it_hears_of_the_norm_and_not_before():
    machine = _server()
    for key in (0, 1):
        machine.receive(b"0", msg.Push(key, 1), 8)
    (first,) = _of(machine.receive(b"1", msg.Push(0, 1), 8), act.Measure)
    assert first == act.Measure(0, 1, ((0, 1), (1, 1)))
    assert machine.measured(first, 3.0) == []
    (second,) = _of(machine.receive(b"1", msg.Push(1, 1), 8), act.Measure)
    share = msg.Share(1, 4.0)
    told = [act.Send(peer, share, msg.SOON) for peer in (b"0", b"1")]
    assert machine.measured(second, 1.0) == told
    asked = machine.receive(b"1", msg.Query(0, 9), None)
    assert asked[0] == told[1]  # it may have been lost
    assert machine.receive(b"0", msg.Norm(2, 9.0), None) == []
    found = machine.receive(b"1", msg.Norm(1, 5.0), None)
    assert [(each.key, each.version, each.norm) for each in _of(found, act.Update)] == [
        (0, 1, 5.0),
        (1, 1, 5.0),
    ]
    assert machine.receive(b"0", msg.Norm(1, 6.0), None) == []


def test_a_push_without_a_gradient_has_nothing_and_counts():
    machine = _server(workers=1)
    found = machine.receive(b"0", msg.Skip(0, 1), 0)
    assert _of(found, act.Measure) == [act.Measure(0, 1, ((0, 1),))]
    machine.receive(b"0", msg.Skip(1, 1), 8)
    machine.receive(b"0", msg.Skip(1, 0), 0)
    assert machine.refused == {msg.MALFORMED: 2}


def test_parts_of_a_bundle_that_is_cut_add_up_to_it():
    norm = StepNorm()
    parts = tuple(Slice(key, f"p{key}", "float32", 0, 1) for key in (1, 2, 3))
    assert not norm.measured(7, 5.0, 1, 2)
    norm.split(Cut(7, parts))
    assert norm.measured(9, 4.0, 1, 4)
    assert norm.share == msg.Share(1, 9.0)


def test_a_worker_knows_the_norms_of_as_many_steps_as_may_be_under_way():
    norms = Norms([0, 2], window=2)
    for version in range(1, 6):
        assert norms.take(2, msg.Share(version, 16.0)) == []
        told = norms.take(0, msg.Share(version, 9.0))
        assert told == [act.Send(server, msg.Norm(version, 5.0), msg.SOON) for server in (0, 2)]
    assert norms.take(0, msg.Share(3, 9.0)) == [act.Send(0, msg.Norm(3, 5.0), msg.SOON)]
    assert norms.take(0, msg.Share(2, 9.0)) == []
    assert norms.last == 5.0


@pytest.mark.parametrize("squares", [math.inf, math.nan, 1e308])
def test_a_norm_may_be_infinite_or_none(squares):
    norms = Norms([0, 1], window=2)
    norms.take(0, msg.Share(1, squares))
    (told, _) = norms.take(1, msg.Share(1, squares))
    assert not math.isfinite(told.message.norm)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(clip_norm=0.0), "clip_norm is 0.0; it must be None, or finite and above 0"),
        (Rules(clip_norm=math.nan), "finite and above 0"),
        (Rules(mode="asgd", clip_norm=1.0), "None in mode 'asgd'"),
        (Rules(on_worker_loss="continue", clip_norm=1.0), "None with on_worker_loss='continue'"),
    ],
)
def test_rules_that_servers_could_not_clip_by_are_refused(rules, words):
    with pytest.raises(InvalidValueError, match=words):
        rules.require_valid()


def test_tables_have_no_part_in_the_norm():
    with pytest.raises(InvalidValueError, match="beside a table of rows"):
        require_rows(CLIPPING)

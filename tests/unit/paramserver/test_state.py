"""State on disk: what was committed comes back, and what is damaged is refused."""

from __future__ import annotations

import threading

import pytest
import torch

from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.paramserver.optimizers import collecting, whole_state, with_state
from syncopate.paramserver.shard import Shard
from syncopate.paramserver.state import Committer, Identity, Record, StateFolder, encoded
from syncopate.paramserver.tensors import flat_bytes, frame_of
from syncopate.protocol.actions import Initialise, Update
from syncopate.protocol.layout import Slice
from syncopate.protocol.rules import SGD, Adam, Rules
from syncopate.protocol.slice import Position
from tests.children import HANGS_S


def _record(version, *values, dtype=torch.float32):
    tensors = {"weights": torch.tensor(values, dtype=dtype), "state:steps": torch.tensor([version])}
    return Record(Position(version, {0: version, 1: version}), tensors)


def _write(folder, records, run="run"):
    folder.write(run, dict.fromkeys(records, 8), encoded(run, records))


def _same(found, expected):
    assert found.keys() == expected.keys()
    for key, record in expected.items():
        assert found[key].position == record.position
        assert found[key].tensors.keys() == record.tensors.keys()
        for name, tensor in record.tensors.items():
            assert found[key].tensors[name].dtype == tensor.dtype
            assert torch.equal(found[key].tensors[name], tensor)


def _segments(path):
    return sorted(p.name for p in path.iterdir() if p.name.startswith("segment"))


def test_the_newest_record_of_each_slice_comes_back(tmp_path):
    folder = StateFolder(tmp_path)
    assert folder.load("run") == {}
    _write(folder, {0: _record(1, 1.0, 2.0), 3: _record(1, 5.0)})
    _write(folder, {0: _record(2, 3.0, 4.0, dtype=torch.bfloat16)})
    expected = {0: _record(2, 3.0, 4.0, dtype=torch.bfloat16), 3: _record(1, 5.0)}
    _same(StateFolder(tmp_path).load("run"), expected)


def test_an_empty_slice_comes_back(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1)})
    _same(StateFolder(tmp_path).load("run"), {0: _record(1)})


def test_segments_that_no_longer_count_are_removed(tmp_path):
    folder = StateFolder(tmp_path)
    _write(folder, {0: _record(1, 1.0), 1: _record(1, 1.0)})
    _write(folder, {0: _record(2, 2.0)})
    assert len(_segments(tmp_path)) == 2
    _write(folder, {0: _record(3, 3.0)})
    assert _segments(tmp_path) == ["segment-000000000001", "segment-000000000003"]
    _write(folder, {1: _record(2, 2.0)})
    assert _segments(tmp_path) == ["segment-000000000003", "segment-000000000004"]
    again = StateFolder(tmp_path)
    again.load("run")
    _write(again, {0: _record(4, 4.0)})
    assert _segments(tmp_path) == ["segment-000000000004", "segment-000000000005"]


def test_when_old_segments_hold_too_much_all_is_written_anew(tmp_path):
    folder = StateFolder(tmp_path)
    _write(folder, {key: _record(1, 1.0) for key in range(40)})
    for version in range(2, 12):
        assert not folder.wants_all or version > 2
        for key in range(20):
            _write(folder, {key: _record(version, 1.0)})
    assert folder.wants_all
    _write(folder, {key: _record(99, 1.0) for key in range(40)})
    assert len(_segments(tmp_path)) == 1


@pytest.mark.parametrize("at", ["start", "head", "payload", "end", "cut", "empty"])
def test_a_damaged_segment_is_refused(tmp_path, at):
    _write(StateFolder(tmp_path), {0: _record(1, 1.0, 2.0)})
    path = tmp_path / "segment-000000000001"
    data = bytearray(path.read_bytes())
    place = {"start": 0, "head": 20, "payload": len(data) - 8, "end": len(data) - 1}.get(at)
    if place is None:
        data = data[: len(data) // 2 if at == "cut" else 0]
    else:
        data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="segment-000000000001"):
        StateFolder(tmp_path).load("run")


def test_a_segment_of_another_run_is_refused(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1, 1.0)}, run="old")
    with pytest.raises(ArtifactError, match="run old; expected version 1 of run new"):
        StateFolder(tmp_path).load("new")


def test_what_a_killed_write_left_does_not_matter(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1, 1.0)})
    (tmp_path / ".syncopate-0123").write_bytes(b"half a segm")
    _same(StateFolder(tmp_path).load("run"), {0: _record(1, 1.0)})


def test_who_the_server_is_comes_back(tmp_path):
    slices = (Slice(2, "w", "float32", 0, 4),)
    rules = Rules(mode="asgd", staleness=2, optimizer=Adam(lr=0.5))
    identity = Identity(job="j", run="r", rank=3, digest="d", rules=rules, slices=slices)
    folder = StateFolder(tmp_path / "new")
    assert folder.identity() is None
    folder.save_identity(identity)
    assert folder.identity() == identity


def test_a_committer_says_what_is_on_disk(tmp_path):
    woken = threading.Event()
    committer = Committer(StateFolder(tmp_path), "run", woken.set)
    committer.begin({0: _record(1, 1.0)})
    assert woken.wait(HANGS_S)
    assert committer.finished() == {0: Position(1, {0: 1, 1: 1})}
    assert committer.finished() == {}
    assert not committer.busy
    committer.close()
    _same(StateFolder(tmp_path).load("run"), {0: _record(1, 1.0)})


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    woken = threading.Event()
    committer = Committer(StateFolder(tmp_path / "file"), "run", woken.set)
    committer.begin({0: _record(1, 1.0)})
    assert woken.wait(HANGS_S)
    with pytest.raises(ArtifactError, match="cannot write"):
        committer.finished()
    committer.close()


# Shards, whose tensors state is.

SLICES = (Slice(0, "w", "float32", 0, 40_000),)


def _shard(rules):
    shard = Shard(rules, SLICES)
    shard.stage(0, 0, 0, frame_of(flat_bytes(torch.ones(40_000))))
    shard.initialise(Initialise(0, 0))
    return shard


def _update(shard, version, *values, compensate=None):
    for worker, value in enumerate(values):
        shard.stage(0, worker, version, frame_of(flat_bytes(torch.full((40_000,), value))))
    gradients = tuple((worker, version) for worker in range(len(values)))
    shard.update(Update(0, version, gradients, None, compensate))


def test_an_update_applies_the_mean():
    shard = _shard(Rules(optimizer=SGD(lr=0.5)))
    _update(shard, 1, 1.0, 2.0, 6.0)
    assert torch.equal(shard.snapshot(0)["weights"], torch.full((40_000,), 1 - 0.5 * 3))


def test_weights_on_their_way_do_not_change():
    """The slice is large enough to be sent from where it lies."""
    shard = _shard(Rules(optimizer=SGD(lr=0.5)))
    frame = shard.payload(0, None)
    _update(shard, 1, 1.0)
    sent = torch.frombuffer(frame.buffer, dtype=torch.float32)
    assert torch.equal(sent, torch.ones(40_000))
    assert torch.equal(shard.snapshot(0)["weights"], torch.full((40_000,), 0.5))


def test_delays_are_compensated_from_what_the_worker_pulled():
    shard = _shard(Rules(mode="dc-asgd", optimizer=SGD(lr=1.0)))
    shard.payload(0, 0)
    _update(shard, 1, 1.0, compensate=None)  # another worker's
    before = shard.snapshot(0)["weights"].clone()
    _update(shard, 2, 0.5, compensate=0)
    mean_square = 0.05 * 0.25
    expected = 0.5 + 2 / (mean_square + 1e-7) ** 0.5 * 0.25 * (before - 1)
    torch.testing.assert_close(shard.snapshot(0)["weights"], before - expected)


@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), SGD(lr=0.1, momentum=0.9), SGD(lr=0.1)])
def test_a_shard_may_begin_with_what_another_ones_optimizer_remembered(optimizer):
    rules = Rules(optimizer=optimizer)
    one, two = _shard(rules), Shard(rules, SLICES)
    assert one.state_payload(0)[0] == ()
    _update(one, 1, 1.0)
    names, frame = one.state_payload(0)
    assert names == rules.state
    collected = []
    collecting(SLICES[0], collected)(torch.frombuffer(frame.buffer, dtype=torch.uint8), names)
    weights = one.snapshot(0)["weights"].clone()
    named, payload = with_state(SLICES[0], weights, whole_state(collected), rules.state)
    two.stage(0, 0, 0, frame_of(payload))
    two.initialise(Initialise(0, 0, named))
    for shard in (one, two):
        _update(shard, 2, -3.0)
    first, second = one.snapshot(0), two.snapshot(0)
    assert set(first) == {"weights", *(f"state:{name}" for name in rules.state)}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_state_of_several_slices_is_put_together():
    slices = [Slice(0, "w", "float32", 0, 64), Slice(1, "w", "float32", 64, 36)]
    tensor, mean = torch.randn(100), torch.randn(100)
    state = {"steps": torch.tensor([7]), "mean": mean}
    collected = []
    for piece in slices:
        names, payload = with_state(piece, tensor, state, ("steps", "mean", "square"))
        assert payload.numel() == piece.carried_bytes(names)
        collecting(piece, collected)(payload, names)
    found = whole_state(collected)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({"momentum": torch.zeros(4)}, UnknownNameError, "'momentum'.*known: steps, mean"),
        ({"mean": torch.zeros(3)}, InvalidValueError, "mean of w is '3 of torch.float32'"),
        ({"mean": torch.zeros(4).double()}, InvalidValueError, "float64"),
        ({"steps": torch.tensor([1.0])}, InvalidValueError, "1 elements of torch.int64"),
    ],
)
def test_state_of_another_tensor_is_refused(state, error, words):
    piece = Slice(0, "w", "float32", 0, 4)
    with pytest.raises(error, match=words):
        with_state(piece, torch.zeros(4), state, ("steps", "mean"))


def test_a_shard_comes_back_and_goes_on_as_if_nothing_had_been():
    rules = Rules(mode="dc-asgd", optimizer=Adam(lr=0.1))
    one, two = _shard(rules), Shard(rules, SLICES)
    one.payload(0, 0)
    _update(one, 1, 1.0, compensate=0)
    assert one.changed == {0}
    two.restore(0, {name: tensor.clone() for name, tensor in one.snapshot(0).items()})
    assert one.changed == set()
    for shard in (one, two):
        _update(shard, 2, -3.0, compensate=0)
    first, second = one.snapshot(0), two.snapshot(0)
    assert set(first) == {
        "weights",
        "state:steps",
        "state:mean",
        "state:square",
        "state:mean_square",
        "backup:0",
    }
    assert all(torch.equal(first[name], second[name]) for name in first)

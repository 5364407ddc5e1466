"""State on disk: what was committed comes back, and what is damaged is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from syncopate.errors import ArtifactError, InvalidValueError, UnknownNameError
from syncopate.paramserver.storage.histories import newest
from syncopate.paramserver.storage.optimizers import collecting, whole_state, with_state
from syncopate.paramserver.storage.shard import Shard
from syncopate.paramserver.storage.state import Identity, Record, StateFolder
from syncopate.paramserver.tensors import flat_bytes, frame_of
from syncopate.protocol import messages as msg
from syncopate.protocol.actions import Add, Initialise, Stage, Update
from syncopate.protocol.placement.bundle import BUNDLE, Cut, bundles_of
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import SGD, Adam, Rules
from syncopate.protocol.slice import Position


def _record(version, *values, dtype=torch.float32):
    tensors = {"weights": torch.tensor(values, dtype=dtype), "state:steps": torch.tensor([version])}
    return Record(Position(version, {0: version, 1: version}), tensors)


def _write(folder, records, run="run"):
    folder.write(run, records)


def _newest(folder):
    return {key: chain[-1] for key, chain in newest(folder.read("run")).items()}


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
    assert folder.read("run") == {}
    _write(folder, {0: _record(1, 1.0, 2.0), 3: _record(1, 5.0)})
    _write(folder, {0: _record(2, 3.0, 4.0, dtype=torch.bfloat16)})
    expected = {0: _record(2, 3.0, 4.0, dtype=torch.bfloat16), 3: _record(1, 5.0)}
    _same(_newest(StateFolder(tmp_path)), expected)


def _adding(version, *values, whole_nbytes=100):
    return Record(Position(version), {"ids": torch.tensor(values)}, True, whole_nbytes)


def _write_adding(folder, key, record):
    folder.write("run", {key: record})


def test_records_that_add_to_others_all_come_back_up_to_a_whole_one(tmp_path):
    folder = StateFolder(tmp_path)
    folder.read("run")
    _write_adding(folder, 5, _adding(1, 1, 2))
    _write(folder, {0: _record(1, 1.0)})
    _write_adding(folder, 5, _adding(2, 2))
    for loaded in (StateFolder(tmp_path).read("run"), StateFolder(tmp_path).read("run")):
        chain = newest(loaded)[5]
        assert [each.tensors["ids"].tolist() for each in chain] == [[1, 2], [2]]
        assert chain[-1].position == Position(2)
        assert chain[-1].whole_nbytes == 100
    again = StateFolder(tmp_path)
    again.read("run")
    _write_adding(again, 5, _adding(3, 3))
    assert len(_segments(tmp_path)) == 4
    _write_adding(again, 5, Record(Position(4), {"ids": torch.tensor([1, 2, 3])}))
    assert len(_segments(tmp_path)) == 2  # of the others none counts
    (*_, last) = newest(StateFolder(tmp_path).read("run")).values()
    assert len(last) == 1


def test_much_that_was_added_is_written_anew(tmp_path):
    folder = StateFolder(tmp_path)
    folder.read("run")
    for version in range(1, 9):
        assert not folder.wants_all
        _write_adding(folder, 5, _adding(version, 1, whole_nbytes=200))
        if folder.wants_all:
            break
    assert 2 < version < 8


def test_an_empty_slice_comes_back(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1)})
    _same(_newest(StateFolder(tmp_path)), {0: _record(1)})


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
    again.read("run")
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
        _newest(StateFolder(tmp_path))


def test_a_segment_of_another_run_is_refused(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1, 1.0)}, run="old")
    with pytest.raises(ArtifactError, match="run old; expected version 1 of run new"):
        StateFolder(tmp_path).read("new")


def test_what_a_killed_write_left_does_not_matter(tmp_path):
    _write(StateFolder(tmp_path), {0: _record(1, 1.0)})
    (tmp_path / ".syncopate-0123").write_bytes(b"half a segm")
    _same(_newest(StateFolder(tmp_path)), {0: _record(1, 1.0)})
    assert [path.name for path in tmp_path.iterdir()] == _segments(tmp_path)


def test_who_the_server_is_comes_back(tmp_path):
    slices = (Slice(2, "w", "float32", 0, 4),)
    rules = Rules(mode="asgd", staleness=2, optimizer=Adam(lr=0.5))
    identity = Identity(job="j", run="r", rank=3, digest="d", rules=rules, slices=slices)
    folder = StateFolder(tmp_path / "new")
    assert folder.identity() is None
    folder.save_identity(identity)
    assert folder.identity() == identity


def test_what_is_dropped_counts_no_more_once_the_next_segment_is_there(tmp_path):
    """A bundle that was split: its slices' records take the place of its own."""
    folder = StateFolder(tmp_path)
    _write(folder, {BUNDLE: _record(1, 1.0, 2.0)})
    slices = {0: _record(2, 3.0), 1: _record(2, 4.0)}
    folder.write("run", slices, (BUNDLE,))
    assert _segments(tmp_path) == ["segment-000000000002"]
    _same(_newest(StateFolder(tmp_path)), slices)


# Shards, whose tensors state is.

SLICES = (Slice(0, "w", "float32", 0, 40_000),)


def _holding(rules, slices=SLICES):
    shard = Shard()
    shard.keep(rules, slices)
    return shard


def _shard(rules):
    shard = _holding(rules)
    shard.stage(Stage(0, 0, 0), frame_of(flat_bytes(torch.ones(40_000))))
    shard.initialise(Initialise(0, 0))
    return shard


def _update(shard, version, *values, compensate=None):
    for worker, value in enumerate(values):
        frame = frame_of(flat_bytes(torch.full((40_000,), value)))
        shard.stage(Stage(0, worker, version), frame)
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
    one, two = _shard(rules), _holding(rules)
    assert one.state_payload(0)[0] == ()
    _update(one, 1, 1.0)
    names, frame = one.state_payload(0)
    assert names == rules.state
    found = {}
    take = collecting(SLICES[0], SLICES, found)
    take(torch.frombuffer(frame.buffer, dtype=torch.uint8), msg.State(0, 1, 1, names))
    weights = one.snapshot(0)["weights"].clone()
    named, payload = with_state(SLICES[0], weights, whole_state([found[0]]), rules.state)
    two.stage(Stage(0, 0, 0), frame_of(payload))
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
    collected = {}
    for piece in slices:
        names, payload = with_state(piece, tensor, state, ("steps", "mean", "square"))
        assert payload.numel() == piece.carried_bytes(names)
        collecting(piece, (piece,), collected)(payload, msg.State(piece.key, 1, 1, names))
    found = whole_state([collected[0], collected[1]])
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
    one, two = _shard(rules), _holding(rules)
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


def test_a_name_is_on_disk_before_what_it_stands_for_is_acknowledged(tmp_path, monkeypatch):
    """Order: the file, its name, the folder that has it; and the folders that were made."""
    events = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", lambda a, b: events.append(("name", b)) or replace(a, b))
    path = tmp_path / "new" / "server"
    folder = StateFolder(path)
    folder.save_identity(Identity(job="j", run="run", rank=0))
    assert {("sync", each) for each in (path, path.parent, tmp_path)} <= set(events)
    events.clear()
    _write(folder, {0: _record(1, 1.0)})
    (kind, file), (named, segment), last = events
    assert (kind, file.parent) == ("sync", path)
    assert (named, Path(segment).name) == ("name", "segment-000000000001")
    assert last == ("sync", path)


def _bundle_of(count):
    slices = [Slice(key, f"t{key:03d}", "float32", 0, key % 5) for key in range(count)]
    (bundle,) = bundles_of(slices)
    return slices, bundle


def _values(shard, keys):
    return torch.cat([shard.snapshot(key)["weights"] for key in keys])


@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), SGD(lr=0.1, momentum=0.9)])
@pytest.mark.parametrize("mode", ["ssgd", "dc-asgd"])
def test_slices_of_a_bundle_go_on_as_they_would_have_by_themselves(optimizer, mode):
    """Weights, optimizer state, copies, and gradients that wait are those of each, to the bit."""
    slices, bundle = _bundle_of(80)
    rules, whole = Rules(mode=mode, optimizer=optimizer), bundle.whole.key
    bundled, alone = _holding(rules, [bundle.whole]), _holding(rules, slices)
    cut = Cut(whole, tuple(slices))
    keys = [piece.key for piece in slices]
    data = iter(torch.randn(6, bundle.whole.numel).unbind())

    def stage(sequence, worker=0, *, split=False):
        values = next(data)
        part = values.split([piece.numel for piece in slices])
        if not split:
            bundled.stage(Stage(whole, worker, sequence), frame_of(flat_bytes(values.clone())))
        for piece, (_, begin, end) in zip(slices, cut.places(), strict=True):
            alone.stage(
                Stage(piece.key, worker, sequence), frame_of(flat_bytes(part[piece.key].clone()))
            )
            if split:
                frame = frame_of(flat_bytes(values.clone()))
                bundled.stage(Stage(piece.key, worker, sequence, (begin, end)), frame)

    def each(do):
        for key in keys:
            do(alone, key)

    stage(0)
    bundled.initialise(Initialise(whole, 0))
    each(lambda shard, key: shard.initialise(Initialise(key, 0)))
    compensate = 1 if mode == "dc-asgd" else None
    if compensate is not None:
        bundled.payload(whole, 1)
        each(lambda shard, key: shard.payload(key, 1))
    stage(1)
    bundled.update(Update(whole, 1, ((0, 1),), None, None))
    each(lambda shard, key: shard.update(Update(key, 1, ((0, 1),), None, None)))
    stage(2)
    stage(2, 1)
    bundled.add(Add(whole, 0, 2))
    each(lambda shard, key: shard.add(Add(key, 0, 2)))
    bundled.split(cut)
    assert bundled.waiting == 2 * len(slices)
    assert bundled.changed == set(keys)
    for shard in (bundled, alone):
        for key in keys:
            shard.update(Update(key, 2, ((0, 2), (1, 2)), None, compensate))
    stage(3, split=True)
    for shard in (bundled, alone):
        for key in keys:
            shard.update(Update(key, 3, ((0, 3),), None, None))
    assert torch.equal(_values(bundled, keys), _values(alone, keys))
    for key in keys:
        one, two = bundled.snapshot(key), alone.snapshot(key)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert bundled.waiting == 0


def test_of_gradients_that_come_in_their_turn_one_sum_is_held():
    shard = _shard(Rules(optimizer=SGD(lr=1.0)))
    values = (0.1, 0.2, 0.3, 1e8, -1e8, 0.7, 0.8, 0.9)
    expected = torch.tensor(values[0])
    for worker, value in enumerate(values):
        frame = frame_of(flat_bytes(torch.full((40_000,), value)))
        shard.stage(Stage(0, worker, 1), frame)
        shard.add(Add(0, worker, 1))
        assert shard.waiting == 1
        expected = expected + value if worker else expected
    gradients = tuple((worker, 1) for worker in range(len(values)))
    shard.update(Update(0, 1, gradients, None, None))
    assert shard.waiting == 0
    assert torch.equal(shard.snapshot(0)["weights"], (1 - expected / 8).expand(40_000))

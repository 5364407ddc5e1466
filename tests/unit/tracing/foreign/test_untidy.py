"""Untidy files of profilers: what strangers bring."""

from __future__ import annotations

import contextlib
import gzip
import json
import random

import pytest

from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError
from syncopate.tracing.foreign import read_timeline
from syncopate.tracing.foreign.chrome import events
from tests.unit.tracing.foreign.made import EPOCH_NS, notes, profile, times_ms, write
from tests.unit.tracing.foreign.test_profiler import EVALUATED, _iteration


def _ranks(**given):
    rows = [*_iteration(0), *_iteration(100)]
    return [profile(rank, rows, **given) for rank in (0, 1)]


def _same(one, other):
    assert [*one.spans] == [*other.spans]


@pytest.fixture
def plain(tmp_path):
    """Return the timeline of two tidy files."""
    folder = tmp_path / "plain"
    folder.mkdir()
    return read_timeline(write(folder, "rank", _ranks()))


def _array(document):
    """Return the events as an array, which has no base of times and no rank."""
    rows = [dict(event) for event in document["traceEvents"]]
    for row in rows:
        if "ts" in row:
            row["ts"] += EPOCH_NS // 1000
    return rows


def test_arrays_are_read_as_objects_are(tmp_path, plain):
    arrays = [_array(document) for document in _ranks()]
    _same(read_timeline(write(tmp_path, "rank", arrays)), plain)
    # The last bracket is optional, and so may be what follows the last event.
    for rank, rows in enumerate(arrays):
        text = json.dumps(rows).removesuffix("]") + ","
        (tmp_path / f"rank{rank}.json").write_text(text)
    _same(read_timeline(sorted(tmp_path.glob("rank*.json"))), plain)


def test_compressed_and_plain_files_are_mixed(tmp_path, plain):
    first, second = write(tmp_path, "rank", _ranks())
    packed = tmp_path / "rank1.json.gz"
    packed.write_bytes(gzip.compress(second.read_bytes()))
    second.unlink()
    _same(read_timeline([first, packed]), plain)


def test_times_are_texts_and_whole_numbers_since_1970(tmp_path, plain):
    documents = _ranks()
    for document in documents:
        for event in document["traceEvents"]:
            if "ts" in event:
                event["ts"], event["dur"] = f"{event['ts']:.3f}", str(event["dur"])
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)
    for document in documents:
        document["traceEvents"] = [
            event | {"ts": round(float(event["ts"])) + EPOCH_NS // 1000} if "ts" in event else event
            for event in document["traceEvents"]
        ]
        del document["baseTimeNanoseconds"]
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)


def test_begins_and_ends_are_joined(tmp_path, plain):
    documents = _ranks()
    for document in documents:
        pairs = []
        for event in document["traceEvents"]:
            if event["ph"] != "X":
                continue
            thread = event["cat"] + event["name"]
            rest = {key: value for key, value in event.items() if key not in ("dur", "ph")}
            pairs.append(rest | {"ph": "B", "tid": thread})
            pairs.append({"ph": "E", "pid": 1, "tid": thread, "ts": event["ts"] + event["dur"]})
        document["traceEvents"] = sorted(pairs, key=lambda event: (event["ts"], event["ph"] == "B"))
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)


def test_events_that_end_before_they_begin_last_no_time_and_are_counted(tmp_path):
    rows = [*_iteration(0), ("user_annotation", "Optimizer.step#SGD.step", 60, 55, {})]
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, rows, world_size=1)]))
    assert times_ms(timeline, "SGD", 0)[0] == (60, 60)
    assert "1 events end before they begin" in notes(timeline)


def test_ranks_are_told_by_names_where_files_do_not_say_them(tmp_path, plain):
    documents = _ranks()
    for document in documents:
        del document["distributedInfo"]
    timeline = read_timeline(write(tmp_path, "trace_step7_worker", documents))
    _same(timeline, plain)


def test_ranks_are_told_by_names_where_all_files_say_the_same_one(tmp_path, plain):
    documents = [document | {"distributedInfo": {"rank": 0}} for document in _ranks()]
    timeline = read_timeline(write(tmp_path, "rank", documents))
    _same(timeline, plain)
    assert any("all files say that they are of rank 0" in note for note in notes(timeline))


def test_two_files_of_one_rank_at_the_same_time_are_refused_by_name(tmp_path):
    documents = _ranks()
    for name, document in zip(("host_a.json", "host_b.json"), documents, strict=True):
        document["distributedInfo"]["rank"] = 0
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=r"host_b\.json: it says that it is of rank 0 at the"):
        read_timeline(sorted(tmp_path.iterdir()))


def test_a_file_without_rank_in_a_name_without_one_is_refused(tmp_path):
    documents = _ranks()
    for name, document in zip(("host_a.json", "host_b.json"), documents, strict=True):
        del document["distributedInfo"]
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="does not say its rank, and neither does its name"):
        read_timeline(sorted(tmp_path.iterdir()))


def test_windows_of_one_rank_are_put_behind_each_other(tmp_path):
    windows = [
        profile(rank, _iteration(100 * number, mark=number)) for number in (3, 7) for rank in (0, 1)
    ]
    timeline = read_timeline(write(tmp_path, "host_17.", windows))
    assert sorted({(span.rank, span.iteration) for span in timeline.spans}) == [
        (0, 3),
        (0, 7),
        (1, 3),
        (1, 7),
    ]


def test_of_two_trainings_in_one_folder_the_last_is_read(tmp_path):
    """The second counts its steps anew; of its rank 2 there is nothing."""
    earlier = [profile(rank, _iteration(0, mark=3), world_size=3) for rank in (0, 1, 2)]
    later = [profile(rank, _iteration(900, mark=3)) for rank in (0, 1)]
    timeline = read_timeline(write(tmp_path, "host_17.", [*earlier, *later]))
    assert (timeline.world_size, {span.rank for span in timeline.spans}) == (2, {0, 1})
    assert times_ms(timeline, "forward", 3)[0] == (0, 10)
    assert any("traces of 2 runs; this is the one that began last" in n for n in notes(timeline))


def test_without_steps_their_processes_tell_two_trainings(tmp_path):
    earlier = [profile(rank, [*_iteration(0), *_iteration(50)]) for rank in (0, 1)]
    later = [profile(rank, [*_iteration(900), *_iteration(950)]) for rank in (0, 1)]
    paths = write(tmp_path, "host_17.", [*earlier, *later])
    assert len({span.iteration for span in read_timeline(paths).spans}) == 4
    for document in later:
        for event in document["traceEvents"]:
            event["pid"] += 1
    timeline = read_timeline(write(tmp_path, "host_17.", [*earlier, *later]))
    assert len({span.iteration for span in timeline.spans}) == 2
    assert any("traces of 2 runs; this is the one that began last" in n for n in notes(timeline))


def test_a_rank_without_steps_of_the_profiler_is_numbered_as_the_others(tmp_path):
    marked = [row for n in (5, 6, 7) for row in _iteration(100 * n, mark=n)]
    bare = [row for n in (5, 6, 7) for row in _iteration(100 * n)]
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, marked), profile(1, bare)]))
    assert {(s.rank, s.iteration) for s in timeline.spans} == {
        (rank, number) for rank in (0, 1) for number in (5, 6, 7)
    }
    assert times_ms(timeline, "forward", 6) == {0: (100, 110), 1: (100, 110)}


def test_annotations_that_overlap_count_once(tmp_path, plain):
    documents = _ranks()
    for document in documents:
        for event in [*document["traceEvents"]]:
            if event["name"] == "DistributedDataParallel.forward":
                inner = event | {"ts": event["ts"] + 1000, "dur": event["dur"] - 2000}
                document["traceEvents"] += [inner, event | {"name": "my forward"}]
                document["traceEvents"].append(event | {"cat": "gpu_user_annotation"})
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)


def test_a_module_that_backward_computes_once_more_is_backward(tmp_path, plain):
    documents = _ranks()
    for document in documents:
        for event in [*document["traceEvents"]]:
            if event["name"].startswith(EVALUATED):
                again = {"name": "FullyShardedDataParallel.forward", "cat": "user_annotation"}
                document["traceEvents"].append(
                    event | again | {"ts": event["ts"] + 500, "dur": 100}
                )
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)


def test_several_optimizers_and_forwards_are_one_iteration(tmp_path):
    """Gradients of two micro-batches are added up, then two optimizers step."""
    rows = []
    for number in range(3):
        begin = 200 * number
        rows += [
            ("user_annotation", "DistributedDataParallel.forward", begin, begin + 10, {}),
            ("cpu_op", EVALUATED, begin + 11, begin + 30, {}),
            *_iteration(begin + 50),
            ("user_annotation", "Optimizer.step#SGD.step", begin + 96, begin + 99, {}),
        ]
    timeline = read_timeline(write(tmp_path, "rank", [profile(r, rows) for r in (0, 1)]))
    assert {span.iteration for span in timeline.spans} == {0, 1, 2}
    forwards = [s for s in timeline.spans if s.name == "forward" and s.rank == 0]
    assert [span.iteration for span in forwards] == [0, 0, 1, 1, 2, 2]
    assert times_ms(timeline, "SGD", 1)[0] == (296, 299)


def test_optimizers_that_take_turns_are_one_iteration(tmp_path):
    rows = []
    for number in range(3):
        begin = 200 * number
        rows += _iteration(begin)
        rows += [
            ("user_annotation", "DistributedDataParallel.forward", begin + 60, begin + 70, {}),
            ("cpu_op", EVALUATED, begin + 71, begin + 80, {}),
            ("user_annotation", "Optimizer.step#SGD.step", begin + 90, begin + 95, {}),
        ]
    timeline = read_timeline(write(tmp_path, "rank", [profile(0, rows, world_size=1)]))
    assert max(span.iteration for span in timeline.spans) == 3
    assert len([s for s in timeline.spans if s.iteration == 1 and s.name == "AdamW"]) == 1


def _large(monkeypatch):
    monkeypatch.setattr(events, "_PIECE_BYTES", 1500)


def test_files_are_read_in_pieces(tmp_path, plain, monkeypatch):
    """Also where a piece ends within an event that has a list of objects."""
    _large(monkeypatch)
    documents = _ranks()
    for document in documents:
        for event in document["traceEvents"]:
            event["args"] |= {"Trace": [{"x": 1}, {"y": 2}, {"z": "}, {"}] * 9}
        document["deviceProperties"] = [{"id": number} for number in range(300)]
    _same(read_timeline(write(tmp_path, "rank", documents)), plain)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.77, 0.99])
def test_a_file_that_is_cut_off_is_refused_with_its_place(tmp_path, monkeypatch, share, packed):
    _large(monkeypatch)
    paths = write(tmp_path, "rank", _ranks())
    content = paths[1].read_bytes()
    if packed:
        content = gzip.compress(content, 1)
        paths[1] = paths[1].with_suffix(".json.gz")
    paths[1].write_bytes(content[: int(share * len(content))])
    with pytest.raises(ArtifactError) as refused:
        read_timeline(paths)
    assert paths[1].name in str(refused.value)
    assert "byte" in str(refused.value) or share < 0.1 or packed


def test_a_file_that_is_damaged_in_the_middle_is_refused_with_its_place(tmp_path, monkeypatch):
    _large(monkeypatch)
    (path,) = write(tmp_path, "rank", _ranks()[:1])
    text = path.read_text()
    at = text.index('"c10d::allreduce_"')
    path.write_text(text[:at] + "?" + text[at + 1 :])
    with pytest.raises(ArtifactError, match=r"traceEvents\[\d+\]: it is damaged: .*whole events"):
        read_timeline([path])


def test_letters_that_are_cut_harm_nothing(tmp_path, plain):
    paths = write(tmp_path, "rank", _ranks())
    for path in paths:
        content = path.read_bytes().replace(b'"process_name"', b'"proc\xc3\xff"')
        path.write_bytes(content)
    _same(read_timeline(paths), plain)


def test_no_damage_ends_in_another_error(tmp_path):
    (path,) = write(tmp_path, "rank", _ranks()[:1])
    content = path.read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice((len(damaged), draw.randrange(len(damaged))))])
        with contextlib.suppress(SyncopateError):  # it may be read all the same
            read_timeline([path])


def test_a_compressed_file_that_is_cut_off_says_how_much_of_it_is_whole(tmp_path):
    rows = [row for number in range(400) for row in _iteration(100 * number)]
    path = tmp_path / "rank0.json.gz"
    content = gzip.compress(json.dumps(profile(0, rows)).encode())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=r"cut off or damaged .*behind \d{3,} whole events"):
        read_timeline([path])


def test_files_of_different_times_are_remarked(tmp_path):
    documents = [profile(0, _iteration(0)), profile(1, _iteration(1000))]
    timeline = read_timeline(write(tmp_path, "rank", documents))
    assert any("no time is in the files of all ranks" in note for note in notes(timeline))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"rank": -7}, "the rank of a file is -7; it must be in 0"),
        ({"rank": 1e30}, "the rank of a file is 10000"),
        ({"world_size": 1 << 40}, "the world size of a file is 1099511627776; it must be at most"),
    ],
)
def test_ranks_that_there_cannot_be_are_refused_before_there_is_room_for_them(
    tmp_path, about, said
):
    document = profile(0, _iteration(0), world_size=1)
    document["distributedInfo"] |= about
    with pytest.raises(InvalidValueError, match=said):
        read_timeline(write(tmp_path, "rank", [document]))


def test_a_time_that_there_cannot_be_is_refused_with_its_rank(tmp_path):
    """Of several hosts, whose clocks are compared by it."""
    documents = [profile(r, [*_iteration(0), *_iteration(100)], host=f"h{r}") for r in (0, 1)]
    for event in documents[1]["traceEvents"]:
        if event["name"].startswith("gloo:"):
            event["dur"] = 1e30
    with pytest.raises(InvalidValueError, match=r"bytes of all_reduce on rank 1 is .*of 62 bits"):
        read_timeline(write(tmp_path, "rank", documents))

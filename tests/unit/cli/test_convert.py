"""``syncopate convert`` of recorded trainings."""

from __future__ import annotations

import json
import sys

import pytest

from syncopate.cli import main
from syncopate.timeline import Timeline
from tests.unit.tracing.foreign.made import entry, recorded, write


@pytest.fixture
def convert(monkeypatch, capfd, tmp_path):
    """Run the command in a folder with two recorded ranks; return exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    ranks = [recorded(rank, [entry(1, 1 + 4 * rank, 5)], [(9, 10)]) for rank in (0, 1)]
    write(tmp_path, "rank-", ranks)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["syncopate", "convert", *line.split()])
        code = main()
        told = capfd.readouterr()
        return code, told.out, told.err

    return run


def test_ranks_become_a_timeline_that_says_what_is_not_known(convert):
    code, out, err = convert("rank-0.json rank-1.json -o made/timeline.json")
    assert (code, out) == (0, "")
    assert "note: when 2 collectives ended is not known" in err
    assert err.endswith("wrote made/timeline.json\n")
    timeline = Timeline.load("made/timeline.json")
    assert timeline.world_size == 2
    assert Timeline.from_json(convert("rank-0.json rank-1.json")[1]) == timeline


def test_ranks_and_timelines_become_perfetto(convert):
    code, out, _ = convert("rank-0.json rank-1.json --to perfetto")
    assert code == 0
    events = json.loads(out)["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == {"bucket 0", "SGD"}
    convert("rank-0.json rank-1.json -o timeline.json")
    assert convert("timeline.json --to perfetto")[1] == out


def test_hta_and_chakra_have_a_folder_with_a_file_of_each_rank(convert, tmp_path):
    for to, names in (("hta", ["rank-0.json", "rank-1.json"]), ("chakra", ["0.et", "1.et"])):
        code, out, err = convert(f"rank-0.json rank-1.json --to {to} -o made/{to}")
        assert (code, out) == (0, "")
        assert "wrote made/" in err
        made = sorted((tmp_path / "made" / to).iterdir())
        assert all(path.name.endswith(name) for path, name in zip(made, names, strict=True))
        assert all(path.stat().st_size for path in made)
        code, _, err = convert(f"rank-0.json rank-1.json --to {to}")
        assert (code, f"--output is '-'; it must be a folder: {to}" in err) == (2, True)

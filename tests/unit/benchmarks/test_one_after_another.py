"""Collectives one after another: what is run, what is kept, and what goes on from it."""

from __future__ import annotations

import pytest

from syncopate.errors import ArtifactError
from syncopate.recipe import NATIVE
from syncopate.units import KIB, MIB
from tests.scripts import scripts


@pytest.fixture(scope="module")
def script():
    with scripts("one_after_another") as (found,):
        yield found


def test_left_out_are_twins_and_what_the_registry_calls_no_use_at_a_size(script):
    long = {cell.key[:2] for cell in script.contenders([2 * MIB])}
    assert ("reduce_scatter", "recursive") in long
    assert ("all_gather", NATIVE) in long
    assert ("all_reduce", "ring") in long
    assert not {"flat_tree", "mst", "be"} & {name for _, name in long}
    short = {cell.key[:2] for cell in script.contenders([4 * KIB])}
    assert short - long == {("all_reduce", "flat_tree")}
    assert ("all_reduce", "ring") not in {
        cell.key[:2] for cell in script.contenders([2 * MIB], ["ring"])
    }


def test_a_round_is_the_longest_rank_s_and_joins_those_before(script):
    setting = script.Setting(hosts=2, rate="1gbit")
    ran, other = script.contenders([MIB])[:2]
    before = script.Results(setting=setting, cells=(ran, other))
    once = script.with_round(before, [{ran.key: (1.0, 4.0)}, {ran.key: (3.0, 2.0)}])
    assert once.cells[0].alone_s == (3.0,)
    assert once.cells[0].in_a_row_s == (4.0,)
    assert once.cells[1] == other
    twice = script.with_round(once, [{ran.key: (1.0, 1.0)}, {ran.key: (2.0, 1.0)}])
    assert twice.cells[0].alone_s == (3.0, 2.0)


def test_a_stopped_run_goes_on_where_it_was(script, tmp_path):
    path, setting = tmp_path / "it.json", script.Setting(hosts=4, rate="1gbit")
    ran, other = script.contenders([MIB])[:2]
    first = script.resumed(path, setting, [ran])
    script.with_round(first, [{ran.key: (1.0, 2.0)}]).save(path)
    found = script.resumed(path, setting, [other, ran])
    assert [cell.key for cell in found.cells] == [ran.key, other.key]
    assert [len(cell.alone_s) for cell in found.cells] == [1, 0]


def test_samples_of_another_setting_are_not_mixed_in(script, tmp_path):
    path = tmp_path / "it.json"
    script.Results(setting=script.Setting(hosts=4, rate="1gbit")).save(path)
    with pytest.raises(ArtifactError, match=r"with hosts 4, and 8 is asked for.*another file"):
        script.resumed(path, script.Setting(hosts=8, rate="1gbit"), ())


def test_times_are_told_over_what_the_bytes_need_at_line_rate(script, capsys):
    setting = script.Setting(hosts=4, rate="1gbit")
    cell = script.Cell(collective="all_gather", algorithm="ring", nbytes=4 * MIB)
    # A rank sends three of four parts; 1448 of 1514 bytes on the wire are payload.
    need_s = 3 * MIB / (125e6 * 1448 / 1514)
    assert cell.bound_s(setting) == pytest.approx(need_s)
    held = script.Results(setting=setting, cells=(cell,))
    for share in (1.0, 1.5, 9.0):
        held = script.with_round(held, [{cell.key: (share * need_s, 2 * share * need_s)}])
    script.tell(held, {cell.key})
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["1.50", "3.00", "3"]


def test_help_has_examples(script):
    assert "--hosts 8 --rate 2gbit" in script.parser().format_help()

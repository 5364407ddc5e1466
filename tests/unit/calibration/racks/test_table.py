"""A table of racks is read as it stands, and refused with the line and the rule it breaks."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncopate.calibration.racks.table import groups_of, parse, read_groups
from syncopate.errors import ArtifactError

NAMES = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="#"), min_size=1)
TABLES = st.dictionaries(NAMES, NAMES, min_size=1, max_size=12)


def refused(text: str) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        parse(text.encode(), "racks.txt")
    return caught.value


class TestLines:
    def test_comments_blank_lines_and_any_blanks_between(self) -> None:
        text = "# the hall\n\nnode0 r1\n  node1\t \tr1  # new\nnode2 r2#old\n \t\n#node3 r2"
        assert parse(text.encode(), "f") == {"node0": "r1", "node1": "r1", "node2": "r2"}

    def test_files_from_windows(self) -> None:
        assert parse("\ufeffa r1\r\nb r2\r\n".encode(), "f") == {"a": "r1", "b": "r2"}

    def test_hadoop_names_racks_by_paths(self) -> None:
        assert parse(b"10.0.0.1 /hall1/r2", "f") == {"10.0.0.1": "/hall1/r2"}

    def test_the_same_line_twice_says_nothing_new(self) -> None:
        assert parse(b"a r1\na r1\n", "f") == {"a": "r1"}

    def test_an_empty_file_names_no_host(self) -> None:
        assert parse(b"", "f") == {}

    @pytest.mark.parametrize(
        ("line", "words"),
        [("node1", "'node1' is 1 word;"), ("a b c # d", "'a b c' is 3 words;")],
    )
    def test_a_line_of_another_number_of_words(self, line: str, words: str) -> None:
        error = refused(f"# racks\n\nnode0 r1\n{line}\n")
        assert str(error).startswith(f"racks.txt at line 4: {words} a line must name a host and")
        assert error.field == "line 4"

    def test_a_host_in_two_racks(self) -> None:
        error = refused("a r1\nb r1\na r1\na r2\n")
        assert str(error) == (
            "racks.txt at line 4: host 'a' is in rack 'r2' here and in 'r1' on line 1; "
            "a host must be in one rack, so leave out one of the lines"
        )

    def test_what_is_no_text(self) -> None:
        with pytest.raises(ArtifactError, match=r"racks.txt: not valid UTF-8"):
            parse(b"a r1\n\xff\xfe r2", "racks.txt")

    @given(table=TABLES, seed=st.integers(0, 1000))
    def test_what_is_written_is_read(self, table: dict[str, str], seed: int) -> None:
        randomness = random.Random(seed)
        lines = [host + randomness.choice(" \t") + rack for host, rack in table.items()]
        lines += randomness.choices(["", "  ", "# a b", "#"], k=4)
        randomness.shuffle(lines)
        text = randomness.choice(("\n", "\r\n")).join(lines)
        assert parse(text.encode(), "f") == table


class TestGroups:
    def test_hosts_and_racks_stand_in_the_order_of_their_ranks(self) -> None:
        rack_of = {"a": "r1", "b": "r2", "c": "r1", "d": "r2"}
        hosts = ["d", "d", "a", "b", "c", "a"]
        assert groups_of(rack_of, hosts, "f") == (("d", "b"), ("a", "c"))

    def test_other_hosts_and_their_racks_are_left_out(self) -> None:
        rack_of = {"z": "r9", "a": "r1", "y": "r1", "b": "r2"}
        assert groups_of(rack_of, ["a", "b"], "f") == (("a",), ("b",))

    def test_every_host_of_the_job_stands_in_it(self) -> None:
        with pytest.raises(ArtifactError) as caught:
            groups_of({"a": "r1", "b": "r1"}, ["a", "n1", "n1", "n2"], "racks.txt")
        assert str(caught.value) == (
            "racks.txt: no line for n1, n2; every host of the job must have a line 'host rack', "
            "by the name that `hostname` prints there; known: a, b"
        )

    def test_many_names_are_counted(self) -> None:
        rack_of = {f"n{i}": "r" for i in range(1000)}
        with pytest.raises(ArtifactError, match=r"known: n0, .*, n7 and 992 more$"):
            groups_of(rack_of, ["x"], "f")
        with pytest.raises(ArtifactError, match=r"no line for x0, .*, x7 and 1 more; .*none$"):
            groups_of({}, [f"x{i}" for i in range(9)], "f")

    @given(table=TABLES, seed=st.integers(0, 1000))
    def test_every_host_is_in_one_group_with_those_of_its_rack(
        self, table: dict[str, str], seed: int
    ) -> None:
        randomness = random.Random(seed)
        hosts = randomness.choices(list(table), k=2 * len(table))
        groups = groups_of(table, hosts, "f")
        assert sorted(host for group in groups for host in group) == sorted(set(hosts))
        assert [len({table[host] for host in group}) for group in groups] == [1] * len(groups)
        assert len({table[group[0]] for group in groups}) == len(groups)


class Ranks:
    """A communicator that keeps what rank 0 says for the others."""

    said: bytes = b""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def broadcast_object(self, obj: Any) -> Any:
        if self.rank == 0:
            Ranks.said = pickle.dumps(obj)
        return pickle.loads(Ranks.said)


class TestReading:
    @pytest.mark.parametrize("reason", ["No such file", "null byte"])
    def test_what_rank_0_cannot_read_all_ranks_refuse_alike(
        self, tmp_path: Path, reason: str
    ) -> None:
        path = tmp_path / ("none" if reason == "No such file" else "a\0b")
        words = set()
        for rank in range(3):
            with pytest.raises(
                ArtifactError, match=f"cannot read this table of racks: .*{reason}"
            ) as caught:
                read_groups(Ranks(rank), path, ["a"])  # type: ignore[arg-type]
            words.add(str(caught.value))
        assert len(words) == 1

    def test_the_file_of_rank_0_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "racks.txt"
        path.write_text("a r1\nb r2\n")
        first = read_groups(Ranks(0), path, ["b", "a"])  # type: ignore[arg-type]
        path.unlink()
        assert first == (("b",), ("a",))
        assert read_groups(Ranks(1), path, ["b", "a"]) == first  # type: ignore[arg-type]

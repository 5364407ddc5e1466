"""A benchmark that starts itself on every host of a lab: as what, where, and when not."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from benchmarks.emulated import hosts

from syncopate.lab import Topology


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a lab was asked to emulate and to run, were one made."""
    found: list[object] = []

    def run(command: list[str]) -> SimpleNamespace:
        found.append(command)
        return SimpleNamespace(exit_code=3)

    def lab(topology: Topology) -> nullcontext[SimpleNamespace]:
        found.append(topology)
        return nullcontext(SimpleNamespace(run=run))

    monkeypatch.setattr(hosts, "Lab", lab)
    monkeypatch.setattr(hosts, "why_not", lambda: None)
    monkeypatch.setattr(sys, "argv", ["script.py", "--hosts", "3", "--rate", "10gbit"])
    return found


def options(*words: str) -> argparse.Namespace:
    parser = hosts.parser("A benchmark.")
    parser.add_argument("--rate", default="1gbit")
    return parser.parse_args([*sys.argv[1:], *words])


def test_every_rank_is_the_script_with_the_same_arguments(asked: list[object]) -> None:
    assert hosts.run("/a/script.py", options(), pytest.fail, ranks_per_host=2) == 3
    topology, command = asked
    assert topology == Topology(hosts=3, ranks_per_host=2, rate_bytes_per_s=10e9 / 8)
    assert command == [sys.executable, "/a/script.py", "--rank", *sys.argv[1:]]


def test_a_rank_starts_no_lab(asked: list[object]) -> None:
    ran: list[argparse.Namespace] = []
    assert hosts.run("/a/script.py", options("--rank"), ran.append) == 0
    assert [one.hosts for one in ran] == [3]
    assert asked == []


def test_where_no_lab_can_be_made_it_says_why(
    asked: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "why_not", lambda: "it is no Linux")
    assert hosts.run("/a/script.py", options(), pytest.fail) == 0
    assert capsys.readouterr().out == "skipped: it is no Linux\n"
    assert asked == []

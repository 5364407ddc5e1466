from __future__ import annotations

import sys

import pytest

from syncopate.lab.output import LineBuffer, PrefixedOutput


@pytest.mark.parametrize(
    ("chunks", "lines", "rest"),
    [
        ([b"a\nb\n"], ["a", "b"], []),
        ([b"a", b"b\nc"], ["ab"], ["c"]),
        ([b"a\r\nb\r", b"\nc"], ["a", "b"], ["c"]),
        ([b"\r10%\r20%\r", b"\r30%\n"], ["10%", "20%", "30%"], []),
        ([b"a\n\nb\n"], ["a", "", "b"], []),
        ([b"50%\r"], [], ["50%"]),
        ([b"caf\xc3", b"\xa9 \xff\n"], ["café \ufffd"], []),
        ([], [], []),
    ],
)
def test_bytes_become_lines(chunks, lines, rest):
    buffer = LineBuffer()
    assert [line for chunk in chunks for line in buffer.feed(chunk)] == lines
    assert buffer.flush() == rest
    assert buffer.flush() == []


def test_lines_carry_their_rank(capsys):
    sink = PrefixedOutput(["host0 rank 0", "host0 rank 10"])
    sink(0, "stdout", "up")
    sink(1, "stderr", "[down]")
    captured = capsys.readouterr()
    assert captured.out == "[host0 rank 0 ] up\n"
    assert captured.err == "[host0 rank 10] [down]\n"


def test_ranks_have_colours_of_their_own_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    sink = PrefixedOutput(["0", "1"])
    sink(0, "stdout", "x")
    sink(1, "stdout", "x")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "\x1b[36m[0]\x1b[0m x"
    assert second.replace("33m[1]", "36m[0]") == first

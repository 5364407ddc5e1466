from __future__ import annotations

import sys

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from syncopate.cli import lab, main
from syncopate.cli.app import app
from syncopate.cli.common.options import grouped
from syncopate.lab import support
from syncopate.lab.network import LinkCounter
from syncopate.lab.state import LabState
from syncopate.lab.topology import Topology


def _parse(*arguments: str) -> Topology:
    seen = []
    builder = typer.Typer()

    @builder.command()
    @grouped(topology=lab._topology)
    def build(*, topology: Topology, word: str = "") -> None:
        """Build."""
        assert word in ("", "x")
        seen.append(topology)

    result = CliRunner().invoke(builder, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_options_describe_a_topology():
    assert _parse() == Topology(hosts=2, rate_bytes_per_s=1e9 / 8)
    line = "-n 4 -r 2 --rate 10gbit --racks 2 --uplink 4gbit --placement alternating --word x"
    assert _parse(*line.split()) == Topology(
        hosts=4,
        ranks_per_host=2,
        rate_bytes_per_s=10e9 / 8,
        racks=2,
        uplink_bytes_per_s=4e9 / 8,
        placement="alternating",
    )
    slow = _parse("--hosts", "3", "--slow-host", "2=100mbit", "--slow-host", "0=10mbit")
    assert slow.host_rates_bytes_per_s == (10e6 / 8, 1e9 / 8, 100e6 / 8)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "fast"], "rate is 'fast'; it must be a number and one of bit, kbit"),
        (["--rate", "100gbit"], "--rate is 12500000000.0; it must be between 1.00 Mbit/s"),
        (["--slow-host", "2"], "--slow-host is '2'; it must be HOST=RATE, such as 2=100mbit"),
        (["--slow-host", "9=1mbit"], "host is 9; it must be in 0..1"),
        (["--hosts", "3", "--racks", "2"], "racks is 2; it must be a divisor of the 3 hosts: 1, 3"),
        (["--uplink", "1gbit"], "left out with one rack"),
        (["--placement", "mixed"], "unknown placement 'mixed'; known: blocked, alternating"),
    ],
)
def test_mistakes_on_the_command_line_are_named(monkeypatch, capsys, arguments, complaint):
    monkeypatch.setattr(sys, "argv", ["syncopate", "lab", "run", *arguments, "--", "true"])
    assert main() == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "--", "true"], ["up"], ["clean"], ["down"]])
def test_without_the_privileges_each_command_says_so(monkeypatch, capsys, command):
    monkeypatch.setattr(support, "_has_capabilities", lambda: False)
    monkeypatch.setattr(sys, "argv", ["syncopate", "lab", *command])
    assert main() == 1
    assert "needs the capabilities" in capsys.readouterr().err


def test_labs_and_links_can_be_read_on_40_columns(monkeypatch, capsys):
    shown = Console(width=40, force_terminal=False)
    monkeypatch.setattr(lab, "out", lambda *given: shown)
    topology = Topology(hosts=4, racks=2)
    one = LabState(run_id="0a1b2c", topology=topology, owner_pid=7, owner_started=1)
    monkeypatch.setattr("syncopate.lab.state.recorded", lambda: [(one, "running")])
    lab.show()
    lab._print_links((LinkCounter(name="host0", tx_bytes=1 << 30, rx_bytes=3 << 30),), None)
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 40
    assert "…" not in told
    words = " ".join(told.split())
    assert "0a1b2c running pid 7 4 hosts x 1 rank at" in words
    assert "host0 sent 1.0 GiB, bytes sent 1073741824, received 3.0 GiB" in words


@pytest.mark.parametrize("command", ["run", "up", "exec", "show", "down", "clean"])
def test_help_shows_an_example(command):
    result = CliRunner().invoke(app, ["lab", command, "--help"])
    assert result.exit_code == 0
    assert result.output.count(f"syncopate lab {command}") > 1  # once is the usage

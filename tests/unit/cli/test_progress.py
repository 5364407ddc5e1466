"""Progress off a terminal: lines, and what SIGTERM does to long work."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from syncopate.artifacts.results.whatif import WhatIf
from syncopate.cli.common import console
from syncopate.cli.common.console import progress_bar
from syncopate.cli.common.ending import EndedError, ended_once
from tests.children import HANGS_S, environment


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(console, "LINE_S", 0.02)
    said = ""
    with progress_bar("measuring") as advance:
        advance("ring 4 MiB", 0.25)
        until_s = time.monotonic() + HANGS_S
        while said.count("\n") < 2:
            assert time.monotonic() < until_s
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said.splitlines()[-1] == "measuring: 25%, ring 4 MiB"
    assert "syncopate-progress" not in {thread.name for thread in threading.enumerate()}


def test_ranks_that_do_not_lead_say_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(console, "LINE_S", 0.01)
    with progress_bar("measuring"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_sigterm_ends_a_block_as_an_interrupt_does_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EndedError) as ended, ended_once():
        signal.raise_signal(signal.SIGTERM)
    assert isinstance(ended.value, KeyboardInterrupt)
    assert ended.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_it_changes_no_handler() -> None:
    seen = []

    def work() -> None:
        with progress_bar("measuring"):
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_sweep_that_is_ended_keeps_the_points_that_it_has(run) -> None:
    """A point of the base is done when the first of the others begins."""
    script = """
        import os, signal, sys
        from syncopate.planning.whatif import study
        run = study.Study.run
        def ended(self, progress=None):
            def advance(what, fraction):
                if self.done == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                progress(what, fraction)
            run(self, advance)
        study.Study.run = ended
        from syncopate.cli import main
        sys.argv = "syncopate whatif workload.json --network 10gbe --nodes 2,4,8,16".split()
        sys.exit(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=HANGS_S,
    )
    assert done.returncode == 143, done.stderr
    assert "interrupted: 2 of 4 points are kept" in done.stderr
    found = WhatIf.load("whatif.json")
    assert (len(found.points), found.complete) == (2, False)

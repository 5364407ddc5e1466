"""``syncopate ps``: all processes of a job started, ended and named by the command line."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.children import HANGS_S, REPOSITORY, environment
from tests.multiprocess.paramserver.servers import wait_for

MARK = "SYNCOPATE_TEST_MARK"
LIMIT_S = HANGS_S / 2
"""Bound on any command here; in fact some seconds, on a machine that others load too."""

TRAIN = """
    import os, sys, time, torch
    from syncopate import KVStore

    with KVStore() as store:
        weights = torch.zeros(1000)
        store.init({"w": weights})
        for step in range(20):
            if step == 10 and store.rank == 1 and sys.argv[1] == "fail":
                print("this is the reason", file=sys.stderr)
                sys.exit(7)
            if step == 10 and store.rank == 0 and sys.argv[1] == "kill":
                for process in filter(str.isdecimal, os.listdir("/proc")):
                    try:
                        line = open(f"/proc/{process}/cmdline").read()
                    except OSError:  # others end meanwhile
                        continue
                    if f"{sys.argv[2]}/server-1" in line:
                        os.kill(int(process), 9)
            store.push("w", torch.full((1000,), float(store.rank))).wait()
            store.pull("w", weights).wait()
        print(f"rank {store.rank} of {store.num_workers}: {weights[0].item():.4f}")
"""


def _script(folder, text):
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def _start(mark, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "syncopate", "ps", *map(str, arguments)],
        env=environment(**{MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ran(*arguments):
    mark = secrets.token_hex(8)
    process = _start(mark, *arguments)
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert _left(mark) == []
    return process.returncode, out, errors


def _left(mark):
    """Return the command lines of processes that carry ``mark``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_a_local_job_runs_to_its_end(tmp_path):
    line = [*_script(tmp_path, TRAIN), "run"]
    code, out, errors = _ran("local", "--workers", 2, "--", *line)
    assert code == 0, errors
    # Twenty steps of the mean of 0 and 1, at a learning rate of 0.1.
    assert sorted(out.splitlines()) == ["rank 0 of 2: -1.0000", "rank 1 of 2: -1.0000"]
    assert len(errors.splitlines()) == 1
    assert "1 worker" not in errors


def test_the_example_trains_the_digits():
    pytest.importorskip("sklearn")
    example = str(REPOSITORY / "examples" / "served.py")
    line = [sys.executable, example, "--epochs", "1", "--batch-size", "64"]
    code, out, errors = _ran("local", "--servers", 2, "--workers", 2, "--", *line)
    assert code == 0, errors
    accuracy = re.fullmatch(r"test accuracy on 2 workers: ([\d.]+)%\n", out)
    assert accuracy is not None, out
    assert float(accuracy[1]) > 50


def test_the_example_with_tables_trains_as_plain_pytorch():
    example = str(REPOSITORY / "examples" / "clicks.py")
    line = [sys.executable, example, "--steps", "20", "--batch-size", "64"]
    code, out, errors = _ran("local", "--servers", 2, "--workers", 2, "--", *line)
    assert code == 0, errors
    told = re.search(r"losses differ by ([\d.e+-]+) at most, weights by ([\d.e+-]+)\n", out)
    assert told is not None, out
    assert max(map(float, told.groups())) < 1e-4


def test_a_server_that_is_killed_is_started_again(tmp_path):
    line = [*_script(tmp_path, TRAIN), "kill", tmp_path]
    state = ("--state", tmp_path, "--restarts", 1)
    code, out, errors = _ran("local", "--servers", 2, "--workers", 2, *state, "--", *line)
    assert code == 0, errors
    assert sorted(out.splitlines()) == ["rank 0 of 2: -1.0000", "rank 1 of 2: -1.0000"]
    assert "server 1 ended with exit code 137; started again" in errors


def test_a_worker_that_fails_stops_the_rest_and_is_shown(tmp_path):
    line = [*_script(tmp_path, TRAIN), "fail"]
    code, _, errors = _ran("local", "--workers", 2, "--", *line)
    assert code == 7
    shown = errors[errors.index("worker 1 ended with exit code 7; its last lines:") :]
    assert "this is the reason" in shown


def test_the_others_go_on_without_a_worker_where_they_are_told_to(tmp_path):
    script = """
        import os, torch
        from syncopate import KVStore
        from syncopate.protocol.limits import Limits

        with KVStore(limits=Limits(heartbeat_s=0.1, silence_s=1.0)) as store:
            weights = torch.zeros(10)
            store.init({"w": weights})
            if store.rank == 1:
                os.kill(os.getpid(), 9)
            for step in range(3):
                store.push("w", torch.ones(10)).wait()
                store.pull("w", weights).wait()
        print(f"{weights[0].item():.1f}")
    """
    given = ("--workers", 2, "--on-worker-loss", "continue")
    code, out, errors = _ran("local", *given, "--", *_script(tmp_path, script))
    assert code == 0, errors
    assert out == "-0.3\n"
    assert "worker 1 ended with exit code 137; the others go on without it" in errors


def test_a_progress_line_of_a_worker_moves_at_the_terminal(tmp_path):
    script = """
        import os, sys, time
        from rich.console import Console

        shown = Console(stderr=True).is_terminal
        print(f"terminal: {shown}", end="\\r", file=sys.stderr, flush=True)
        # The second half is written when the first one was seen.
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        print("done", file=sys.stderr)
    """
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "syncopate", "ps", "local", "--workers", "1", "--"),
            *(*_script(tmp_path, script), str(tmp_path / "seen")),
        ],
        env=environment(),
        stderr=theirs,
    )
    os.close(theirs)
    try:
        _until(ours, b"terminal: True\r")
        (tmp_path / "seen").touch()
        _until(ours, b"done")
        assert process.wait(HANGS_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_an_interrupted_progress_line_leaves_the_cursor_as_it_was(tmp_path):
    script = """
        import time
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as progress:
            progress.add_task("training")
            time.sleep(600)
    """
    ours, theirs = os.openpty()
    line = ("local", "--workers", "1", "--", *_script(tmp_path, script))
    process = subprocess.Popen(
        [sys.executable, "-m", "syncopate", "ps", *line], env=environment(), stderr=theirs
    )
    os.close(theirs)
    try:
        _until(ours, b"\x1b[?25l")
        _until(ours, b"training")
        process.send_signal(signal.SIGINT)
        _until(ours, b"\x1b[?25h")
        assert process.wait(HANGS_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(terminal, words):
    """Read from ``terminal`` until it said ``words``."""
    said = b""
    while words not in said:
        said += os.read(terminal, 1000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing_behind(tmp_path, number):
    line = _script(tmp_path, "import time, sys; open(sys.argv[1], 'w'); time.sleep(600)")
    mark = secrets.token_hex(8)
    process = _start(mark, "local", "--workers", 1, "--", *line, tmp_path / "here")
    wait_for((tmp_path / "here").exists)
    assert len(_left(mark)) == 4
    os.kill(process.pid, number)
    # Nobody waits for the worker, which goes on for longer than this test may.
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert _left(mark) == []


def test_a_second_interrupt_waits_for_nobody(tmp_path):
    script = """
        import signal, sys, time

        signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[2], "w"))
        open(sys.argv[1], "w")
        while True:
            time.sleep(600)
    """
    line = [*_script(tmp_path, script), tmp_path / "here", tmp_path / "asked"]
    mark = secrets.token_hex(8)
    process = _start(mark, "local", "--workers", 1, "--", *line)
    for seen in ("here", "asked"):
        wait_for((tmp_path / seen).exists)
        os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert _left(mark) == []


def test_a_program_that_is_not_there_is_refused_in_one_line():
    code, out, errors = _ran("local", "--", "no-such-program")
    assert code == 2
    assert "no-such-program" in errors
    assert out == ""
    assert "Traceback" not in errors


TRAIN_AND_DIE = """
    import os, sys, torch
    from pathlib import Path
    from syncopate import KVStore

    died = Path(sys.argv[1])
    with KVStore() as store:
        weights = torch.zeros(1000)
        store.init({"w": weights})
        for step in range(store.step, 20):
            if (step, store.rank) == (10, 1) and not died.exists():
                died.touch()
                os.kill(os.getpid(), 9)
            store.push("w", torch.full((1000,), float(store.rank))).wait()
            store.pull("w", weights).wait()
        print(f"rank {store.rank} from step {store.step}: {weights[0].item():.4f}")
"""


def test_a_local_job_starts_a_worker_again_where_it_waits_for_it(tmp_path):
    line = [*_script(tmp_path, TRAIN_AND_DIE), str(tmp_path / "died")]
    options = ["--on-worker-loss", "wait", "--restarts", 1]
    code, out, errors = _ran("local", "--workers", 2, *options, "--", *line)
    assert code == 0, errors
    assert sorted(out.splitlines()) == [
        "rank 0 from step 0: -1.0000",
        "rank 1 from step 10: -1.0000",
    ]
    assert "worker 1 ended with exit code 137; started again" in errors

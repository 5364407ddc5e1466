"""Capture of a parameter server's nodes: every message of real trainings, counted one by one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.runs.served import trips_of
from syncopate.tracing import dlc
from syncopate.tracing.capture import VARIABLE
from syncopate.tracing.dlc.records import Record, SetUp
from syncopate.tracing.run import Run, read_run
from syncopate.tracing.served.node_offsets import pairs
from syncopate.tracing.served.rows import Wired
from syncopate.tracing.served.to_dlc import NodeTrace, dlc_files, dlc_traces
from tests.children import HANGS_S, environment

STEPS = 6
LR = 0.125

TRAIN = f"""
    import torch
    import torch.distributed as dist
    import syncopate

    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr={LR})
    with syncopate.KVStore() as store:
        trained, optimizer = syncopate.distribute(model, optimizer, exchange=store)
        for step in range({STEPS}):
            optimizer.zero_grad()
            trained(torch.ones(4, 8)).square().sum().backward()
            optimizer.step()
        trained.syncopate.detach()
    dist.destroy_process_group()
"""
NBYTES = {"0.bias": 64, "0.weight": 512, "1.bias": 16, "1.weight": 256}
"""Of the tensors of the model; a slice each, numbered by name."""

SET_UP = ("Hello", "HelloWanted", "Welcome", "Declare")

PARTS = """
    import torch
    from syncopate import KVStore
    from syncopate.protocol.limits import Limits

    with KVStore(limits=Limits(slice_bytes=4096)) as store:
        weights = torch.zeros(4096)
        store.init({"w": weights})
        for step in range(5):
            store.push("w", torch.ones(4096)).wait()
            store.pull("w", weights).wait()
"""

KILLED = """
    import os, time, torch
    from pathlib import Path
    from syncopate import KVStore
    from syncopate.tracing.served.read import node_files
    from syncopate.tracing.served.rows import KINDS

    def written():
        (file,) = (f for f in node_files("RUN", []) if f.header.role == "server")
        pushes = file.records[file.records["kind"] == KINDS.index("Push")]
        return sum(pushes["number"] == 10) == 2

    with KVStore() as store:
        weights = torch.zeros(100)
        store.init({"w": weights})
        for step in range(10):
            store.push("w", torch.ones(100)).wait()
            store.pull("w", weights).wait()
        if store.rank == 0:
            while not written():
                time.sleep(0.05)
            for process in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    line = Path(f"/proc/{process}/cmdline").read_text()
                except OSError:
                    continue
                if "STATE/server-0" in line:
                    os.kill(int(process), 9)
        for step in range(10):
            store.push("w", torch.ones(100)).wait()
            store.pull("w", weights).wait()
"""


def captured(folder: Path, script: str, *options: object) -> Run:
    """Run a job on this machine with one variable set, and read what it wrote."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    line = [sys.executable, "-m", "syncopate", "ps", "local", *map(str, options), "--"]
    ran = subprocess.run(
        [*line, sys.executable, str(path)],
        env=environment(**{VARIABLE: str(folder / "run")}),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return read_run(folder / "run")


def require_sound(run: Run, folder: Path) -> None:
    """Every message that arrived was sent before, and the DLC files are read as they were made."""
    assert run.served is not None
    for sent, came, _, _ in pairs(list(run.served.messages.values())):
        assert sent.time_s <= came.time_s
        assert sent.nbytes == came.nbytes
    files, _ = dlc_files(run.served)
    for name, trace in dlc_traces(run.served).items():
        path = folder / f"{name}.txt"
        path.write_bytes(files[path.name])
        assert dlc.read(path) == (trace.header, trace.records, ())
        assert dlc.findings(trace.records) == ()


def of(run: Run, node: str, kind: str) -> list[Wired]:
    assert run.served is not None
    return [m for m in run.served.messages[node] if m.kind == kind]


def test_every_message_of_a_training_is_captured(tmp_path: Path) -> None:
    run = captured(tmp_path, TRAIN, "--workers", 2, "--servers", 1)
    assert run.remarks == ()
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written == {
        "rank-0.trace", "rank-1.trace", "worker-0.trace", "worker-1.trace", "server-0.trace",
        "scheduler.trace",
    }  # fmt: skip
    require_sound(run, tmp_path)
    served = run.served
    assert served is not None
    assert {key: one.tensor for key, one in served.keys.items()} == dict(enumerate(sorted(NBYTES)))
    keys, sizes = len(NBYTES), [NBYTES[name] for name in sorted(NBYTES)]
    for rank in range(2):
        first = keys if rank == 0 else 0
        pushed = of(run, f"w{rank}", "Push")
        assert Counter((m.key, m.number) for m in pushed) == Counter(
            (key, number)
            for key in range(keys)
            for number in range(0 if rank == 0 else 1, STEPS + 1)
        )
        for m in pushed:
            lr = LR if m.number else None
            assert m.nbytes == len(codec.encode(msg.Push(m.key, m.number, lr))) + sizes[m.key]
        pulled = of(run, f"w{rank}", "Pull")
        assert Counter((m.key, m.number) for m in pulled) == Counter(
            (key, after) for key in range(keys) for after in range(STEPS + 1)
        )
        for m in of(run, f"w{rank}", "Weights"):
            header = len(codec.encode(msg.Weights(m.key, m.number, m.other)))
            assert m.nbytes == header + sizes[m.key]
        assert len(pushed) == first + keys * STEPS
        assert len(of(run, f"w{rank}", "Weights")) == keys * (STEPS + 1)
    # Of two pushes of a slice the first is answered twice: that it came, and that both did. A
    # worker that waits for long, as on a busy machine, asks, and is answered besides.
    unasked = [m for m in of(run, "s0", "Ack") if not m.asked]
    assert len(unasked) == keys + 3 * keys * STEPS
    assert len(of(run, "s0", "Push")) == keys + 2 * keys * STEPS
    assert len(of(run, "s0", "Weights")) == 2 * keys * (STEPS + 1)
    assert Counter(w.kind for w in served.work) == {
        "initialise": keys,
        "update": keys * STEPS,
        "search": 2 * keys * (STEPS + 1),
    }
    traces = dlc_traces(served)
    records = {
        name: len([one for one in trace.records if isinstance(one, Record)])
        for name, trace in traces.items()
        if name != "scheduler"
    }
    assert records == {
        "worker-0": 4 * keys + 4 * keys * STEPS,
        "worker-1": 2 * keys + 4 * keys * STEPS,
        "server-0": 6 * keys + 8 * keys * STEPS,
    }
    require_set_up(run, traces)
    assert {m.kind for m in served.messages["scheduler"]} >= {"Register", "Roster", "Leave"}
    assert {m.peer for m in served.messages["scheduler"]} == {"w0", "w1", "s0"}
    assert {span.rank for span in run.timeline.spans} == {0, 1}
    require_carried(run)


def require_set_up(run: Run, traces: dict[str, NodeTrace]) -> None:
    """Each worker said hello, was welcomed and declared the keys, and each of that has a record.

    On a busy machine a welcome may come late, and a hello again; nothing else is said twice.
    """
    for node, name, workers in (
        ("w0", "worker-0", 1),
        ("w1", "worker-1", 1),
        ("s0", "server-0", 2),
    ):
        said = [m for kind in SET_UP for m in of(run, node, kind)]
        counts = Counter(m.kind for m in said)
        assert counts["Declare"] == workers
        assert counts["Hello"] >= workers <= counts["Welcome"]
        assert len([one for one in traces[name].records if isinstance(one, SetUp)]) == len(said)


def require_carried(run: Run) -> None:
    """Each slice was under way while the spans lasted that are said to have carried it."""
    spans = {(s.lane, s.rank, s.name, s.iteration): s for s in run.timeline.spans}
    trips = trips_of(run)
    assert {(t.rank, t.key, t.iteration) for t in trips} >= {
        (rank, key, step)
        for rank in range(2)
        for key in range(len(NBYTES))
        for step in range(STEPS)
    }
    for trip in trips:
        push = spans["push", trip.rank, trip.name, trip.iteration]
        pull = spans["pull", trip.rank, trip.name, trip.iteration]
        assert push.start_s <= trip.queued_s <= trip.came_s <= push.end_s
        assert pull.start_s <= trip.pulled_s <= trip.back_s <= pull.end_s


def test_parts_of_a_tensor_are_keys_of_two_servers(tmp_path: Path) -> None:
    run = captured(tmp_path, PARTS, "--workers", 1, "--servers", 2)
    served = run.served
    assert served is not None
    require_sound(run, tmp_path)
    assert [(one.tensor, one.begin, one.numel) for one in served.keys.values()] == [
        ("w", 1024 * part, 1024) for part in range(4)
    ]
    assert Counter(one.server for one in served.keys.values()) == {0: 2, 1: 2}
    for server in range(2):
        mine = {key for key, one in served.keys.items() if one.server == server}
        pushed = of(run, f"s{server}", "Push")
        assert Counter(m.key for m in pushed) == dict.fromkeys(mine, 6)
        assert sum(m.nbytes for m in of(run, f"s{server}", "Weights")) > 6 * 2 * 4096
    # No rank wrote a file: the timeline is of the worker's messages.
    names = {span.name for span in run.timeline.spans if span.lane == "push"}
    assert names == {f"w[{1024 * part}:{1024 * part + 1024}]" for part in range(4)}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_server_captured_before_a_kill_can_be_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    script = KILLED.replace("STATE", str(state)).replace("RUN", str(tmp_path / "run"))
    options = ("--workers", 2, "--state", state, "--restarts", 1)
    run = captured(tmp_path, script, *options)
    require_sound(run, tmp_path)
    assert (tmp_path / "run" / "server-0-2.trace").exists()
    pushed = Counter((m.peer, m.number) for m in of(run, "s0", "Push"))
    assert set(pushed) >= {(worker, n) for worker in ("w0", "w1") for n in range(1, 11)}
    for worker in ("w0", "w1"):
        sent = Counter(m.number for m in of(run, worker, "Push"))
        assert set(sent) - {0} == set(range(1, 21))

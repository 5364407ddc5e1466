"""How a job stands: asked of its scheduler, by its processes' metrics, and on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from syncopate.cli import main
from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.metrics.place import VARIABLE
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.status import status
from syncopate.paramserver.wire import security
from syncopate.paramserver.worker import KVStore
from tests.children import HANGS_S, environment
from tests.multiprocess.paramserver.servers import LocalServers, wait_for

STEPS = 3


def _trains(store: KVStore, gate: Path) -> None:
    """Push and pull, and wait until the test has looked."""
    weights = torch.zeros(1000)
    store.init({"w": weights})
    for _ in range(STEPS):
        store.push("w", torch.ones(1000)).wait()
        store.pull("w", weights).wait()
    (gate / f"worker-{store.rank}").touch()
    until_s = time.monotonic() + HANGS_S
    while not (gate / "go").exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_who_asks_learns_how_far_each_node_is(tmp_path: Path) -> None:
    with LocalServers(servers=2, workers=2) as running:
        workers = running.start(_trains, tmp_path)
        wait_for(lambda: len(list(tmp_path.glob("worker-*"))) == 2)
        # Each node's own heartbeat carries it.
        wait_for(lambda: all(n.figures.step == STEPS for n in _nodes(running.job, "worker")))
        wait_for(lambda: any(n.figures.step == STEPS for n in _nodes(running.job, "server")))
        said = status(running.job).standing
        assert (said.complete, said.servers, said.workers) == (True, 2, 2)
        assert [(n.role, n.rank, n.state) for n in said.nodes] == [
            ("server", 0, "here"), ("server", 1, "here"),
            ("worker", 0, "here"), ("worker", 1, "here"),
        ]  # fmt: skip
        servers = [n.figures for n in said.nodes if n.role == "server"]
        assert sorted(one.slices for one in servers) == [0, 1]
        assert sum(one.nbytes for one in servers) == 4000
        assert max(one.step for one in servers) == STEPS
        assert all(n.address for n in said.nodes if n.role == "server")
        (tmp_path / "go").touch()
        for worker in workers:
            worker.result()
        assert running.ended() is None


def _nodes(job: Job, role: str) -> list[Any]:
    return [node for node in status(job).standing.nodes if node.role == role]


@pytest.fixture
def gathering() -> Any:
    """Run a job whose workers have not come."""
    with LocalServers(servers=1, workers=2) as running:
        yield running


def test_the_command_prints_a_table_and_json(gathering, monkeypatch, capfd) -> None:
    address = f"127.0.0.1:{gathering.job.port}"
    wait_for(lambda: status(gathering.job).standing.nodes)
    monkeypatch.setattr(sys, "argv", ["syncopate", "ps", "status", address])
    assert main() == 0
    out = capfd.readouterr().out
    assert "1 of 1 servers here, 0 of 2 workers here; waiting for the others" in out
    assert "server, no rank yet" in out
    monkeypatch.setattr(sys, "argv", ["syncopate", "ps", "status", address, "--json"])
    assert main() == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["complete"], said["nodes"][0]["role"]) == (False, "server")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["10.0.0.1:9091"], 2, "local without a key"),
        (["nonsense"], 2, "HOST:PORT is 'nonsense'"),
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(
    arguments, code, said, monkeypatch, capfd
) -> None:
    monkeypatch.setattr(sys, "argv", ["syncopate", "ps", "status", *arguments])
    assert main() == code
    assert said in capfd.readouterr().err


def test_who_names_another_job_is_refused(gathering) -> None:
    other = Job(port=gathering.job.port, name="another")
    with pytest.raises(ParameterServerError, match="the job here has another name"):
        status(other)
    assert gathering.scheduler.refused["other run"] >= 1


def test_where_no_scheduler_is_that_is_said() -> None:
    with pytest.raises(ParameterServerError, match=r"no scheduler answered at .* within 0\.2 s"):
        status(Job(port=free_port()), answer_s=0.2)


def test_without_the_job_s_key_nothing_is_learnt(tmp_path: Path) -> None:
    for name in ("job.key", "other.key"):
        security.make_key(tmp_path / name)
    with LocalServers(servers=1, workers=1, key=tmp_path / "job.key") as running:
        assert status(running.job).standing.workers == 1
        for key in (None, tmp_path / "other.key"):
            stranger = Job(port=running.job.port, key=key)
            with pytest.raises(ParameterServerError, match="no scheduler answered"):
                status(stranger, answer_s=1.0)
    with pytest.raises(InvalidValueError, match="local without a key"):
        status(Job(uri="192.0.2.1"))


TRAIN = """
    import torch
    from syncopate import KVStore

    with KVStore() as store:
        weights = torch.zeros(1000)
        store.init({"w": weights})
        for _ in range(3):
            store.push("w", torch.ones(1000)).wait()
            store.pull("w", weights).wait()
"""


def test_every_node_publishes_its_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    folder = tmp_path / "metrics"
    line = [sys.executable, "-m", "syncopate", "ps", "local", "--servers", "1", "--workers", "2"]
    subprocess.run(
        [*line, "--", sys.executable, str(tmp_path / "train.py")],
        check=True,
        env=environment(**{VARIABLE: str(folder)}),
        timeout=HANGS_S,
    )
    names = ("scheduler", "server-0", "worker-0", "worker-1")
    found = {name: samples((folder / f"{name}.prom").read_text()) for name in names}
    assert found["scheduler"]['syncopate_ps_queued_messages{role="scheduler",rank="0"}'] == 0
    for rank in range(2):
        values, mine = found[f"worker-{rank}"], f'role="worker",rank="{rank}"'
        assert values[f"syncopate_ps_step{{{mine}}}"] == STEPS
        pushes = f'syncopate_ps_messages_total{{{mine},kind="Push",way="sent"}}'
        assert values[pushes] == STEPS + (rank == 0)  # its first values are one
        assert values[pushes.replace("messages", "bytes")] > STEPS * 4000
    values, mine = found["server-0"], 'role="server",rank="0"'
    assert values[f"syncopate_ps_weights_bytes{{{mine}}}"] == 4000
    assert values[f"syncopate_ps_stale_pushes_total{{{mine}}}"] == 2 * STEPS
    assert values[f"syncopate_ps_stale_updates_most{{{mine}}}"] == 0  # all workers push each time


AHEAD = """
    import sys, time, torch
    from pathlib import Path
    from syncopate import KVStore

    with KVStore() as store:
        store.init({"w": torch.zeros(1000)})
        while store.rank and not Path(sys.argv[1]).exists():
            time.sleep(0.02)
        store.push("w", torch.ones(1000)).wait()
"""


def test_a_server_publishes_on_the_port_that_it_was_given(tmp_path: Path) -> None:
    """One worker is ahead; its gradient is seen to wait until the other may go on."""
    (tmp_path / "train.py").write_text(textwrap.dedent(AHEAD))
    place = ["--port", str(free_port()), "--servers", "1", "--workers", "2"]
    port, gate = free_port(), tmp_path / "gate"
    line = [sys.executable, "-m", "syncopate", "ps"]
    told = environment(
        DMLC_PS_ROOT_PORT=place[1], DMLC_NUM_SERVER="1", DMLC_NUM_WORKER="2", DMLC_ROLE="worker"
    )
    script = [sys.executable, str(tmp_path / "train.py"), str(gate)]
    processes = [
        subprocess.Popen([*line, "scheduler", *place], env=environment()),
        subprocess.Popen([*line, "server", *place, "--metrics", str(port)], env=environment()),
        *(subprocess.Popen(script, env=told) for _ in range(2)),
    ]
    waiting = 'syncopate_ps_waiting_gradients{role="server",rank="0"}'

    def fetched() -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return samples(answer.read().decode())
        except OSError:  # it does not listen yet
            return {}

    try:
        wait_for(lambda: fetched().get(waiting) == 1)
        found = fetched()
        came = 'syncopate_ps_messages_total{role="server",rank="0",kind="Push",way="received"}'
        assert found[came] == 2  # first values, and a gradient
        assert found[came.replace("messages", "bytes")] > 2 * 4000
        gate.touch()
        assert [process.wait(HANGS_S) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait()


def samples(text: str) -> dict[str, float]:
    """Return the samples of a text of metrics."""
    values = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in values}

"""SketchDLC's experiment on real processes: every message is counted and has its length."""

from __future__ import annotations

from pathlib import Path

import sketchdlc
import sketchdlc_runs as runs
import sketchdlc_worker as work
from syncopate.protocol.codec import encode
from syncopate.protocol.messages import Ack, Pull, Push, Weights
from syncopate.tracing import dlc

ITERATIONS = 3


def _headers(key: int, sequence: int) -> dict[str, set[int]]:
    """Return what stands before the tensor, in bytes; requests are numbered up to 127 here."""
    return {
        "push_sent": {len(encode(Push(key, sequence)))},
        "push_received": {len(encode(Ack(key, sequence, sequence)))},
        "pull_sent": {len(encode(Pull(key, sequence, request))) for request in (1, 127)},
        "pull_received": {len(encode(Weights(key, sequence, request))) for request in (1, 127)},
    }


def test_lenet5_is_captured_message_by_message(tmp_path: Path) -> None:
    study = sketchdlc.trained(tmp_path, {work.LENET5: ITERATIONS}, quick=True)
    kept = study.networks[work.LENET5]
    parameters = work.lenet5_parameters()
    assert kept.iterations == ITERATIONS
    counted = ITERATIONS * len(parameters) * runs.WORKERS
    assert kept.messages == dict.fromkeys(sorted(runs.OPERATIONS), counted)
    for sizes in kept.sizes:
        for operation, header in _headers(sizes.key, ITERATIONS).items():
            tensor = operation in ("push_sent", "pull_received")
            payload = 4 * parameters[sizes.key].numel if tensor else 0
            found = {nbytes - payload for nbytes in getattr(sizes, operation)}
            assert found <= header, operation
    first, last = kept.losses
    assert 0 < last < first
    found = kept.found()
    for worker in ("w0", "w1"):
        assert found[runs.Place("phase 1", worker)].number == ITERATIONS
    # What servers compute of an update is no longer than until its weights are sent.
    update = found[runs.Place("update, computed", "", 4)]
    assert update.number == ITERATIONS
    assert update.least > 0
    traces = {path.name for path in (tmp_path / work.LENET5 / "dlc").iterdir()}
    assert traces >= {"worker-0.txt", "worker-1.txt", "server-0.txt"}
    server = dlc.read(tmp_path / work.LENET5 / "dlc" / "server-0.txt")
    pushed = [
        one.key
        for one in server.records
        if isinstance(one, dlc.Record) and one.iteration >= 0
        if one.operation is dlc.Operation.PUSH_RECV_SERVER
    ]
    assert len(pushed) == (ITERATIONS + runs.FIRST) * len(parameters) * runs.WORKERS

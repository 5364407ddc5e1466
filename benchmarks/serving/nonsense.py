"""Nonsense: frames that are no messages, or messages where none belong, sent to a running job."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
import zmq

from serving import processes
from serving.processes import SmallJob
from syncopate import KVStore
from syncopate.artifacts.artifact import Record
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.protocol.placement.piece import Slice
from syncopate.protocol.rules import Rules

BATCH = 500
LIMIT_S = 60.0
"""How long one batch may take, and the end."""

_ELEMENTS = 1000
_END_S = 30.0


class Onslaught(Record, frozen=True, kw_only=True):
    """What became of a job that was sent nonsense.

    Attributes:
        frames: messages that were sent to the server, one to eight frames each.
        to_scheduler: messages that were sent to the scheduler.
        refused: how many of them the server refused, by reason.
        pushes: how often a worker pushed meanwhile.
        violation: what should not have happened; empty: nothing.
        duration_s: from the first to the last.
    """

    frames: int
    to_scheduler: int
    refused: dict[str, int] = {}
    pushes: int = 0
    violation: str = ""
    duration_s: float = 0.0


def nonsense(chance: random.Random) -> list[bytes]:
    """Return frames: random bytes, damaged messages, and messages that fit in the wrong place."""
    slice_ = Slice(0, "w", "float32", 0, 4)
    real = (
        msg.Hello("run", chance.randrange(3), "token"),
        msg.Register(msg.PROTOCOL, "syncopate", chance.choice(("worker", "server")), "token"),
        msg.Declare("digest", Rules(), (slice_,)),
        msg.Push(chance.randrange(9), chance.randrange(4)),
        msg.Pull(chance.randrange(9), chance.randrange(4), 1),
        msg.Query(chance.randrange(9), 1),
        msg.Heartbeat("token"),
        msg.Failed("token", "a lie"),
        msg.Leave("token"),
        msg.Abort("a lie"),
        msg.Finish(),
    )
    kind = chance.random()
    data = bytearray(codec.encode(chance.choice(real)))
    if kind < 0.3:
        data = bytearray(chance.randbytes(chance.randrange(60)))
    elif kind < 0.6:
        data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind < 0.7:
        data = data[: chance.randrange(len(data))]
    more = chance.choice((0, 0, 1, 1, 7))
    return [bytes(data), *(chance.randbytes(chance.randrange(40)) for _ in range(more))]


def push_on(store: KVStore, progress: Any, goal: Any) -> tuple[int, bool]:
    """Push ones until ``goal`` is reached; return how often, and whether they all counted once."""
    total = torch.zeros(_ELEMENTS)
    store.init({"w": total})
    pushes = 0
    while progress[0] <= processes.DECLARED or not goal[0]:
        store.push("w", torch.ones(_ELEMENTS)).wait()
        store.pull("w", total).wait()
        pushes += 1
        progress[0] = processes.DECLARED + pushes
        time.sleep(0.001)
    return pushes, bool((total == -pushes).all())


def onslaught(frames: int, seed: int) -> Onslaught:
    """Send nonsense to a job of one server and one worker that trains meanwhile.

    Args:
        frames: how many messages the server gets; the scheduler gets a tenth as many.
        seed: of what they are.
    """
    chance = random.Random(seed)
    with SmallJob(processes.ASYNCHRONOUS, None, servers=1, workers=1) as job:
        goal = processes.shared_flags(1)
        job.work(push_on, goal)
        until_s = time.monotonic() + LIMIT_S
        while job.progress[0] <= processes.DECLARED and time.monotonic() < until_s:
            time.sleep(0.01)
        began_s = time.monotonic()
        server = f"tcp://127.0.0.1:{job.ports[0]}"
        violation = _send(server, frames, chance, at_server=True)
        violation = violation or _send(job.job.scheduler, frames // 10, chance, at_server=False)
        duration_s = time.monotonic() - began_s
        goal[0] = 1
        outcome = job.processes[processes.worker(0)].outcome(time.monotonic() + _END_S)
        served = job.processes[processes.server(0)].outcome(time.monotonic() + _END_S)
    pushes, exact = outcome.value if outcome.kind == "result" else (0, False)
    if not violation and outcome.kind != "result":
        violation = f"the worker: {outcome.kind}: {outcome.value}"
    if not violation and not exact:
        violation = "a push was lost or counted twice"
    if not violation and served.kind != "result":
        violation = f"the server: {served.kind}: {served.value}"
    refused = served.value if served.kind == "result" else {}
    if not violation and sum(refused.values()) < frames:
        violation = f"the server refused {sum(refused.values())} of {frames} messages"
    return Onslaught(
        frames=frames,
        to_scheduler=frames // 10,
        refused=refused,
        pushes=pushes,
        violation=violation,
        duration_s=duration_s,
    )


def _send(address: str, count: int, chance: random.Random, *, at_server: bool) -> str:
    """Send ``count`` messages in batches that are all read; return what went wrong, or nothing."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.sndtimeo = socket.rcvtimeo = int(LIMIT_S * 1000)
        socket.connect(address)
        try:
            for sent in range(0, count, BATCH):
                for _ in range(min(BATCH, count - sent)):
                    socket.send_multipart(nonsense(chance))
                _fence(socket, f"fence-{sent}", at_server)
        except zmq.Again:
            who = "the server" if at_server else "the scheduler"
            return f"{who} reads no more after {sent} messages"
    return ""


def _fence(socket: zmq.Socket[bytes], name: str, at_server: bool) -> None:
    """Say something whose refusal repeats ``name``, and wait for that: all before it was read."""
    message: msg.Message = msg.Hello(name, 0, "fence")
    if not at_server:
        message = msg.Register(msg.PROTOCOL, name, "worker", "fence")
    socket.send(codec.encode(message))
    while name.encode() not in socket.recv():
        pass

"""Strangers: without the key nothing is read or written, and nonsense stops no process."""

from __future__ import annotations

import random

import msgspec
import zmq

from syncopate.paramserver.wire.security import load_key, make_key
from syncopate.protocol import codec
from syncopate.protocol import messages as msg
from syncopate.units import MIB
from tests.children import HANGS_S
from tests.multiprocess.paramserver import test_store as case
from tests.multiprocess.paramserver.servers import CALM, LocalServers, wait_for
from tests.multiprocess.paramserver.test_loss import train_on, train_until
from tests.scripts import scripts

FRAMES = 3000
ANSWERED_MS = round(HANGS_S * 1e3)


def address_of_server(job, rank=0):
    members = job.scheduler._machine._members.values()
    return next(
        m.register.address for m in members if (m.register.role, m.rank) == ("server", rank)
    )


def stranger(context, address):
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(address)
    return socket


def test_nonsense_leaves_everybody_serving(tmp_path):
    chance = random.Random(5)
    with (
        LocalServers() as job,
        zmq.Context() as context,
        scripts("serving.nonsense") as (script,),
    ):
        workers = job.start(train_until, tmp_path, 30)
        wait_for((tmp_path / "0-0").exists)
        sockets = [stranger(context, address_of_server(job, rank)) for rank in range(2)]
        sockets.append(stranger(context, job.job.scheduler))
        for _ in range(FRAMES):
            chance.choice(sockets).send_multipart(script.nonsense(chance))
        wait_for(lambda: sum(job.scheduler.refused.values()) > 500)
        (tmp_path / "done").touch()
        expected = case.alone(job.rules, 2, 30)
        assert all(case.same(child.result(), expected) for child in workers)
        assert job.ended() is None
        for server in job.servers:
            refused = server.result()
            assert refused["malformed"] > 100
            assert refused["unknown"] > 20
        for socket in sockets:
            socket.close()


def test_a_frame_that_is_too_large_is_not_read(tmp_path):
    limits = msgspec.structs.replace(CALM, payload_bytes=4 * MIB)
    with LocalServers(servers=1, workers=1, limits=limits) as job, zmq.Context() as context:
        worker = job.start(train_until, tmp_path, 40)[0]
        wait_for((tmp_path / "0-0").exists)
        socket = stranger(context, address_of_server(job))
        watch = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.send_multipart([codec.encode(msg.Push(0, 1)), bytes(4 * MIB + 1)])
        assert watch.poll(ANSWERED_MS)
        (tmp_path / "done").touch()
        assert case.same(worker.result(), case.alone(job.rules, 1, 40))
        assert job.servers[0].result() == {}
        socket.disable_monitor()
        socket.close()


def test_with_a_key_training_is_the_same_and_strangers_get_nothing(tmp_path):
    key = tmp_path / "job.key"
    make_key(key)
    with LocalServers(key=key) as job, zmq.Context() as context:
        workers = job.start(train_until, tmp_path, 30)
        wait_for((tmp_path / "0-0").exists)
        plain = stranger(context, address_of_server(job))
        wrong = context.socket(zmq.DEALER)
        wrong.linger = 0
        wrong.curve_serverkey, _ = zmq.curve_keypair()
        wrong.curve_publickey, wrong.curve_secretkey = zmq.curve_keypair()
        wrong.connect(address_of_server(job))
        for socket in (plain, wrong):
            socket.send(codec.encode(msg.Hello("run", 0, "token")))
        (tmp_path / "done").touch()
        expected = case.alone(job.rules, 2, 30)
        assert all(case.same(child.result(), expected) for child in workers)
        assert plain.poll(300) == 0
        assert wrong.poll(0) == 0
        # Nothing was refused, because nothing was read.
        assert all("unknown" not in server.result() for server in job.servers)
        plain.close()
        wrong.close()


def test_who_knows_the_listener_but_has_no_key_is_turned_away(tmp_path):
    make_key(tmp_path / "job.key")
    key = load_key(tmp_path / "job.key")
    with LocalServers(key=tmp_path / "job.key", servers=1) as job, zmq.Context() as context:
        workers = job.start(train_until, tmp_path, 30)
        wait_for((tmp_path / "0-0").exists)
        half = context.socket(zmq.DEALER)
        half.linger = 0
        half.curve_serverkey = key.listener.public
        half.curve_publickey, half.curve_secretkey = zmq.curve_keypair()
        half.connect(address_of_server(job))
        away = half.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        half.send(codec.encode(msg.Hello("run", 0, "token")))
        assert away.poll(ANSWERED_MS)
        assert half.poll(500) == 0
        half.disable_monitor()
        (tmp_path / "done").touch()
        for child in workers:
            child.result()
        assert job.servers[0].result()["without the key"] >= 1
        half.close()


def test_a_worker_of_an_earlier_run_is_refused(tmp_path):
    """It has the address and a token, but of a run that is over."""
    with LocalServers(servers=1, workers=1) as job, zmq.Context() as context:
        worker = job.start(train_until, tmp_path, 40)[0]
        wait_for((tmp_path / "0-0").exists)
        socket = stranger(context, address_of_server(job))
        socket.send(codec.encode(msg.Hello("an earlier run", 0, "token")))
        assert socket.poll(ANSWERED_MS)
        (tmp_path / "done").touch()
        answer = codec.decode(codec.FromServer, socket.recv())
        assert isinstance(answer, msg.Refused)
        assert "run an earlier run; this is another run" in answer.reason
        socket.close()
        worker.result()
        assert job.servers[0].result()["other run"] == 1


def test_a_process_of_another_job_and_one_too_many_are_refused(tmp_path):
    with LocalServers(servers=1, workers=1) as job:
        other = job.worker(0, train_on, tmp_path, 1, name="another")
        assert "job 'another'; the job here has another name" in other.refusal()
        worker = job.worker(0, train_until, tmp_path, 60)
        wait_for((tmp_path / "0-0").exists)
        assert "the job is complete" in job.worker(0, train_on, tmp_path, 1).refusal()
        (tmp_path / "done").touch()
        worker.result()
        assert job.ended() is None

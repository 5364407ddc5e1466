"""Jobs, keys and faults: what the environment and files may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncopate.errors import ArtifactError, InvalidValueError, SyncopateError, UnknownNameError
from syncopate.paramserver.faults import VARIABLE, Faults, faults_from
from syncopate.paramserver.job import Job, endpoint, is_local, job_from, own_host
from syncopate.paramserver.security import load_key, make_key
from syncopate.protocol.rules import Rules


def test_a_job_is_what_the_environment_says():
    environment = {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "1234",
        "DMLC_NUM_SERVER": "2",
        "DMLC_NUM_WORKER": "4",
        "DMLC_NODE_HOST": "10.0.0.7",
        "DMLC_RANK": "1",
        "SYNCOPATE_PS_JOB": "train",
        "SYNCOPATE_PS_KEY": "job.key",
        "SYNCOPATE_PS_ON_WORKER_LOSS": "continue",
    }
    job = job_from(environment, "server").require_valid()
    assert job == Job(
        uri="10.0.0.1",
        port=1234,
        servers=2,
        workers=4,
        name="train",
        host="10.0.0.7",
        rank=1,
        key=Path("job.key"),
        on_worker_loss="continue",
    )
    assert job.environment("server") == environment
    assert job.scheduler == "tcp://10.0.0.1:1234"


def test_without_variables_a_job_is_small_and_local():
    assert job_from({}, "worker").require_valid() == Job()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DMLC_ROLE": "master"}, "unknown role 'master' for DMLC_ROLE"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE is 'server'"),
        ({"DMLC_NUM_WORKER": "four"}, "DMLC_NUM_WORKER is 'four'"),
        ({"DMLC_NUM_WORKER": "0"}, "workers is 0"),
        ({"DMLC_PS_ROOT_PORT": "99999"}, "port is 99999"),
        ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, "address is '10.0.0.1'.*without a key"),
        ({"DMLC_NODE_HOST": "node7"}, "address is 'node7'.*without a key"),
        ({"SYNCOPATE_PS_ON_WORKER_LOSS": "wait"}, "unknown on_worker_loss 'wait'.*abort, continue"),
    ],
)
def test_what_makes_no_sense_is_refused(environment, words):
    with pytest.raises(SyncopateError, match=words):
        job_from(environment, "worker").require_valid()


@pytest.mark.parametrize(
    ("said", "script", "counts"),
    [
        ("", "continue", "continue"),
        ("continue", "abort", "continue"),
        ("abort", "continue", "abort"),
    ],
)
def test_what_a_lost_worker_means_is_said_by_the_job_or_else_by_the_script(said, script, counts):
    rules = Rules(mode="asgd", on_worker_loss=script)
    told = Job(on_worker_loss=said).told(rules)
    assert told == Rules(mode="asgd", on_worker_loss=counts)


def test_addresses_elsewhere_need_no_key_when_the_user_says_so():
    environment = {"DMLC_PS_ROOT_URI": "10.0.0.1", "SYNCOPATE_PS_INSECURE": "1"}
    assert job_from(environment, "worker").require_valid().insecure


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("node7", False),
    ],
)
def test_what_is_local(host, local):
    assert is_local(host) == local


def test_addresses_are_written_as_zeromq_reads_them():
    assert endpoint("::1", 5) == "tcp://[::1]:5"
    assert own_host(Job()) == "127.0.0.1"


def test_a_key_is_its_owners_alone_and_all_derive_the_same(tmp_path):
    path = tmp_path / "keys" / "job.key"
    make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    one, two = load_key(path), load_key(path)
    assert one == two
    assert one.listener != one.caller
    assert all(len(part) == 40 for pair in one for part in pair)
    make_key(tmp_path / "other.key")
    assert load_key(tmp_path / "other.key") != one
    assert load_key(None) is None


def test_a_key_is_not_replaced_and_not_read_where_others_may_read_it(tmp_path):
    path = tmp_path / "job.key"
    make_key(path)
    with pytest.raises(ArtifactError, match="exists already"):
        make_key(path)
    path.chmod(0o640)
    with pytest.raises(ArtifactError, match="chmod 600"):
        load_key(path)


@pytest.mark.parametrize("text", ["", "syncopate-job-key-1 abc", "syncopate-job-key-2 " + "0" * 64])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / "job.key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(ArtifactError, match="no job key"):
        load_key(path)
    with pytest.raises(ArtifactError, match="cannot read"):
        load_key(tmp_path / "missing.key")


def test_faults_are_off_unless_asked_for():
    assert faults_from({}) is None
    assert Faults().delays() == [0.0]


def test_faults_happen_as_often_as_asked_for():
    faults = faults_from({VARIABLE: "drop=0.3,duplicate=0.5,delay=2,seed=4"})
    copies = [faults.delays() for _ in range(2000)]
    assert 500 < sum(not copy for copy in copies) < 700
    assert 600 < sum(len(copy) == 2 for copy in copies) < 800
    delays = [delay for copy in copies for delay in copy]
    assert 0 <= min(delays) < 0.1
    assert 1.9 < max(delays) <= 2
    again = faults_from({VARIABLE: "drop=0.3,duplicate=0.5,delay=2,seed=4"})
    assert [again.delays() for _ in range(2000)] == copies


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("lose=0.1", UnknownNameError),
        ("drop=often", InvalidValueError),
        ("drop=1.5", InvalidValueError),
    ],
)
def test_faults_that_make_no_sense_are_refused(text, error):
    with pytest.raises(error):
        faults_from({VARIABLE: text})

"""Jobs: what the environment may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.paramserver.job import Job, job_from, own_host
from syncopate.protocol.membership.launch import Launch
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


TORCHRUN = {"RANK": "2", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"}


def test_a_worker_says_what_torchrun_tells_it():
    assert job_from(TORCHRUN, "worker") == Job(rank=2, launch=Launch(1, 3))
    assert job_from({**TORCHRUN, "DMLC_RANK": "0"}, "worker").rank == 0
    assert job_from(TORCHRUN, "server") == Job()


def test_a_worker_that_others_go_on_without_is_not_waited_for():
    job = job_from(TORCHRUN, "worker")
    assert job.under(Rules()) == job
    for rules, opens in (
        (Rules(on_worker_loss="continue"), ""),
        (Rules(on_worker_loss="wait"), "lost"),
        (Rules(mode="asgd", on_worker_loss="wait"), "more"),
    ):
        joined = Job(rank=2, opens=opens, on_worker_loss=rules.on_worker_loss)
        assert job.under(rules) == joined


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DMLC_ROLE": "master"}, "unknown role 'master' for DMLC_ROLE"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE is 'server'"),
        ({"DMLC_NUM_WORKER": "four"}, "DMLC_NUM_WORKER is 'four'"),
        ({"DMLC_NUM_WORKER": "0"}, "workers is 0"),
        ({"DMLC_PS_ROOT_PORT": "99999"}, "port is 99999"),
        ({"DMLC_RANK": "65536"}, "rank is 65536"),
        ({"DMLC_PS_ROOT_URI": "10.0.0.1"}, "address is '10.0.0.1'.*without a key"),
        ({"DMLC_NODE_HOST": "node7"}, "address is 'node7'.*without a key"),
        (
            {"SYNCOPATE_PS_ON_WORKER_LOSS": "hope"},
            "unknown on_worker_loss 'hope'.*abort, continue, wait",
        ),
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


def test_a_process_on_the_schedulers_machine_has_its_address():
    assert own_host(Job()) == "127.0.0.1"


def test_rules_that_are_none_are_refused_in_a_sentence():
    with pytest.raises(InvalidValueError, match=r"rules is 'ssgd'; it must be .*Rules\(mode="):
        Job().told("ssgd")  # type: ignore[arg-type]

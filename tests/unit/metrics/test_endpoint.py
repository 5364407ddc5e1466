"""Endpoints: what a fetch returns, who may fetch, files, and ports that are taken."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from syncopate.errors import InvalidValueError
from syncopate.metrics import endpoint as module
from syncopate.metrics.endpoint import Endpoint, local_rank, wanted
from syncopate.metrics.place import VARIABLE, Port
from syncopate.metrics.prometheus import CONTENT_TYPE, Metric, Sample
from tests.children import HANGS_S

LOCAL = Port("127.0.0.1", 0)


def one(value=1.0):
    return lambda: [Metric("a", "gauge", "A.", [Sample(value)])]


@pytest.fixture
def served():
    found = Endpoint(LOCAL, "rank-0")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(module, "_current", [])
    yield
    for each in module._current:
        each.close()


def fetched(address):
    with urllib.request.urlopen(address, timeout=HANGS_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_a_fetch_has_what_all_sources_say_now(served):
    second = one(2.0)
    served.add(one())
    served.add(second)
    kind, text = fetched(served.address)
    assert kind == CONTENT_TYPE
    assert text.splitlines()[2:] == ["a 1", "a 2"]
    served.remove(second)
    assert fetched(served.address)[1].splitlines()[2:] == ["a 1"]


def test_it_listens_on_this_machine_alone(served):
    assert served.address.startswith("http://127.0.0.1:")


def test_another_path_is_not_there(served):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetched(served.address.replace("/metrics", "/secret"))


def test_a_caller_that_says_nothing_keeps_no_other_for_ever(served):
    port = int(served.address.split(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)):
        assert fetched(served.address)[0] == CONTENT_TYPE


def test_a_taken_port_is_refused_by_its_number(served):
    port = int(served.address.split(":")[2].partition("/")[0])
    with pytest.raises(InvalidValueError, match=f"127.0.0.1:{port}.*a free port"):
        Endpoint(Port("127.0.0.1", port), "rank-1")


def test_a_directory_has_a_file_of_each_process_with_what_was_last(tmp_path):
    found = Endpoint(tmp_path / "new", "rank-1")
    found.add(one(5.0))
    found.close()
    assert (tmp_path / "new" / "rank-1.prom").read_text().endswith("a 5\n")


def test_a_process_has_one_endpoint_for_all_that_ask(monkeypatch):
    assert wanted({}, "rank-0") is None
    first = wanted({VARIABLE: "0"}, "rank-0")
    assert first is not None
    assert wanted({VARIABLE: "0"}, "worker-0") is first


def test_what_cannot_be_had_is_logged_and_ends_nothing(caplog):
    assert wanted({VARIABLE: "70000"}, "rank-0") is None
    assert "SYNCOPATE_METRICS is '70000'" in caplog.text


@pytest.mark.parametrize(
    ("given", "number"), [({}, 0), ({"LOCAL_RANK": "3"}, 3), ({"LOCAL_RANK": "x"}, 0)]
)
def test_a_rank_knows_its_number_on_its_host(given, number):
    assert local_rank(given) == number

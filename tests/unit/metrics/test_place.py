"""Where metrics are: a port, a host and port, or a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncopate.errors import InvalidValueError
from syncopate.metrics.place import Port, place_of


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("9464", Port("127.0.0.1", 9464)),
        (9464, Port("127.0.0.1", 9464)),
        ("0.0.0.0:9464", Port("0.0.0.0", 9464)),
        ("[::]:9464", Port("::", 9464)),
        (0, Port("127.0.0.1", 0)),
        ("out/metrics", Path("out/metrics")),
        (Path("9464"), Path("9464")),
    ],
)
def test_a_text_names_a_port_or_a_directory(given, place):
    assert place_of(given) == place


def test_ranks_of_a_host_have_ports_of_their_own():
    assert place_of("9464", shift=3) == Port("127.0.0.1", 9467)


@pytest.mark.parametrize("given", ["", "65536", "host:99999", "--json", True])
def test_what_is_no_place_is_refused_by_its_name(given):
    with pytest.raises(InvalidValueError, match="--metrics is"):
        place_of(given, "--metrics")


def test_a_port_that_the_last_rank_cannot_have_is_refused():
    with pytest.raises(InvalidValueError, match="a port up to 65535"):
        place_of("65535", shift=1)

"""The benchmark of explain: which rounds count, and what is right."""

from __future__ import annotations

import pytest

from tests.scripts import scripts


@pytest.fixture(scope="module")
def faults():
    with scripts("faults", "faults.injected", "faults.results", "faults.session") as found:
        yield found[0]


def test_of_disturbed_rounds_those_that_were_least(faults):
    chosen = faults.session.undisturbed
    quiet, some, much = (0.0, 0.02), (0.3, 0.0), (0.1, 0.6)
    assert chosen((*some, *quiet, *much, *quiet), 2) == [1, 3]
    assert chosen((*quiet, *quiet, *quiet), 2) == [0, 1]
    assert chosen((*much, *some, *quiet), 2) == [1, 2]
    assert chosen((*much,), 2) == [0]


def test_a_fault_is_named_by_kind_and_by_whose_it_is(faults):
    known, results = faults.injected.FAULTS, faults.results

    def told(kind, *ranks):
        said = results.Said(kind=kind, ranks=ranks, gain_s=0.1, what="")
        return results.Round(with_s=0.3, without_s=0.2, causes=(said,))

    assert results.is_right(known["server"], told("slow server", 1))
    assert not results.is_right(known["server"], told("slow server", 0))
    assert not results.is_right(known["server"], told("server"))
    assert results.is_right(known["healthy-served"], told("server"))
    assert not results.is_right(known["healthy-served"], told("slow server", 1))
    assert results.is_sound(known["server"], (told("slow server", 1),))
    off = results.Said(kind="slow server", ranks=(1,), gain_s=0.12, what="")
    rounds = (results.Round(with_s=0.3, without_s=0.2, causes=(off,)),)
    assert not results.is_sound(known["server"], rounds)


def test_servers_are_the_last_hosts(faults):
    for fault in faults.injected.FAULTS.values():
        assert fault.workers >= 2
        if fault.name.startswith("server"):
            assert max(fault.ranks) < fault.servers

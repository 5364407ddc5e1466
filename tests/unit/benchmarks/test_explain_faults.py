"""The benchmark of explain: which rounds count, and what is right."""

from __future__ import annotations

import pytest

from tests.scripts import scripts


@pytest.fixture(scope="module")
def faults():
    with scripts("faults", "faults.named", "faults.results", "faults.session") as found:
        yield found[0]


def test_of_disturbed_rounds_those_that_were_least(faults):
    chosen = faults.session.undisturbed
    quiet, some, much = (0.0, 0.02), (0.3, 0.0), (0.1, 0.6)
    assert chosen((*some, *quiet, *much, *quiet), 2) == [1, 3]
    assert chosen((*quiet, *quiet, *quiet), 2) == [0, 1]
    assert chosen((*much, *some, *quiet), 2) == [1, 2]
    assert chosen((*much,), 2) == [0]


def test_a_fault_is_named_by_kind_and_by_whose_it_is(faults):
    known, results = faults.named.FAULTS, faults.results

    def told(kind, *ranks):
        said = results.Said(kind=kind, ranks=ranks, gain_s=0.1, what="")
        return results.Round(with_s=0.3, without_s=0.2, causes=(said,), together_s=0.1)

    assert results.is_right(known["server"], told("slow server", 1))
    assert not results.is_right(known["server"], told("slow server", 0))
    assert not results.is_right(known["server"], told("server"))
    assert results.is_right(known["healthy-served"], told("server"))
    assert not results.is_right(known["healthy-served"], told("slow server", 1))
    assert results.is_sound(known["server"], (told("slow server", 1),))
    off = results.Said(kind="slow server", ranks=(1,), gain_s=0.12, what="")
    rounds = (results.Round(with_s=0.3, without_s=0.2, causes=(off,), together_s=0.12),)
    assert not results.is_sound(known["server"], rounds)


def test_of_two_faults_either_may_be_first_and_no_other_rank_may_be_blamed(faults):
    known, results = faults.named.FAULTS, faults.results

    def told(*causes):
        said = tuple(results.Said(kind=k, ranks=(r,), gain_s=0.1, what="") for k, r in causes)
        return results.Round(with_s=0.3, without_s=0.1, causes=said, together_s=0.2)

    both = known["backward+input"]
    assert results.is_sound(both, (told(("compute", 2), ("input", 3)),))
    assert results.is_sound(both, (told(("input", 3), ("compute", 2)),))
    assert not results.is_right(both, told(("compute", 3)))
    beside = told(("compute", 2), ("pause", 0))
    assert results.is_right(both, beside)
    assert not results.is_sound(both, (beside,))


def test_other_jobs_beside_a_fault_are_there_in_both_blocks(faults):
    known = faults.named.FAULTS
    assert known["backward+noise"].injected(False) == {"noise"}
    assert known["backward+noise"].injected(True) == {"backward", "noise"}
    assert known["noise"].injected(False) == known["backward"].injected(False) == frozenset()
    assert len([fault for fault in known.values() if len(fault.of) == 2]) == 15


def test_servers_are_the_last_hosts(faults):
    for fault in faults.named.FAULTS.values():
        assert fault.workers >= 2
        if fault.name.startswith("server"):
            assert max(fault.ranks) < fault.servers

"""The decision table as an artefact: it survives its file, and gaps are refused."""

from __future__ import annotations

import pytest

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.results.decision_table import (
    Candidate,
    CollectiveDecisions,
    DecisionTable,
    SizeRange,
)
from syncopate.costs.decide.tabulate import decision_table
from syncopate.errors import ArtifactError, SyncopateError


def _range(low, high, at):
    chosen = Candidate(algorithm="ring", expected_s=1e-3)
    return SizeRange(min_bytes=low, max_bytes=high, at_bytes=at, chosen=chosen)


def test_a_table_survives_its_file(tmp_path):
    table = decision_table(Cluster.preset("10gbe", 8))
    assert DecisionTable.load(table.save(tmp_path / "decisions.json")) == table
    assert b'"kind": "decisions"' in table.to_json()


@pytest.mark.parametrize(
    "ranges",
    [(), (_range(0, 10, 5),), (_range(1, None, 5),), (_range(0, 10, 5), _range(12, None, 20))],
)
def test_ranges_with_gaps_are_refused(ranges):
    with pytest.raises(SyncopateError, match="ranges of all_reduce"):
        CollectiveDecisions(collective="all_reduce", basis="priced", ranges=ranges)


def test_a_size_outside_its_range_and_an_unknown_basis_are_refused():
    with pytest.raises(SyncopateError, match="at_bytes"):
        _range(0, 10, 11)
    with pytest.raises(SyncopateError, match="unknown basis 'guessed'"):
        CollectiveDecisions(collective="all_reduce", basis="guessed", ranges=(_range(0, None, 1),))
    text = decision_table(Cluster.preset("10gbe", 2), ("reduce",)).to_json()
    with pytest.raises(ArtifactError):
        DecisionTable.from_json(text.replace(b'"hosts": 2', b'"hosts": "two"'))

"""A scheduler's run on disk: what was kept comes back, and what is not of it is refused."""

from __future__ import annotations

import pytest
from msgspec import structs

from syncopate.errors import ArtifactError
from syncopate.paramserver.storage.durable import Run, RunFile
from syncopate.protocol.membership.members import Seated

BEGUN = Run(job="job", run="run", servers=1, workers=2)
MEMBERS = (
    Seated("s", "server", 0, "tcp://s", True, "here"),
    Seated("a", "worker", 0, "", False, "here"),
    Seated("b", "worker", 1, "", False, "left"),
)


def test_a_run_that_was_kept_is_gone_on_with(tmp_path):
    file = RunFile(tmp_path / "new", BEGUN)
    assert file.run == BEGUN
    file.keep(MEMBERS, over=False)
    other = structs.replace(BEGUN, run="another")
    assert RunFile(tmp_path / "new", other).run == structs.replace(BEGUN, members=MEMBERS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"job": "x"}, r"\$.job: a run with 'job', not 'x'; give an empty folder"),
        ({"workers": 3}, r"\$.workers: a run with 2, not 3"),
        ({"servers": 2}, r"\$.servers: a run with 1, not 2"),
    ],
)
def test_a_run_of_another_job_is_refused(tmp_path, changed, words):
    RunFile(tmp_path, BEGUN).keep(MEMBERS, over=False)
    with pytest.raises(ArtifactError, match=words):
        RunFile(tmp_path, structs.replace(BEGUN, **changed))


def test_a_run_that_is_over_is_not_gone_on_with(tmp_path):
    file = RunFile(tmp_path, BEGUN)
    file.keep(MEMBERS, over=True, settled=False)
    assert RunFile(tmp_path, BEGUN).run.over  # some have not heard it
    file.keep(MEMBERS, over=True)
    with pytest.raises(ArtifactError, match="this job is over; give an empty folder"):
        RunFile(tmp_path, BEGUN)

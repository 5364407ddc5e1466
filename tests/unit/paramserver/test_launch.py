"""Local jobs: whom the launcher names when a job fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import LocalJob


class _Child(SimpleNamespace):
    """A process that has ended badly."""

    __hash__ = object.__hash__

    def exit_code(self):
        return 1

    def read(self):
        pass


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("worker 12 was silent for 6.0 s", "worker 12"),
        ("worker 1 was silent for 6.0 s", "worker 1"),
        ("server 0: worker 1 declared other tensors", "server 0"),
        ("", "worker 2"),
    ],
)
def test_of_those_that_end_it_names_the_one_that_the_scheduler_names(said, named):
    job = LocalJob(Job(workers=13), ["true"], state=None, restarts=0)
    job._children = [_Child(name=f"worker {rank}", lines=["my line"]) for rank in range(13)]
    job._helpers = [_Child(name=name, lines=[said]) for name in ("scheduler", "server 0")]
    assert job._blame(job._children[2]).who == named

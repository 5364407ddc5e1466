"""Moving: workers change to the servers of another job, which take over all that theirs kept.

[Note: a job that moves] All workers register with the other job's scheduler when they have done
their last push here, with the step at which they are. So once the other job is complete nothing
changes any more here, and worker 0 brings it there. The others wait for their values there. A job
ends well when all its workers have left it. The last to leave the job here does so when all is
there, on disk where servers there keep state. So whatever is killed, at least one of the two
jobs is whole; until the first step there both are, and are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from syncopate.errors import InvalidValueError, ParameterServerError
from syncopate.paramserver.job import Job
from syncopate.paramserver.session import Session
from syncopate.protocol.limits import Limits
from syncopate.protocol.rules import Rules


@contextmanager
def moving(before: Session, job: Job, limits: Limits, rules: Rules) -> Iterator[Session]:
    """Join another job, bring everything to it in the block, and leave the job before.

    Args:
        before: the worker in its job.
        job: the other one.
        limits: times and sizes.
        rules: how servers update.

    Yields:
        The worker in the other job, once no worker pushes any more in the one of before.

    Raises:
        InvalidValueError: the rules forbid it.
        ParameterServerError: the other job was not complete in time; or one of them failed.
    """
    _require_movable(rules)
    before.settle()
    before.require_going()
    step = before.taken(synchronous=rules.synchronous)
    after = Session(job, limits, step, before.require_going)
    here = before.roster
    try:
        _require_like(before, after)
        yield after
        before.close(None)
    except BaseException as error:
        reason = str(error) or type(error).__name__
        for each in (before, after):
            each.give_up(f"worker {here.rank} could not move to other servers: {reason}")
        raise


def _require_movable(rules: Rules) -> None:
    """Refuse rules by which servers keep state of each worker, which cannot be moved."""
    if rules.mode == "dc-asgd":
        rule = "'ssgd' or 'asgd': servers keep weights of each worker, which cannot be moved"
        raise InvalidValueError("the mode of a job that moves", rules.mode, rule)
    if rules.staleness is not None:
        rule = "left out: a worker that is ahead would wait for those that have stopped"
        raise InvalidValueError("staleness of a job that moves", rules.staleness, rule)


def _require_like(before: Session, after: Session) -> None:
    """Refuse another rank, or another number of workers."""
    here, there = [(each.roster.rank, len(each.roster.workers)) for each in (before, after)]
    if here != there:
        reason = (
            f"worker {here[0]} of {here[1]} would be worker {there[0]} of {there[1]} there; "
            "ranks and the number of workers stay as they are"
        )
        raise ParameterServerError(reason)

"""A worker in its job: what is left of it where it does not come to be."""

from __future__ import annotations

import threading

import pytest

from syncopate.paramserver.driver import Pending
from syncopate.paramserver.job import Job
from syncopate.paramserver.launch import free_port
from syncopate.paramserver.session import QUEUE_BYTES, Session
from syncopate.protocol.limits import Limits
from tests.children import HANGS_S


def _threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("syncopate-")]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_who_is_interrupted_before_the_job_is_complete_leaves_it(kind):
    """Else it says for ever that it lives, and no caller has what could end it."""

    def interrupt():
        raise kind

    before = _threads()
    with pytest.raises(kind):
        Session(Job(port=free_port()), Limits(), watch=interrupt)
    assert _threads() == before


def test_a_push_that_waits_for_room_ends_with_the_session():
    """Also where another thread closed it, with pushes under way, and nothing failed."""
    session = object.__new__(Session)
    session.pending, session.driver, session.error, session._over = Pending(), None, None, False
    assert session.handle(1, QUEUE_BYTES) is not None
    waiting = threading.Thread(target=lambda: session.handle(1, 1), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    session._over = True
    waiting.join(HANGS_S)
    assert not waiting.is_alive()

"""Calls to a store that may never answer."""

from __future__ import annotations

import threading

from syncopate.collectives.health.store_calls import StoreCall, call_store
from tests.children import HANGS_S, run_script


def test_an_answer_that_never_comes_is_not_waited_for() -> None:
    never = threading.Event()
    call = StoreCall(lambda: never.wait(HANGS_S))
    assert not call.wait(0.01)
    assert not call.over
    assert call.answer() is None
    never.set()
    assert call.wait(HANGS_S)
    assert call.answer() is True
    assert call_store(lambda: None, 60)


def test_a_refusal_is_no_answer() -> None:
    def refuse() -> None:
        raise RuntimeError("no such store")

    assert not call_store(refuse, 60)


def test_the_process_ends_after_its_calls() -> None:
    script = """
        import os, threading, time
        from syncopate.collectives.health.store_calls import StoreCall
        StoreCall(lambda: (time.sleep(0.3), os.write(1, b"came back")))
        StoreCall(threading.Event().wait)
    """
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "came back"), done.stderr

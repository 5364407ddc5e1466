"""What is called when a collective is over, and waits with a limit."""

from __future__ import annotations

from syncopate.collectives.handle import Handle, finished


def test_calls_are_made_once_each_before_and_after_the_end() -> None:
    handle, called = Handle(), []
    handle.when_over(lambda: called.append("first"))
    handle.when_over(lambda: called.append("second"))
    assert not handle.wait_for(0.001)
    assert called == []
    error = ValueError()
    handle._finish(1.0, 2.0, error)
    assert called == ["first", "second"]
    handle.when_over(lambda: called.append("third"))
    assert called == ["first", "second", "third"]
    assert handle.wait_for(0.0)
    assert handle.error is error


def test_a_finished_one_is_over() -> None:
    handle = finished()
    handle.wait()
    assert handle.done()
    assert handle.error is None

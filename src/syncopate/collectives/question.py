"""Question: asks a store that may never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


class Question(Generic[_Answer]):
    """An action on a store, under way on a thread of its own.

    A store client blocks without limit when the store's host goes silent. Whoever must not hang
    asks this way, and goes on without the answer.

    Args:
        action: what to do; a ``RuntimeError`` means that the store refused.
    """

    def __init__(self, action: Callable[[], _Answer]) -> None:
        self._action = action
        self._answers: list[_Answer] = []
        self._over = threading.Event()
        threading.Thread(target=self._ask, name="syncopate-store", daemon=True).start()

    def wait(self, limit_s: float) -> bool:
        """Wait for the end; return whether it came within ``limit_s`` seconds."""
        return self._over.wait(limit_s)

    @property
    def over(self) -> bool:
        """Whether the action has ended, well or badly."""
        return self._over.is_set()

    @property
    def answered(self) -> bool:
        """Whether the action succeeded, so far."""
        return bool(self._answers)

    def answer(self) -> _Answer | None:
        """Return what the action returned; None when it failed or has not ended."""
        return self._answers[0] if self._answers else None

    def _ask(self) -> None:
        try:
            self._answers.append(self._action())
        except RuntimeError:
            return
        finally:
            self._over.set()


def ask(action: Callable[[], object], limit_s: float) -> bool:
    """Carry out ``action``; return whether it succeeded within ``limit_s`` seconds."""
    question = Question(action)
    question.wait(limit_s)
    return question.answered

"""Planner process: where rank 0 fits and plans, so that no step of the training waits for it.

[Note: a process of its own]
A search takes as long as many steps do. On a thread it would take the interpreter from the training
at every operation; between two steps it would be a pause. So rank 0 starts a process that knows
nothing of torch, at a low priority, and hands it pure functions with what they need: the answers
come while the training goes on. Where no process can be started, rank 0 does the work itself.

[Note: priority of the session]
Linux may share processors between sessions first, and count a process's niceness within its session
only (``sched_autogroup_enabled``, man 7 sched). Launchers give each rank a session. In that of rank
0 the process would take what rank 0 leaves while it waits for the others, and they would be late.
So it has a session of its own, which is nice as well.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pkgutil
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

from syncopate.errors import PlanError, SyncopateError

NICENESS = 10
"""How nice the process and its session are: a tenth of a processor where others want it all."""

Answer = tuple[Any, str | None]
"""What a function returned, and why it did not."""


class PlannerProcess:
    """Has pure functions run in a process of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # it ends with the rank that asks: with its questions
            )
            _make_nice(self._process.pid)

    def run(self, work: str, *arguments: object) -> Future[Any]:
        """Begin ``work(*arguments)``; return what will have its result, or its error.

        Args:
            work: a function in a module that needs no torch, as ``package.module:function``.
            arguments: of it; they are pickled.

        The result's errors:
            PlanError: the function refused, with what it said, or the process ended.
        """
        future: Future[Any] = Future()
        if self._process is None:
            _settle(future, _answer(work, arguments))
        else:
            threading.Thread(
                target=self._ask,
                args=(self._process, future, work, arguments),
                name="syncopate-aside",
                daemon=True,
            ).start()
        return future

    def _ask(
        self,
        process: subprocess.Popen[bytes],
        future: Future[Any],
        work: str,
        arguments: tuple[object, ...],
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with self._lock:
                pickle.dump((work, arguments), process.stdin)
                process.stdin.flush()
                answer: Answer = pickle.load(process.stdout)
        except (OSError, EOFError):
            answer = (None, f"the process that plans ended with {process.wait()}")
        except Exception as error:  # half a question, or no answer: the next would be none either
            process.kill()
            process.wait()
            answer = (None, f"the process that plans gave no answer: {error}")
        _settle(future, answer)

    def close(self) -> None:
        """End the process, also amid an answer."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        with self._lock:  # a question that it leaves open ends first
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()


def _make_nice(pid: int) -> None:
    """Let a process that leads its session give way to others, from its first instruction on."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + NICENESS)
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))


def _settle(future: Future[Any], answer: Answer) -> None:
    result, refused = answer
    if refused is None:
        future.set_result(result)
    else:
        future.set_exception(PlanError(refused))


def _environment() -> dict[str, str]:
    """Return the environment of the process: it finds the same packages, and records nothing.

    It is no rank either: in a rank, importing this package loads torch.
    """
    here = str(Path(__file__).parents[4])
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "RANK" and not name.startswith("SYNCOPATE_")
    }
    return kept | {"PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}


def _answer(work: str, arguments: tuple[object, ...]) -> Answer:
    try:
        return pkgutil.resolve_name(work)(*arguments), None
    except SyncopateError as error:
        return None, str(error)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions, or no reader of the answers."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            work, arguments = pickle.load(questions)
            pickle.dump(_answer(work, arguments), answers)
            answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as _answers:
        os.dup2(2, 1)  # what a policy prints is no answer
        serve(sys.stdin.buffer, _answers)

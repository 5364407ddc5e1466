"""PlannerProcess: another process answers, refuses, ends, and is ended."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncopate.engine.selfplan.background.process import NICENESS, PlannerProcess, serve
from syncopate.errors import PlanError
from tests.children import environment

WITHIN_S = 60
PLAN = "syncopate.engine.selfplan.ddp_buckets:first_plan"


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlannerProcess]:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)  # as a launcher does
    made = PlannerProcess()
    yield made
    made.close()


def test_another_process_answers_one_after_the_other(aside: PlannerProcess) -> None:
    futures = [aside.run("os:getpid"), aside.run("operator:add", 1, 2)]
    pid, three = (future.result(WITHIN_S) for future in futures)
    assert pid != os.getpid()
    assert three == 3
    assert aside.run("os:getpid").result(WITHIN_S) == pid


def test_it_gives_way_to_every_session(aside: PlannerProcess) -> None:
    pid = aside.run("os:getpid").result(WITHIN_S)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICENESS, 19)
    assert os.getsid(pid) == pid
    group = Path(f"/proc/{pid}/autogroup")
    if not group.exists():
        pytest.skip("this kernel does not share processors between sessions")
    assert group.read_text().split()[-2:] == ["nice", str(NICENESS)]


def test_it_knows_nothing_of_torch_even_when_it_has_planned(aside: PlannerProcess) -> None:
    tensors = [("a", 8, "float32"), ("b", 4, "float32")]
    plan = aside.run(PLAN, "m", tensors, 2).result(WITHIN_S)
    assert plan.buckets[0].tensors == ("b", "a")
    for module in ("proposals", "sampling"):
        aside.run(f"syncopate.engine.selfplan.background.{module}:__name__.upper").result(WITHIN_S)
    aside.run("syncopate.calibration.message_overhead:__name__.upper").result(WITHIN_S)
    assert not aside.run("sys:modules.__contains__", "torch").result(WITHIN_S)


def test_a_refusal_comes_back_as_it_was_said(aside: PlannerProcess) -> None:
    refused = aside.run(PLAN, "m", [("a", 8, "float7")], 2)
    with pytest.raises(PlanError, match="float7"):
        refused.result(WITHIN_S)
    assert aside.run("operator:add", 1, 2).result(WITHIN_S) == 3


def test_what_it_prints_is_no_answer(aside: PlannerProcess) -> None:
    assert aside.run("os:write", 1, b"a policy says\n").result(WITHIN_S) == 14
    assert aside.run("operator:add", 1, 2).result(WITHIN_S) == 3


def test_a_question_that_cannot_be_asked_is_refused(aside: PlannerProcess) -> None:
    with pytest.raises(PlanError, match="the process that plans gave no answer"):
        aside.run("builtins:repr", lambda: 1).result(WITHIN_S)
    with pytest.raises(PlanError, match="the process that plans ended with -9"):
        aside.run("operator:add", 1, 2).result(WITHIN_S)


@pytest.mark.parametrize("work", [("os:_exit", 7), ("os:no_such_function",)])
def test_an_end_in_the_midst_of_it_is_said(aside: PlannerProcess, work: tuple[object, ...]) -> None:
    lost = aside.run(*work)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"the process that plans ended with [17]"):
        lost.result(WITHIN_S)
    with pytest.raises(PlanError, match=r"the process that plans ended with [17]"):
        aside.run("operator:add", 1, 2).result(WITHIN_S)


def test_closing_ends_what_is_under_way(aside: PlannerProcess) -> None:
    pid = aside.run("os:getpid").result(WITHIN_S)
    endless = aside.run("time:sleep", 1000)
    aside.close()
    with pytest.raises(PlanError, match="ended with -9"):
        endless.result(WITHIN_S)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    aside.close()


def test_where_no_process_can_be_started_the_work_is_done_here(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    aside = PlannerProcess()
    assert aside.run("os:getpid").result(0) == os.getpid()
    with pytest.raises(PlanError, match="float7"):
        aside.run(PLAN, "m", [("a", 8, "float7")], 2).result(0)
    aside.close()


def test_it_ends_with_the_questions_and_answers_each() -> None:
    questions, answers = io.BytesIO(), io.BytesIO()
    for numbers in ((1, 2), (3, 4)):
        pickle.dump(("operator:add", numbers), questions)
    questions.seek(0)
    serve(questions, answers)
    answers.seek(0)
    assert [pickle.load(answers) for _ in range(2)] == [(3, None), (7, None)]


_LEFT = """
from syncopate.engine.selfplan.background.process import PlannerProcess
aside = PlannerProcess()
print(aside.run("os:getpid").result(60), flush=True)
aside.run("time:sleep", 0.2)
"""


def test_it_does_not_outlive_the_rank_that_asks_nor_keep_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEFT],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    # The pipe of its errors is the parent's: it is closed when both have ended.
    assert done.stderr == ""
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    until_s = time.monotonic() + WITHIN_S
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s
        time.sleep(0.01)

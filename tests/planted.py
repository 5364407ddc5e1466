"""Planted faults: bugs that tests once let pass, each with the tests that notice it now.

``make mutants`` plants each in a copy of the tree, and says which of its tests failed. A row names
a text that occurs once in its file, what stands there instead, and the tests that have to fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.children import REPOSITORY, environment

SOURCES = Path("src/syncopate")
_LEFT_OUT = (".git", ".venv", "mutants", "out", "build", "dist", "__pycache__", ".*_cache")
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Planted:
    """A bug.

    Attributes:
        what: the bug does.
        file: under :data:`SOURCES`.
        before: the text that it changes; it occurs once in the file.
        after: what stands there instead.
        tests: as pytest takes them; at least one of each has to fail.
    """

    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def changed(self, source: str) -> str:
        """Return the text of the file with the bug.

        Raises:
            ValueError: the text that it changes is not there, or in several places.
        """
        if (count := source.count(self.before)) != 1:
            raise ValueError(
                f"{self.what}: {self.before!r} occurs {count} times in {self.file}, where once is "
                "needed; bring tests/planted.py up to date"
            )
        return source.replace(self.before, self.after)


PLANTED: tuple[Planted, ...] = (
    Planted(
        "a step is updated although a rank's backward failed",
        "engine/exchange/delay/deferred.py",
        "for update in updates if said.is_sound else ():",
        "for update in updates:",
        ("tests/unit/engine/exchange/test_ending.py", "tests/multiprocess/delay/test_deferred.py"),
    ),
    Planted(
        "weights are pulled although a rank's backward failed",
        "engine/exchange/delay/deferred.py",
        "pull.settle(lambda: said.result().is_sound)",
        "pull.settle(lambda: True)",
        ("tests/unit/engine/exchange/test_ending.py",),
    ),
    Planted(
        "no_sync stays on after an exception in its block",
        "engine/engine.py",
        """        try:
            yield
        finally:
            self.readiness.paused = before
""",
        """        yield
        self.readiness.paused = before
""",
        ("tests/unit/engine/test_paused.py", "tests/multiprocess/engine/test_errors.py"),
    ),
    Planted(
        "a local state is saved as if ranks were at their average",
        "engine/exchange/delay/averaged.py",
        '"apart": self._averages.apart,',
        '"apart": False,',
        ("tests/multiprocess/delay/test_local_sgd_state.py",),
    ),
    Planted(
        "a round trip counts as one way",
        "calibration/links.py",
        "_round_trip(self._buffers[index]) / 2",
        "_round_trip(self._buffers[index])",
        ("tests/unit/calibration/test_links.py",),
    ),
    Planted(
        "copies are charged as additions, by the model of messages",
        "costs/schedule/messages.py",
        "np.where(table.op == REDUCE, chunks, 0)",
        "chunks",
        ("tests/unit/costs/schedule/test_price.py",),
    ),
    Planted(
        "copies are charged as additions, by the model of the executor",
        "costs/schedule/loads.py",
        "(sent * turn.adds[:, None]).sum(axis=0)",
        "sent.sum(axis=0)",
        ("tests/unit/costs/schedule/test_execution.py",),
    ),
    Planted(
        "a forward is spread over its layers by the inverse of its share",
        "engine/selfplan/background/proposals.py",
        "share = workload.forward_s / backward_s",
        "share = backward_s / workload.forward_s",
        ("tests/unit/engine/selfplan/test_contest.py",),
    ),
    Planted(
        "what ranks wait for counts in the rest of a page, too",
        "reports/pages/parts.py",
        "rest_s = max(total_s - computed_s - waiting_s - moving_s, 0.0)",
        "rest_s = max(total_s - computed_s - moving_s, 0.0)",
        ("tests/unit/reports/test_run_page.py",),
    ),
    Planted(
        "iterations count whose answers are cut off",
        "analysis/serving.py",
        "if not (pushes and len(pulls) == len(pushes) and had):",
        "if not (pushes and pulls and had):",
        ("tests/unit/analysis/test_serving.py",),
    ),
    Planted(
        "collectives of different roots have the same tags",
        "collectives/mesh/executor.py",
        'f"{schedule.title}, {schedule.root}, {schedule.chunks}, {elements}"',
        'f"{schedule.title}, {schedule.chunks}, {elements}"',
        ("tests/unit/collectives/mesh/test_executor.py",),
    ),
    Planted(
        "samples beyond the inner fence count as outliers",
        "artifacts/cluster.py",
        "reach = 3 * (high - low)",
        "reach = 1.5 * (high - low)",
        ("tests/unit/artifacts/test_cluster.py",),
    ),
    Planted(
        "views of other shapes on the same memory have one copy",
        "engine/checkpoint.py",
        "(value.data_ptr(), value.dtype, value.shape, value.stride())",
        "(value.data_ptr(), value.dtype)",
        ("tests/unit/engine/test_checkpoint.py",),
    ),
    Planted(
        "servers update weights of every size in the same time",
        "simulation/serving.py",
        "share = push.duration_s / whole_s if whole_s else 1 / len(traffic.pushes)",
        "share = 1 / len(traffic.pushes)",
        ("tests/unit/simulation/test_serving.py",),
    ),
    Planted(
        "steps a little longer than usual count as pauses",
        "engine/selfplan/payback.py",
        "_PAUSE = 3.0",
        "_PAUSE = 0.75",
        ("tests/unit/engine/selfplan/test_payback.py",),
    ),
    Planted(
        "what exceeds the usual by one spread counts as a pause, instead of four",
        "analysis/causes/unusual.py",
        "_FAR = 4.0",
        "_FAR = 1.0",
        ("tests/unit/analysis/test_causes.py",),
    ),
    Planted(
        "a clock has drifted that is within the error of its comparison",
        "tracing/run.py",
        "not low_s - error_s <= offset_s <= high_s + error_s",
        "not low_s <= offset_s <= high_s",
        ("tests/unit/tracing/test_capture.py",),
    ),
    Planted(
        "the window of a worker begins at what was received",
        "protocol/worker.py",
        "max(flow.done, 0) + self._rules.window",
        "max(flow.received, 0) + self._rules.window",
        ("tests/unit/protocol/test_worker.py",),
    ),
    Planted(
        "acknowledgements of what was never sent are believed",
        "protocol/flow.py",
        "if ack.received > max(flow.sent, most) or ack.done > ack.received:",
        "if ack.done > ack.received:",
        ("tests/unit/protocol/test_worker.py",),
    ),
    Planted(
        "acknowledgements are believed of pushes that are over before they came",
        "protocol/flow.py",
        "if ack.received > max(flow.sent, most) or ack.done > ack.received:",
        "if ack.received > max(flow.sent, most):",
        ("tests/unit/protocol/test_worker.py",),
    ),
    Planted(
        "what is sent again does not count as under way",
        "protocol/worker.py",
        "            flow.queued += len(sends)\n",
        "",
        ("tests/unit/protocol/test_worker.py",),
    ),
    Planted(
        "what was sent again stays marked as lost",
        "protocol/worker.py",
        "            flow.sent = max(ack.received, flow.received)\n",
        "",
        ("tests/unit/protocol/test_worker.py",),
    ),
    Planted(
        "a server says its share of a norm once, and a lost message ends it",
        "protocol/server.py",
        "again = [] if self._norm.share is None else [self._share(worker)]",
        "again = []",
        ("tests/unit/protocol/gradients/test_clipping.py",),
    ),
    Planted(
        "a worker forgets the norm of a step that a server may have to take again",
        "protocol/gradients/clipping.py",
        "self._most = window + 1",
        "self._most = 1",
        ("tests/unit/protocol/gradients/test_clipping.py",),
    ),
    Planted(
        "ZeroMQ gets payloads without a limit of their number",
        "paramserver/wire/outbox.py",
        "return few and count < IN_FLIGHT_MESSAGES",
        "return few",
        ("tests/unit/paramserver/wire/test_outbox.py",),
    ),
    Planted(
        "ZeroMQ gets payloads without a limit of their bytes",
        "paramserver/wire/outbox.py",
        "return few and count < IN_FLIGHT_MESSAGES",
        "return count < IN_FLIGHT_MESSAGES",
        ("tests/unit/paramserver/wire/test_outbox.py",),
    ),
    Planted(
        "a rank that did not arrive is reported with the shortest wait",
        "collectives/health/blame.py",
        "waited_s = max(notice.waited_s for notice in failed.values())",
        "waited_s = min(notice.waited_s for notice in failed.values())",
        ("tests/unit/collectives/health/test_blame.py",),
    ),
    Planted(
        "each channel that fails makes a diagnosis of its own",
        "collectives/health/detector.py",
        "        with self._diagnosing:\n",
        "        if True:\n",
        ("tests/unit/collectives/health/test_detector.py",),
    ),
    Planted(
        "a read of weights does not wait for their pulls",
        "engine/exchange/flat_weights.py",
        "self._await(pending, self._parts[key])",
        "pass",
        ("tests/multiprocess/exchange/test_overlap.py",),
    ),
    Planted(
        "a step does not wait for the pulls of the step before",
        "engine/exchange/flat_weights.py",
        """        for key in keys:
            self.arrive(key)
        for""",
        """        for""",
        ("tests/multiprocess/exchange/test_overlap.py",),
    ),
)


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """Give a copy of the tree to plant bugs in."""
    with tempfile.TemporaryDirectory(prefix="syncopate-planted-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        yield copy


def unnoticed(
    bugs: Iterable[Planted], tree: Path = REPOSITORY
) -> Iterator[tuple[Planted, list[str]]]:
    """Plant one bug at a time in a copy of ``tree``; yield it and those of its tests that pass.

    Raises:
        RuntimeError: tests ended neither well nor by a failure, as where one is not found.
    """
    with copy_of(tree) as copy:
        for bug in bugs:
            path = copy / SOURCES / bug.file
            source = path.read_text("utf-8")
            path.write_text(bug.changed(source), "utf-8")
            try:
                yield bug, [test for test in bug.tests if _passes(test, copy)]
            finally:
                path.write_text(source, "utf-8")


def _passes(test: str, copy: Path) -> bool:
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "--timeout=120", test],
            check=False,
            cwd=copy,
            env=environment(copy / "src", copy),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode > 1:
        raise RuntimeError(f"pytest {test} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.returncode == 0

"""The demo's story: all ranks act it, rank 0 tells it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import DECOUPLED, Plan
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.workload import Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.cli.common.console import note, out, progress_bar
from syncopate.cli.demo import text
from syncopate.cli.demo.measure import Contender, Contends, measure
from syncopate.cli.demo.pace import Computation, at_pace
from syncopate.cli.demo.result import DemoResult, Pace, PolicyResult, ScalePrediction
from syncopate.cli.demo.text import BASELINE, BEST, HALVED
from syncopate.cli.demo.trainer import Trainer, Wrap, optimizer_of, with_ddp, with_plan
from syncopate.collectives import Communicator
from syncopate.engine.selfplan.contest import alike
from syncopate.errors import InvalidValueError, SyncopateError
from syncopate.output import write_output
from syncopate.planning import compare, make_plan
from syncopate.profiling.profile import profile
from syncopate.reports.terminal import (
    algorithms_of,
    cluster_report,
    plans_report,
    workload_report,
)
from syncopate.runs.page import report
from syncopate.tracing.perfetto import to_perfetto
from syncopate.units import format_seconds
from syncopate.zoo import digits, resnet20

NETWORK = "10gbe"
NODES = (8, 16, 64)


@dataclass(frozen=True)
class Settings:
    """How much of everything.

    Attributes:
        output: folder of the artefacts.
        batch: samples per rank and iteration.
        calibration_s: time budget of the calibration.
        profiled: measured iterations of the profile.
        rounds: turns of each contender in the comparison.
        iterations: measured iterations per turn.
        accuracy: test accuracy above which training stops.
        epochs: at most so many.
        full: whether to print the tables of the commands, too.
    """

    output: Path
    batch: int = 32
    calibration_s: float = 15.0
    profiled: int = 30
    rounds: int = 16
    iterations: int = 5
    accuracy: float = 0.95
    epochs: int = 30
    full: bool = False

    def say(self, short: RenderableType, *tables: RenderableType) -> None:
        """Print what is for all readers, and the tables for those who asked for all of it."""
        for each in (short, *(tables if self.full else ())):
            out().print(each)


def tell(communicator: Communicator, settings: Settings) -> DemoResult:
    """Run every chapter on all ranks; rank 0 prints and saves the artefacts.

    Returns:
        What was found, the same on every rank.
    """
    began_s = time.perf_counter()
    cluster = _calibrated(communicator, settings)
    workload = _profiled(communicator, settings)
    plans = _planned(communicator, settings, workload, cluster)
    trainer = _trainers(communicator, settings)
    ours = trainer(with_plan(plans[BEST]))
    first = first_alike(plans)
    contenders = [
        *(
            Contender(name, partial(ours.install, plan), ours.step)
            for name, plan in plans.items()
            if first[name] == name
        ),
        Contender(BASELINE, lambda: None, trainer(with_ddp).step),
    ]
    policies, pace = _compared(
        communicator,
        settings,
        contenders,
        plans=plans,
        first=first,
        workload=workload,
        cluster=cluster,
    )
    timeline = _recorded(ours, plans[BEST])
    accuracies = _trained(communicator, settings, ours)
    ours.close()
    scale = _scaled(workload, tuple(name for name in plans if name != HALVED))
    result = DemoResult(
        world_size=communicator.world_size,
        policies=policies,
        pace=pace,
        accuracies=accuracies,
        scale=scale,
        wall_s=time.perf_counter() - began_s,
        metadata=dict(cluster.metadata),
    )
    if communicator.rank == 0:
        _concluded(settings, result, timeline, (workload, cluster, plans[BEST]))
    return result


def first_alike(plans: Mapping[str, Plan]) -> dict[str, str]:
    """Return for each plan the first that trains as it does; they take their turns as one."""
    return {name: next(n for n in plans if alike(plans[n], plan)) for name, plan in plans.items()}


def _chapter(number: int, title: str, remark: str) -> None:
    out().print(Text.assemble("\n", (f"[{number}/6] {title}", "bold cyan"), f"  {remark}"))


def _calibrated(communicator: Communicator, settings: Settings) -> Cluster:
    _chapter(1, "Calibrate", "what the links and every all-reduce algorithm cost between the ranks")
    with progress_bar("calibrating") as progress:
        cluster = calibrate(communicator, budget_s=settings.calibration_s, progress=progress)
    settings.say(text.calibrated(cluster), cluster_report(cluster))
    if communicator.rank == 0:
        cluster.save(settings.output / "cluster.json")
    return cluster


def _profiled(communicator: Communicator, settings: Settings) -> Workload:
    _chapter(2, "Profile", "ResNet-20 on handwritten digits: which gradient is ready when")
    task = resnet20(settings.batch)
    with progress_bar("profiling") as progress:
        workload = profile(
            task,
            iterations=settings.profiled,
            optimizer=optimizer_of(task.model),
            progress=progress,
        )
    settings.say(text.profiled(workload), workload_report(workload, top=5))
    if communicator.rank == 0:
        workload.save(settings.output / "workload.json")
    return workload


def _planned(
    communicator: Communicator, settings: Settings, workload: Workload, cluster: Cluster
) -> dict[str, Plan]:
    _chapter(3, "Plan", "which gradients to merge, with which algorithm: every policy, predicted")
    found: dict[str, Plan] = communicator.broadcast_object(
        _plans(workload, cluster) if communicator.rank == 0 else None
    )
    settings.say(text.planned(found), plans_report(tuple(found.values()), chosen=found[BEST]))
    if communicator.rank == 0:
        for name, plan in found.items():
            plan.save(settings.output / f"plan-{name}.json")
    return found


def _plans(workload: Workload, cluster: Cluster) -> dict[str, Plan]:
    """Return every policy's plan, and the one whose second halves hide behind the next forward."""
    found = {plan.policy: plan for plan in compare(workload, cluster)}
    found[HALVED] = make_plan(workload, cluster, BEST, exchange=DECOUPLED, channels=2)
    return found


def _trainers(communicator: Communicator, settings: Settings) -> Callable[[Wrap], Trainer]:
    """Return what makes a trainer of each way of training, all from the same weights."""
    model, data = resnet20(settings.batch).model, digits()
    return lambda wrap: Trainer(copy.deepcopy(model), data, communicator, settings.batch, wrap)


def _compared(
    communicator: Communicator,
    settings: Settings,
    contenders: Sequence[Contends],
    *,
    plans: Mapping[str, Plan],
    first: Mapping[str, str],
    workload: Workload,
    cluster: Cluster,
) -> tuple[tuple[PolicyResult, ...], Pace]:
    """Measure all, and computation beside them; hold predictions at its pace against that."""
    _chapter(
        4,
        "Compare",
        "training under every plan and under DDP, and computation alone, taking turns",
    )
    task = resnet20(settings.batch)
    computation = Computation(task, optimizer_of(task.model))
    with progress_bar("training in turns") as progress:
        times = measure(
            [*contenders, computation],
            communicator,
            rounds=settings.rounds,
            iterations=settings.iterations,
            progress=progress,
        )
    pace = Pace(profiled_s=workload.compute_s, samples_s=tuple(times.pop(computation.name)))
    paced = at_pace(plans, workload, cluster, pace.measured_s)
    results = tuple(
        _policy_result(name, plans.get(name), paced.get(name), times[first.get(name, name)])
        for name in (*plans, BASELINE)
    )
    measured_s = {result.name: result.measured_s for result in results}
    measured_s[computation.name] = pace.measured_s
    settings.say(
        text.compared(results, pace),
        plans_report(tuple(paced.values()), measured_s=measured_s, chosen=paced[BEST]),
    )
    return results, pace


def _policy_result(
    name: str, plan: Plan | None, paced: Plan | None, samples_s: Sequence[float]
) -> PolicyResult:
    return PolicyResult(
        name=name,
        buckets=len(plan.buckets) if plan else 0,
        algorithms=algorithms_of(plan) if plan else (),
        predicted_s=plan.expected_s if plan else None,
        paced_s=paced.expected_s if paced else None,
        samples_s=tuple(samples_s),
    )


def _recorded(ours: Trainer, plan: Plan) -> Timeline:
    """Record a few iterations under ``plan``, after one to settle."""
    ours.install(plan)
    ours.step()
    engine = ours.engine
    engine.record(True)
    for _ in range(3):
        ours.step()
    engine.record(False)
    return engine.timeline()


def _trained(communicator: Communicator, settings: Settings, ours: Trainer) -> tuple[float, ...]:
    target = settings.accuracy
    _chapter(5, "Train", f"from scratch with the optimal plan, until test accuracy > {target:.0%}")
    ours.restart()
    accuracies: list[float] = []
    started_s = time.perf_counter()
    while len(accuracies) < settings.epochs and max(accuracies, default=0.0) <= target:
        began_s = time.perf_counter()
        loss = ours.epoch(len(accuracies))
        accuracy = communicator.broadcast_object(ours.data.test_accuracy(ours.bare))
        accuracies.append(accuracy)
        if settings.full:
            took = format_seconds(time.perf_counter() - began_s)
            out().print(
                f"  epoch {len(accuracies):2d}   loss {loss:.3f}   test accuracy {accuracy:6.2%}   "
                f"{took}"
            )
    settings.say(text.trained(accuracies, time.perf_counter() - started_s))
    return tuple(accuracies)


def _scaled(workload: Workload, policies: Sequence[str]) -> tuple[ScalePrediction, ...]:
    _chapter(
        6, "Predict", "the same model on clusters that are not here, hosts as fast as this rank"
    )
    predictions = []
    for nodes in NODES:
        cluster = Cluster.preset(NETWORK, nodes)
        plans = {plan.policy: plan for plan in compare(workload, cluster, policies=policies)}
        best = plans[BEST].prediction
        assert best is not None
        scale = ScalePrediction(
            cluster=cluster.name,
            nodes=nodes,
            iteration_s={name: plan.expected_s for name, plan in plans.items()},
            compute_s=best.compute_s,
            bound_s=best.bound_s,
        )
        predictions.append(scale)
        out().print(text.scaled(scale, len(plans[BEST].buckets)))
    return tuple(predictions)


def _concluded(
    settings: Settings,
    result: DemoResult,
    timeline: Timeline,
    known: tuple[Workload, Cluster, Plan],
) -> None:
    """Save what was found; say it in short, what to do next, and last which page to open."""
    folder = settings.output
    timeline.save(folder / "timeline.json")
    write_output(folder / "trace.json", to_perfetto(timeline))
    result.save(folder / "demo.json")
    console = out()
    console.print(Text("\nIn short", style="bold cyan"))
    console.print(text.concluded(result))
    console.print(Text("\nNext", style="bold cyan"))
    workload, cluster, plan = known
    if result.pace is not None:  # a busy machine may have profiled at a third of the pace
        workload = workload.scaled(result.pace.measured_s / workload.compute_s)
    console.print(text.what_next(folder, _page(folder, timeline, (workload, cluster, plan))))


def _page(folder: Path, timeline: Timeline, known: tuple[Workload, Cluster, Plan]) -> Path | None:
    """Write the page of the recorded iterations; return None where it cannot be made."""
    workload, cluster, plan = known
    files = str(folder / "workload.json"), str(folder / "cluster.json")
    try:
        try:
            page = report(timeline, workload=workload, cluster=cluster, plan=plan, files=files)
        except InvalidValueError:  # the machine's pace was quite another when it was profiled
            page = report(timeline, cluster=cluster)
    except SyncopateError as error:
        note(f"no page: {error}")
        return None
    return page.save(folder / "report.html")

"""The training benchmark's arithmetic: what is left to do, the sweep, the tables, the profiles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.contest import grid, session, table, turn, works
from benchmarks.contest.profiles import (
    RESNET50_S,
    alexnet_profile,
    operations,
    resnet50_profile,
    vgg11_profile,
    vgg16_profile,
)
from benchmarks.contest.results import (
    Cell,
    Place,
    Results,
    Setting,
    Turn,
    WorkResult,
    resumed,
    still_to_do,
)
from benchmarks.contest.variants import VARIANTS, best_ddp, state_bytes
from msgspec import structs
from torch.optim import SGD

from syncopate.artifacts.plan import Plan, Prediction
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.errors import ArtifactError
from syncopate.lab import Topology
from syncopate.planning import make_plan
from syncopate.zoo import VGG11, AlexNet, ResNet50

MIB = 1 << 20

WORKLOAD = Workload(
    model="m",
    tensors=(GradientTensor(name="w", numel=MIB, backward_s=0.1),),
    forward_s=0.1,
    backward_s=0.2,
)


def setting(**fields: object) -> Setting:
    whole = Setting(
        hosts=2, rate="1gbit", ratio=None, iterations=2, warmup=1, optimizer="", quick=False
    )
    return structs.replace(whole, **fields)


def taken(*ranks_s: float, digests: tuple[str, ...] = ("a", "a"), off: float | None = None) -> Turn:
    return Turn(
        steps_s=tuple((0.9 * s, 1.1 * s) for s in ranks_s),
        peak_bytes=(300 * MIB, 310 * MIB),
        state_bytes=(MIB, 2 * MIB),
        digests=digests,
        off=off,
    )


def cell(*steps_s: float, **fields: object) -> Cell:
    return Cell(turns=tuple(taken(s / 2, s) for s in steps_s), **fields)


def results(**cells: Cell) -> Results:
    found = WorkResult(
        workload=WORKLOAD, bound_s=0.5, cells={n.replace("_", "-"): c for n, c in cells.items()}
    )
    return Results(setting=setting(), works={"resnet20": found})


PROMISE = Prediction(
    iteration_s=0.4, compute_s=0.3, communication_s=0.1, exposed_s=0.1, bound_s=0.3
)


def planned(predicted_s: float) -> Plan:
    plan = make_plan(WORKLOAD, Topology(hosts=2).cluster(), "single")
    return structs.replace(plan, prediction=structs.replace(PROMISE, iteration_s=predicted_s))


def row(text: str, name: str) -> dict[str, str]:
    for line in text.splitlines():
        fields = [field.strip() for field in line.strip("|").split("|")]
        if len(fields) == len(table.COLUMNS) and fields[0].strip("*").split("*")[0] == name:
            return dict(zip(table.COLUMNS, fields, strict=True))
    raise AssertionError(f"no row {name} in {text}")


def test_a_cell_is_the_median_turn_of_its_slowest_rank() -> None:
    found = cell(1.0, 4.0, 1.2)
    assert found.step_s == pytest.approx(1.2)
    assert found.spread == pytest.approx(3.0 / 1.2)
    assert (found.peak_bytes, found.state_bytes) == (310 * MIB, 2 * MIB)


def test_the_sweep_takes_the_fastest_that_ran() -> None:
    cells = {"ddp-25": cell(3.0), "ddp-5": cell(2.0, 9.0, 2.0), "ddp-1": cell(), "zero-1": cell(1)}
    assert best_ddp(cells) == "ddp-5"
    assert best_ddp({"zero-1": cell(1.0), "ddp-1": cell()}) is None


def test_a_delay_is_counted_in_whole_periods_after_its_warm_up() -> None:
    delayed = VARIANTS["delayed-4"]
    assert delayed.steps(2, 4) == (8, 8)
    assert delayed.steps(20, 41) == (20, 44)
    delay = delayed.delay(torch.optim.SGD)
    assert delay is not None
    # The period before the first that counts is already delayed.
    assert (delay.local_update, delay.wp + 1) == ("glu", delayed.steps(2, 4)[0] - delayed.k)
    other = delayed.delay(torch.optim.AdamW)
    assert other is not None
    assert other.local_update == "sgd"
    assert VARIANTS["sharded"].steps(2, 5) == (2, 5)
    assert VARIANTS["sharded"].delay(torch.optim.SGD) is None


def test_a_plan_with_a_delay_is_the_best_of_several() -> None:
    cluster = Topology(hosts=2).cluster()
    plan = session.best_plan(WORKLOAD, cluster, "sharded", VARIANTS["delayed-4"].delay(SGD))
    assert plan.pull_period == 4
    assert plan.prediction is not None
    once = session.best_plan(WORKLOAD, cluster, "sharded")
    assert once.prediction is not None
    assert plan.prediction.iteration_s < once.prediction.iteration_s


def test_another_algorithm_is_not_compared_with_ddp() -> None:
    text = table.report(results(ddp_25=cell(2.0), delayed_4=cell(1.0)), ["resnet20"])
    assert row(text, "delayed-4")["weights as DDP's"] == "another algorithm"
    assert row(text, "delayed-4")["against best DDP"] == "2.000x"


def test_the_bound_with_a_delay_is_that_of_its_own_traffic() -> None:
    plan = structs.replace(planned(0.4), prediction=structs.replace(PROMISE, bound_s=0.25))
    found = results(alone=cell(0.3), ddp_25=cell(2.0), delayed_4=cell(0.5, plan=plan))
    text = table.report(found, ["resnet20"])
    assert row(text, "delayed-4")["of the bound"] == "2.000"
    assert row(text, "ddp-25")["of the bound"] == "4.000"


def test_what_is_left_is_taken_in_turns() -> None:
    found = results(ddp_25=cell(1.0, 1.0), sharded=cell(1.0), rooted=cell(missing="not yet"))
    names = ["ddp-25", "sharded", "rooted"]
    assert still_to_do(found, ["resnet20"], names, 2) == [
        Place(0, "resnet20", "rooted"),
        Place(1, "resnet20", "sharded"),
        Place(1, "resnet20", "rooted"),
    ]
    assert still_to_do(found, ["vgg16"], ["alone"], 1) == [Place(0, "vgg16", "alone")]
    again = found.without(["resnet20"], ["sharded"])
    assert [p.variant for p in still_to_do(again, ["resnet20"], names[:2], 2)] == ["sharded"] * 2
    assert again.cell("resnet20", "ddp-25") == found.cell("resnet20", "ddp-25")


def test_results_are_kept_and_only_of_the_same_setting(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert resumed(path, setting(), {"cpu": "x"}).metadata == {"cpu": "x"}
    kept = results(self=cell(1.0, plan=planned(1.1), planning_s=(1.0, 2.0)))
    kept.save(path)
    assert resumed(path, setting(), {}) == kept
    one = resumed(path, setting(), {"cpu": "y", "command": "a"})
    one.save(path)
    assert resumed(path, setting(), {"command": "a"}) == one
    both = resumed(path, setting(), {"command": "b"})
    assert both.metadata == {"command 1": "a", "command 2": "b"}
    assert both.works == kept.works
    with pytest.raises(ArtifactError, match=r"with ratio None, and 2\.0 is asked for"):
        resumed(path, setting(ratio=2.0), {})


def test_the_table_says_what_was_found() -> None:
    found = results(
        alone=cell(0.4),
        ddp_25=cell(1.0),
        ddp_1=cell(0.8, 0.82, 0.84),
        allreduce=Cell(turns=(taken(0.5, digests=("a", "b"), off=0.5),), plan=planned(0.55)),
        sharded=Cell(turns=(taken(0.41, off=1e-5),)),
        rooted=Cell(missing="no such exchange"),
    )
    text = table.report(found, ["resnet20", "vgg16"], "raw.json")
    best = row(text, "ddp-1")
    assert best["variant"] == "**ddp-1** (best DDP)"
    assert (best["step"], best["spread"]) == ("820.00 ms", "4.9%")
    assert (best["exposed"], best["of the bound"]) == ("420.00 ms", "1.640")
    assert row(text, "ddp-25")["against best DDP"] == "0.820x"
    ours = row(text, "allreduce")
    assert (ours["predicted"], ours["error"]) == ("550.00 ms", "+10.0%")
    assert (ours["ranks alike"], ours["weights as DDP's"]) == ("**NO**", "**OFF by 5.0e-01**")
    good = row(text, "sharded")
    assert (good["ranks alike"], good["weights as DDP's"]) == ("yes", "equal (1e-05)")
    assert (good["predicted"], good["against best DDP"]) == ("-", "2.000x")
    assert row(text, "alone")["ranks alike"] == "-"
    assert "`rooted` is not available: no such exchange" in text
    assert "quick" not in text
    assert "VGG-16, replayed" not in text


def test_several_files_in_one_table() -> None:
    one = results(ddp_25=cell(1.0), ddp_5=cell(1.5), allreduce=cell(0.8, plan=planned(0.88)))
    other = structs.replace(
        results(self=cell(2.0, plan=planned(1.0)), sharded=cell(1.0)), setting=setting(ratio=2.0)
    )
    text = grid.summary([one, other])
    rows = [
        dict(zip(grid.COLUMNS, [f.strip() for f in line.strip("|").split("|")], strict=True))
        for line in text.splitlines()[2:4]
    ]
    assert rows[0]["best DDP"] == "1.00 s (ddp-25)"
    assert rows[0]["allreduce"] == "800.00 ms, 1.250x, +10.0%"
    assert (rows[0]["ratio"], rows[1]["ratio"], rows[1]["best DDP"]) == ("own", "2", "-")
    assert (rows[1]["self"], rows[1]["sharded"]) == ("2.00 s, -50.0%", "1.00 s")
    assert "Predictions: 2, off by 30.0% in the median, 50.0% at worst." in text
    assert "Predictions" not in grid.summary([results(sharded=cell(1.0))])


def test_profiles_are_the_published_models() -> None:
    vgg, resnet = vgg16_profile(), resnet50_profile()
    assert (len(vgg.tensors), vgg.nbytes) == (32, 4 * 138_357_544)
    assert (len(resnet.tensors), resnet.nbytes) == (161, 4 * 25_557_032)
    assert {t.name for t in vgg.tensors[-2:]} == {"features.0.weight", "features.0.bias"}
    assert {t.name for t in vgg.tensors[:2]} == {"classifier.6.weight", "classifier.6.bias"}
    for found in (vgg, resnet, vgg16_profile(2.0)):
        assert sum(t.forward_s for t in found.tensors) == pytest.approx(found.forward_s)
        assert sum(t.backward_s for t in found.tensors) == pytest.approx(found.backward_s)
    assert vgg16_profile(2.0).compute_s == pytest.approx(2.0)
    # Its log, without the 17.972 ms of loading images.
    assert vgg.forward_s == pytest.approx(0.251874 - 0.017972, rel=1e-3)
    assert vgg.backward_s == pytest.approx(0.438633, rel=1e-3)


def test_profiles_by_operations_keep_one_pace() -> None:
    resnet = sum(count for _, count in operations(ResNet50).values())
    for build, profile, layers, nbytes in (
        (AlexNet, alexnet_profile, 8, 203_376_032),
        (VGG11, vgg11_profile, 11, 531_453_344),
    ):
        found = profile()
        assert (len(found.tensors), found.nbytes) == (2 * layers, nbytes)
        assert sum(t.forward_s for t in found.tensors) == pytest.approx(found.forward_s)
        assert sum(t.backward_s for t in found.tensors) == pytest.approx(found.backward_s)
        counted = sum(count for _, count in operations(build).values())
        assert found.compute_s == pytest.approx(RESNET50_S * counted / resnet, rel=0.02)
    assert works.replayed(works.WORKS["alexnet"], None, 4, 1e9).nbytes == 203_376_032


def test_a_ratio_is_of_the_time_on_the_wire() -> None:
    gbit = 1e9 / 8
    found = works.replayed(works.WORKS["resnet50"], 2.0, 4, gbit)
    assert found.compute_s == pytest.approx(2 * 1.5 * found.nbytes / (gbit * 1448 / 1514))
    assert works.replayed(works.WORKS["vgg16"], None, 4, gbit).nbytes == 4 * 138_357_544
    assert works.replayed(works.WORKS["char-gpt"], 2.0, 4, gbit) is None


def test_how_far_weights_are_off(tmp_path: Path) -> None:
    before, after = {"w": torch.zeros(4)}, {"w": torch.ones(4)}
    torch.save((before, after), tmp_path / "reference")
    torch.save((before, {"w": torch.tensor([1.0, 1.0, 1.0, 2.0])}), tmp_path / "mine")
    assert turn.distance(tmp_path / "mine", tmp_path / "reference") == 0.5
    assert turn.distance(tmp_path / "reference", tmp_path / "reference") == 0.0


@pytest.mark.parametrize(("name", "per_element"), [("sgd", 0), ("momentum", 4), ("adamw", 8)])
def test_state_is_counted_once_it_is_there(name: str, per_element: int) -> None:
    parameter = torch.nn.Parameter(torch.zeros(100))
    made, settings = works.OPTIMIZERS[name]
    optimizer = made([parameter], **settings)
    assert state_bytes(optimizer) == 0
    parameter.grad = torch.ones(100)
    optimizer.step()
    assert 100 * per_element <= state_bytes(optimizer) <= 100 * per_element + 8


def test_real_models_see_the_same_batches_in_every_turn() -> None:
    def first(rank: int) -> list[torch.Tensor]:
        made = works.make(works.WORKS["resnet20"], None, rank=rank, world_size=2, quick=True)
        weights = [p.detach().clone() for p in made.model.parameters()]
        return [*weights, next(made.batches)[0]]

    one, same, other = first(0), first(0), first(1)
    assert all(map(torch.equal, one, same))
    assert all(map(torch.equal, one[:-1], other[:-1]))
    assert not torch.equal(one[-1], other[-1])


def test_what_cannot_run_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session in front of ranks that are played here: they tell what real ones would."""
    kept: list[Results] = []
    jobs: list[turn.Job] = []

    def ranks(command: list[str], **_: object) -> SimpleNamespace:
        job = turn.Job.load(command[-1])
        jobs.append(job)
        if job.variant == "zero-1" and len(jobs) > 3:
            turn.Told(error="EngineError: no such thing").save(job.told(1))
            return SimpleNamespace(received=None, exit_code=1)
        told = turn.Told(
            cluster=Topology(hosts=2).cluster() if job.calibration_s else None,
            workload=WORKLOAD if job.what == turn.PREPARE else None,
            steps_s=(1.0, 2.0),
            digest="d",
        )
        for rank in range(2):
            told.save(job.told(rank))
        torch.save(({"w": torch.zeros(1)}, {"w": torch.ones(1)}), job.weights)
        return SimpleNamespace(received=None, exit_code=0)

    monkeypatch.setenv("SYNCOPATE_CACHE", "off")
    lab = SimpleNamespace(run=ranks)
    found = session.Session(
        lab, "s.py", tmp_path, Results(setting=setting()), kept.append,
        calibration_s=1.0, limit_s=9.0,
    )  # fmt: skip
    names = ["alone", "zero-1", "allreduce"]
    found.measure(still_to_do(found.results, ["resnet20"], names, 2))
    done = found.results
    assert len(done.cell("resnet20", "alone").turns) == 2
    assert done.cell("resnet20", "alone").off is None
    assert len(done.cell("resnet20", "allreduce").turns) == 2
    assert done.cell("resnet20", "allreduce").off == 0.0
    assert done.cell("resnet20", "allreduce").plan.exchange == "allreduce"
    assert done.cell("resnet20", "zero-1") == Cell(
        turns=done.cell("resnet20", "zero-1").turns, missing="EngineError: no such thing"
    )
    # Profile and calibration once, the reference once, and what failed is not tried twice.
    assert [(j.what, j.variant) for j in jobs][:3] == [
        ("prepare", ""), ("train", "alone"), ("train", "zero-1")
    ]  # fmt: skip
    assert [j.variant for j in jobs].count("ddp-25") == 1
    assert kept[-1] == done
    assert "zero-1 is not available: EngineError" in capsys.readouterr().out


def test_every_variant_is_told_apart() -> None:
    titles = [row.title for row in VARIANTS.values()]
    assert len(set(titles)) == len(titles)
    assert [row.exchange for row in VARIANTS.values() if row.exchange] == [
        "allreduce", "decoupled", "sharded", "rooted", "sharded", "sharded"
    ]  # fmt: skip

"""SSD-SGD's accuracy study without its trainings: rows, what is left to do, tables."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from reproduce import ssd_sgd
from rich.console import Console

import ssd_sgd_runs as runs
from syncopate.errors import ArtifactError

SETTING = runs.Setting(batch_size=16, epochs=15, iterations=22, lr=0.05)


@functools.cache
def workload(name: str) -> runs.Workload:
    """Return a workload; its data are loaded when a test asks for it, not when tests are found."""
    return runs.WORKLOADS[name]()


def run_of(row: str, seed: int, accuracy: float, workload: str = "digits") -> runs.Run:
    warm_up = runs.warm_up_of(runs.ROWS[row], SETTING) if runs.ROWS[row].k else 0
    return runs.Run(
        workload=workload,
        row=row,
        seed=seed,
        accuracy=accuracy,
        curve=(accuracy,),
        warm_up=warm_up,
        seconds=1.0,
    )


def study_of(*found: runs.Run, **fields: object) -> runs.Study:
    settings = {"digits": SETTING, "text": replace(SETTING, epochs=5)}
    whole = runs.Study(ranks=4, quick=False, settings=settings, runs=found)
    return replace(whole, **fields)


SMALL = study_of(
    run_of(runs.SSGD, 0, 0.970),
    run_of(runs.SSGD, 1, 0.980),
    run_of("glu-1", 0, 0.975),
    run_of("glu-1", 1, 0.985),
    run_of("glu-1-100", 0, 0.9),
    run_of("glu-5", 0, 0.96),
    run_of("sgd-5", 0, 0.95),
    run_of("glu-2", 1, 0.5, workload="text"),
)


def printed(study: runs.Study) -> str:
    out = io.StringIO()
    ssd_sgd.show(Console(file=out, width=150), study)
    return out.getvalue()


def cells(text: str, title: str, row: str) -> list[str]:
    """The cells of one row of one table; two blanks at least are between them."""
    lines = text[text.index(title) :].splitlines()
    line = next(line for line in lines if line.strip().startswith(row))
    return [cell.strip() for cell in line.strip().split("  ") if cell.strip()]


class TestRows:
    @pytest.mark.parametrize("row", [row for row in runs.ROWS.values() if row.k])
    def test_delays_are_as_algorithm_1_asks(self, row: runs.Row) -> None:
        warm_up = runs.warm_up_of(row, SETTING)
        assert (1 + warm_up) % row.k == 0
        assert row.warm_up / 5 <= warm_up < row.warm_up / 5 + row.k
        delay = runs.delay_of(row, SETTING)
        assert (delay.k, delay.wp, delay.local_update) == (row.k, warm_up, row.rule)
        assert delay.loc_lr / SETTING.lr * 0.4 == pytest.approx(
            {"glu": 1.6, "sgd": 0.1, "dc-asgd-a": 0.4}[row.rule]
        )

    @pytest.mark.parametrize("row", [runs.SSGD, runs.ASGD])
    def test_others_have_none(self, row: str) -> None:
        assert runs.delay_of(runs.ROWS[row], SETTING) is None

    @pytest.mark.parametrize("name", ["digits", "text"])
    def test_every_delay_begins_well_before_the_end(self, name: str) -> None:
        work = workload(name)
        for quick in (False, True):
            setting = runs.setting_of(name, work, 4, quick)
            for row in work.rows:
                if runs.ROWS[row].k and not (quick and runs.ROWS[row].k > setting.iterations):
                    left = setting.epochs * setting.iterations - 1
                    left -= runs.warm_up_of(runs.ROWS[row], setting)
                    assert left >= max(runs.ROWS[row].k, 0.5 * setting.iterations)

    def test_one_bucket_holds_the_model(self) -> None:
        model = workload("digits").build()
        plan = runs.one_bucket(model, 4)
        (bucket,) = plan.buckets
        assert bucket.nbytes == 4 * 269_434
        assert set(bucket.tensors) == {name for name, _ in model.named_parameters()}

    def test_the_models_can_be_tested(self) -> None:
        for work in (workload("digits"), workload("text")):
            model = work.build()
            assert 0 <= work.accuracy(model) < 0.3
            assert model.training


class TestWhatIsLeft:
    def test_seed_by_seed(self) -> None:
        names, works = ["digits", "text"], {name: workload(name) for name in ("digits", "text")}
        places = runs.asked(names, list(runs.ROWS), None, works)
        assert len(places) == 92
        assert [place.seed for place in places[:14]] == [0] * 13 + [1]
        assert {place.row for place in places if place.workload == "text"} < set(runs.ROWS)
        few = runs.asked(names, [runs.SSGD, "glu-1"], 1, works)
        assert [place[:2] for place in few] == [
            ("digits", "ssgd"),
            ("digits", "glu-1"),
            ("text", "ssgd"),
            ("text", "glu-1"),
        ]
        assert ssd_sgd.missing(SMALL, few) == few[2:]

    def test_goes_on_only_with_what_was_trained_alike(self, tmp_path: Path) -> None:
        path = tmp_path / "study.json"
        options = ssd_sgd.settled_options(["--train", str(path), "--workload", "digits"])
        works = {"digits": workload("digits")}
        begun = ssd_sgd.resumed(options, works)
        assert (begun.runs, begun.settings) == ((), {"digits": SETTING})
        begun = replace(begun, runs=SMALL.runs[:1])
        begun.save(path)
        assert ssd_sgd.resumed(options, works) == begun
        options.workload = ["text"]
        both = ssd_sgd.resumed(options, {"text": workload("text")})
        assert set(both.settings) == {"digits", "text"}
        replace(begun, settings={"digits": replace(SETTING, lr=0.1)}).save(path)
        with pytest.raises(ArtifactError, match=r"settings\.digits: trained otherwise"):
            ssd_sgd.resumed(options, works)
        options.ranks = 2
        with pytest.raises(ArtifactError, match="trained with ranks 4, not 2"):
            ssd_sgd.resumed(options, works)

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many ranks each training had that was asked for; none runs."""
        found: list[int] = []
        monkeypatch.setattr(ssd_sgd, "start_ranks", lambda ranks, _: found.append(ranks) or 0)
        return found

    @pytest.fixture
    def kept(self, tmp_path: Path) -> str:
        SMALL.save(path := tmp_path / "study.json")
        return str(path)

    def test_refused_before_a_rank_starts(
        self, kept: str, started: list[int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert ssd_sgd.main(["--train", kept, "--quick"]) != 0
        assert "quick" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            ssd_sgd.main(["--seeds", "0"])
        assert started == []

    def test_nothing_starts_where_nothing_is_left(
        self, kept: str, started: list[int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked_for = ["--train", kept, "--workload", "digits", "--rows", "ssgd", "glu-1"]
        assert ssd_sgd.main([*asked_for, "--seeds", "2"]) == 0
        assert started == []
        assert ssd_sgd.main([*asked_for, "--seeds", "3"]) == 0
        assert started == [4]
        assert "Table 2" in capsys.readouterr().out

    def test_a_failed_training_shows_no_table(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(ssd_sgd, "start_ranks", lambda *_: 3)
        assert ssd_sgd.main(["--train", str(tmp_path / "new.json")]) == 3
        assert "Table" not in capsys.readouterr().out


class TestTables:
    def test_the_paper_s_figures(self) -> None:
        table = printed(SMALL)
        assert cells(table, "Table 2: test", "ResNet-20 (32), paper")[1:3] == ["92.13", "92.20"]
        above = cells(table, "Table 2: points", "ResNet-20 (32), paper")
        assert above[1:] == ["+0.00", "+0.08", "+0.10", "+0.03", "+0.02", "-1.00", "-"]
        rules = cells(table, "Fig. 5", "DC-ASGD-a")
        assert rules[1:4] == ["73.37", "-0.38", "561.53"]

    def test_ours(self) -> None:
        table = printed(SMALL)
        found = cells(table, "Table 2: test", "ResNet-20, digits")
        assert found[1:] == ["97.50 ± 0.71", "98.00 ± 0.71", "-", "-", "-", "96.00", "-"]
        found = cells(table, "Table 2: points", "ResNet-20, digits")
        # Seed by seed: both of them are 0.5 above their own SSGD.
        assert found[1:] == ["+0.00 ± 0.00", "+0.50 ± 0.00", "-", "-", "-", "-1.00", "-"]
        assert cells(table, "Fig. 4", "1S-100") == [
            "1S-100",
            "21",
            "obviously lower",
            "90.00",
            "-7.00",
        ]
        assert cells(table, "Fig. 4", "1S-500")[1] == "101"
        assert cells(table, "Fig. 5", "SGD")[4:6] == ["95.00", "-1.00"]

    def test_says_how_much_smaller_and_what_does_not_count(self) -> None:
        assert "4 ranks, 16 samples each, 15 epochs of 22 iterations" in printed(SMALL)
        assert "no figure counts" not in printed(SMALL)
        assert "no figure counts" in printed(replace(SMALL, quick=True))
        assert "Nothing was trained" in printed(study_of(settings={}))

    def test_as_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "study.json"
        SMALL.save(path)
        assert ssd_sgd.main(["--json", "--results", str(path)]) == 0
        report = json.loads(capsys.readouterr().out)
        ours = report["ours"]["digits"]["glu-1"]
        assert ours["accuracy"] == {
            "mean": pytest.approx(98.0),
            "deviation": pytest.approx(0.70711, rel=1e-4),
            "seeds": 2,
        }
        assert ours["above_ssgd"]["mean"] == pytest.approx(0.5)
        assert ours["curve"] == [pytest.approx(98.0)]
        assert report["ours"]["text"]["glu-2"]["above_ssgd"] is None
        assert len(report["paper"]) == 4

"""The reproduction of MG-WFBP's GoogLeNet simulation keeps its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from reproduce import mg_wfbp

import mg_wfbp_inputs as inputs
from mg_wfbp_inputs import INPUTS, Outcome, Setting

SPEEDUPS = {
    2: (1.999, 1.439, 1.999, 1.999),
    4: (3.995, 2.523, 3.995, 3.995),
    8: (6.965, 4.750, 7.753, 7.757),
    16: (11.871, 9.220, 14.635, 14.650),
    32: (19.126, 18.137, 27.134, 28.173),
    64: (27.981, 35.836, 48.340, 53.564),
}
"""Nodes -> WFBP, SyncEASGD, MG-WFBP, optimal: computed once by a separate program."""


TWO_LAYERS = Setting(
    forward_s=1.0, backward_s=(1.0, 1.0), nbytes=(1, 1), startup_s=0.8, byte_time_s=0.5
)
"""Ready at 1 and 2 s, 1.3 s each or 1.8 s merged: merged where a start-up is over 1 s."""


@pytest.fixture(scope="module")
def setting(rows: list[mg_wfbp.Row]) -> Setting:
    return mg_wfbp.setting_of(mg_wfbp.googlenet(), rows[-1])


@pytest.fixture(scope="module")
def rows() -> list[mg_wfbp.Row]:
    return [mg_wfbp.simulate_row(mg_wfbp.googlenet(), nodes) for nodes in mg_wfbp.NODES]


def test_the_table_holds_the_whole_network() -> None:
    workload = mg_wfbp.googlenet()
    assert len(workload.tensors) == 64
    assert workload.nbytes == 4 * 13_379_136
    assert workload.backward_s == pytest.approx(0.205, abs=5e-4)


def test_speedups(rows: list[mg_wfbp.Row]) -> None:
    for row in rows:
        assert tuple(row.speedup[name] for name in mg_wfbp.POLICIES) == pytest.approx(
            SPEEDUPS[row.nodes], rel=0.005
        )


def test_ring_cost_of_table_ii(rows: list[mg_wfbp.Row]) -> None:
    for row in rows:
        p = row.nodes
        assert row.startup_s == pytest.approx(2 * (p - 1) * mg_wfbp.ALPHA_S)
        per_byte = (p - 1) / p * (2 * mg_wfbp.BETA_S_PER_BYTE + mg_wfbp.GAMMA_S_PER_BYTE)
        assert row.byte_time_s == pytest.approx(per_byte)


def test_the_figures_of_the_paper_at_64_nodes(rows: list[mg_wfbp.Row]) -> None:
    figures = {item.what: item for item in mg_wfbp.compare_with_paper(rows)}
    over_wfbp = figures["MG-WFBP over WFBP, 64 nodes"]
    over_single = figures["MG-WFBP over SyncEASGD, 64 nodes"]
    assert over_wfbp.ours == pytest.approx(1.728, rel=0.005)
    assert over_single.ours == pytest.approx(1.349, rel=0.005)
    assert all(abs(item.difference) < 0.035 for item in figures.values())
    at_64 = rows[-1].speedup
    assert at_64["optimal"] / at_64["mg-wfbp"] == pytest.approx(1.108, rel=0.005)


def test_an_outcome_is_what_the_planner_predicts(setting: Setting, rows: list[mg_wfbp.Row]) -> None:
    found, speedup = inputs.outcome(setting), rows[-1].speedup
    assert found.over_wfbp == pytest.approx(speedup["mg-wfbp"] / speedup["wfbp"])
    assert found.over_single == pytest.approx(speedup["mg-wfbp"] / speedup["single"])
    assert len(found.merged) == rows[-1].buckets["mg-wfbp"]
    assert found.iteration_s["wfbp"] / inputs.best_s(setting) == pytest.approx(
        speedup["optimal"] / speedup["wfbp"]
    )


def test_two_layers_by_hand() -> None:
    found = inputs.outcome(TWO_LAYERS)
    assert found.merged == (1, 2)
    assert found.iteration_s == pytest.approx({"wfbp": 4.6, "single": 4.8, "mg-wfbp": 4.6})
    assert found.over_wfbp == pytest.approx(1)
    assert found.over_single == pytest.approx(4.8 / 4.6)


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("start-up", None, 1.25),
        ("backward", 0.8, None),
        ("batch", 0.8, None),
        ("forward", None, None),
        ("bandwidth", None, None),
    ],
)
def test_where_two_layers_are_merged_otherwise(
    name: str, down: float | None, up: float | None
) -> None:
    for factor, grows in ((down, False), (up, True)):
        found = inputs.turning_point(TWO_LAYERS, INPUTS[name], lambda at: at.merged, up=grows)
        assert found == (None if factor is None else pytest.approx(factor))


def test_a_turn_tells_what_is_beyond() -> None:
    (merged,) = inputs.turns(TWO_LAYERS, "start-up", "merged")
    (order,) = inputs.turns(TWO_LAYERS, "start-up", "order")
    assert merged.change == pytest.approx(0.25)
    assert merged.beyond.merged == (2,)
    assert order.change == pytest.approx(0.25)
    assert order.beyond.order[-1] == "wfbp"


def over_wfbp(found: Outcome) -> float:
    return found.over_wfbp


def over_single(found: Outcome) -> float:
    return found.over_single


@pytest.mark.parametrize(
    ("name", "figure", "value", "factor"),
    [
        ("forward", over_single, 1.04, 1.4),  # (f + 3.8) / (f + 3.6)
        ("forward", over_single, 1.05, None),  # would be 0.4
        ("start-up", over_wfbp, 1.05, 1.2 / 0.95 / 0.8),  # (3 + 2 a) / (4 + a), a > 1
        ("bandwidth", over_wfbp, 1.05, None),  # never merged: WFBP itself
    ],
)
def test_what_a_figure_needs(
    name: str, figure: Callable[[Outcome], float], value: float, factor: float | None
) -> None:
    found = inputs.needed(TWO_LAYERS, INPUTS[name], figure, value)
    assert found == (None if factor is None else pytest.approx(factor))


def test_a_figure_that_is_jumped_over_is_not_reached(setting: Setting) -> None:
    at_edge = inputs.turns(setting, "start-up", "merged")[-1]
    assert at_edge.beyond.over_single < 1.25 < inputs.outcome(setting).over_single
    assert inputs.needed(setting, INPUTS["start-up"], over_single, 1.25) is None


def test_start_ups_a_little_longer_are_merged_otherwise(setting: Setting) -> None:
    down, up = inputs.turns(setting, "start-up", "merged")
    assert up.change == pytest.approx(0.0150, abs=1e-4)
    assert len(up.beyond.merged) == 2
    assert up.beyond.over_wfbp == pytest.approx(1.470, abs=1e-3)
    assert up.beyond.over_single == pytest.approx(1.139, abs=1e-3)
    assert down.change == pytest.approx(-0.094, abs=1e-3)
    edge = mg_wfbp.swept(setting, "start-up")[mg_wfbp.CHANGES.index(0.02)]
    assert len(edge.merged) == 2
    for name in INPUTS:
        for turn in inputs.turns(setting, name, "order"):
            assert turn.beyond.order == ("mg-wfbp", "wfbp", "single")
            assert abs(turn.change) > 0.4


def test_the_cause_gives_the_papers_figures(setting: Setting) -> None:
    found = inputs.cause(setting, 1.78, 1.35)
    seconds = inputs.outcome(setting).iteration_s
    assert found.wfbp_needed_s / seconds["mg-wfbp"] == pytest.approx(1.78)
    assert found.wfbp_s + found.startups * setting.startup_s == pytest.approx(found.wfbp_needed_s)
    assert found.startups == pytest.approx(3.75, abs=0.01)
    for name, change in found.alone.items():
        if change is not None:
            at = inputs.outcome(INPUTS[name](setting, 1 + change))
            assert at.over_wfbp == pytest.approx(1.78)
            assert at.over_single == found.over_single[name]
            assert abs(at.over_single - 1.35) > 0.005
    assert [name for name, change in found.alone.items() if change is None] == ["backward", "batch"]
    assert found.together is not None
    changed = setting
    for name, change in zip(inputs.FREE, found.together, strict=True):
        changed = INPUTS[name](changed, 1 + change)
    at = inputs.outcome(changed)
    assert (at.over_wfbp, at.over_single) == pytest.approx((1.78, 1.35))
    assert inputs.cause(TWO_LAYERS, 1.1, 1.1).together is None


def test_the_sentences_follow_the_figures(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(mg_wfbp.sentences(setting, mg_wfbp.recorded()))
    assert "-2.9%" in text
    assert "704 ms here, and 726 ms" in text
    assert "1.46x to 1.74x" in text
    monkeypatch.setattr(mg_wfbp, "PAPER", {"wfbp": 1.70, "single": 1.35})
    text = " ".join(mg_wfbp.sentences(setting, mg_wfbp.recorded()[:1]))
    assert "+1.6%" in text
    assert "693 ms would give 1.70x" in text
    assert "MG-WFBP is 1.74x over WFBP" in text


def test_the_log_that_is_kept_comes_to_what_was_recorded(setting: Setting) -> None:
    kept = {row.log: row for row in mg_wfbp.recorded()}
    assert len(kept) == 6
    found, told = asdict(inputs.logged("tmp8comm", setting)), asdict(kept["tmp8comm"])
    assert found.pop("log") == told.pop("log")
    assert found == pytest.approx(told, rel=1e-3)
    for row in kept.values():
        assert (row.over_wfbp > 1.7) == (row.buckets == 3) == (row.startup_change > 0)


TABLE = """I0214 23:25:18.9 37167 distributed.cpp:112] [0, 9408, {}, 298, 0]
I0214 23:25:18.9 37167 distributed.cpp:112] [1, 64, {}, 106]
I0214 23:25:18.9 37167 distributed.cpp:112] [2, 4096, {}, 224]
"""


def test_reads_a_log(tmp_path: Path) -> None:
    path = tmp_path / "two.log"
    path.write_text(TABLE.format(0, 0, 0) + "other text\n" + TABLE.format(1500.5, 1500.5, 2e3))
    found = mg_wfbp.read_log(path)
    assert [(each.numel, each.backward_s) for each in found.tensors] == [
        (4096, pytest.approx(2e-3)),
        (9472, pytest.approx(1500.5e-6)),
    ]
    assert found.forward_s == pytest.approx(found.backward_s / 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("x\n", "no lines that end in"),
        (TABLE.format(0, 0, 0), "no lines"),
    ],
)
def test_a_log_that_is_none_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "none.log"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        mg_wfbp.main(["--log", str(path)])
    assert caught.value.code == 2
    assert f"{path}: {message}" in capsys.readouterr().err


def test_prints_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mg_wfbp.main([])
    printed = capsys.readouterr().out
    assert "Beside the paper" in printed
    assert "near an edge" in printed
    assert "tmp8comm" not in printed
    mg_wfbp.main(["--sensitivity"])
    assert "tmp8ocomm" in capsys.readouterr().out
    mg_wfbp.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert [row["nodes"] for row in report["rows"]] == list(mg_wfbp.NODES)
    assert len(report["paper"]) == 5
    assert "sensitivity" not in report
    log = tmp_path / "own.log"
    log.write_text(TABLE.format(10, 10, 20))
    mg_wfbp.main(["--json", "--log", str(log)])
    found = json.loads(capsys.readouterr().out)["sensitivity"]
    assert [row["log"] for row in found["logs"]] == ["own"]
    assert {name: len(row) for name, row in found["changes"].items()} == dict.fromkeys(INPUTS, 9)
    assert {turn["what"] for turn in found["turns"]} == {"merged", "order"}

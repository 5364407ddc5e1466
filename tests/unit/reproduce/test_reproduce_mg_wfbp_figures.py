"""MG-WFBP's rows: the log beside the line, Figs. 6 to 9, and the authors' own reading."""

from __future__ import annotations

from pathlib import Path

import pytest

import mg_wfbp_readings
from figures import mg_wfbp as mg
from figures.rows import Figure

ROWS = {(row.where, row.what): row for row in mg.figures()}


def row(where: str, start: str) -> Figure:
    (found,) = (one for (at, what), one in ROWS.items() if at == where and what.startswith(start))
    return found


def test_every_row_is_another() -> None:
    assert len(ROWS) == len(list(mg.figures())) == 60


def test_the_formulas_of_table_2_are_the_prices_of_the_schedules() -> None:
    rows = [one for (where, _), one in ROWS.items() if where == "Table II"]
    assert [one.difference(one.simulated) for one in rows] == pytest.approx([0.0] * 4, abs=1e-12)


def test_the_line_by_hand() -> None:
    a, b = mg.line(8)
    assert a == pytest.approx(633.64e-6)
    assert b == pytest.approx(7 / 8 * (2 * 1.2 / (9 * 2**30 / 8) + 2.5e-9))


def test_the_log_beside_the_line() -> None:
    eight = row("Fig. 5b", "all-reduce of 1 MiB, 8 nodes")
    assert eight.paper == pytest.approx(3.93, abs=0.005)
    assert "-21% to +23%" in eight.why
    assert "4.0 to 9.3 times" in eight.why
    assert "+66%" in row("Fig. 5b", "all-reduce of 1 MiB, 4 nodes").why


def test_a_line_is_fitted_to_the_long_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [mg.Sample(4, n, 1e-4 + 2e-9 * n) for n in (mg.LONG_BYTES, 10**5, 10**6)]
    short, other = mg.Sample(4, 64, 1.0), mg.Sample(8, 10**6, 1.0)
    monkeypatch.setattr(mg, "log", lambda: [short, other, *exact])
    assert mg.fitted(4) == pytest.approx((1e-4, 2e-9))


def test_start_ups_of_the_fitted_lines() -> None:
    assert mg.fitted(8)[0] * 1e6 == pytest.approx(846, abs=1)
    assert mg.fitted(4)[0] * 1e6 == pytest.approx(254, abs=1)


@pytest.mark.parametrize(("place", "network"), [("Fig. 6", "GoogLeNet"), ("Fig. 7", "ResNet-50")])
def test_sync_easgd_is_as_measured_and_wfbp_is_not(place: str, network: str) -> None:
    for nodes in (2, 4, 8):
        one = row(place, f"{network}, SyncEASGD, {nodes} machines")
        assert abs(one.difference(one.simulated) or 0) < 0.05
        # By hand: it hides nothing.
        alone_s = mg.alone_s(network)
        a, b = mg.line(nodes)
        whole_s = alone_s + a + b * sum(nbytes for nbytes, _ in mg.layers(network))
        assert one.simulated == pytest.approx(nodes * alone_s / whole_s)
    wfbp = row(place, f"{network}, WFBP, 8 machines")
    assert (wfbp.difference(wfbp.simulated) or 0) > 0.25
    assert wfbp.why


def test_gains_on_emulated_hosts() -> None:
    four = row("Section V-B", "ResNet-50 replayed, MG-WFBP over WFBP, 4")
    assert (four.simulated, four.measured) == pytest.approx((1.498, 1.218), abs=1e-3)
    best = row("Section V-B", "ResNet-50 replayed, the optimum over MG-WFBP, 8")
    # Theorem 1 says that there is nothing to gain.
    assert best.measured == pytest.approx(0.292295 / 0.259701)
    assert best.why.startswith("in 24 and 1 buckets")


def test_what_fig_8_draws() -> None:
    one = row("Fig. 8", "ResNet-50, WFBP")
    assert one.paper == pytest.approx(1e3 * (32 / (465.6 / 8) - 32 / 76.85))
    sync = row("Fig. 8", "GoogLeNet, SyncEASGD")
    assert (sync.paper, sync.simulated) == pytest.approx((184, 211), abs=0.6)


def test_fig_9() -> None:
    printed = row("Fig. 9", "GoogLeNet, MG-WFBP over WFBP, 64 nodes, iteration")
    assert printed.simulated == pytest.approx(1.615, abs=0.002)
    resnet = row("Fig. 9", "ResNet-50, MG-WFBP over WFBP")
    assert resnet.simulated == pytest.approx(1.597, abs=0.002)
    found = mg.fitted_iteration()
    assert found is not None
    seconds, over_single = found
    assert seconds == pytest.approx(0.741, abs=0.005)
    at = mg.setting("ResNet-50", 64, seconds)
    assert mg.inputs.outcome(at).over_wfbp == pytest.approx(1.75, abs=1e-6)
    assert mg.inputs.outcome(at).over_single == pytest.approx(over_single)


def test_resnet50_is_whole() -> None:
    assert sum(nbytes for nbytes, _ in mg.layers("ResNet-50")) == 4 * 25_557_032
    assert mg.compute_s(mg.setting("ResNet-50", 8, 0.5)) == pytest.approx(0.5)


TABLE = """I0219 a.cpp:1] [0, 1000, 400.0, 20, 5]
I0219 a.cpp:1] [1, 10, 400.0, 0, 0]
I0219 a.cpp:1] [2, 2000, 0.4, 9, 0]
I0219 a.cpp:1] [3, 3000, 100.5, 7, 0]
"""


def test_every_table_of_a_log_counts(tmp_path: Path) -> None:
    path = tmp_path / "twice.log"
    path.write_text(TABLE + "other text\n" + TABLE)
    found = mg_wfbp_readings.read(path)
    # Without a reduce of its own, or a whole microsecond of backward, a line does not count.
    assert (found.log, found.layers) == ("twice", 4)
    assert found.backward_ms == pytest.approx(2 * 0.5005)


def test_a_ring_by_hand() -> None:
    setting = mg_wfbp_readings.ring_setting([(8, 1.0), (4, 2.0)], 2)
    assert setting.forward_s == 1.5
    assert setting.startup_s == pytest.approx(2 * 45.26e-6)
    assert mg_wfbp_readings.ring_setting([(8, 1.0)], 2, 3.0).forward_s == 3.0


def test_the_readings_that_are_kept() -> None:
    kept = {one.log: one for one in mg_wfbp_readings.readings()}
    assert len(kept) == 6
    best = kept["tmp8ocomm"]
    assert (best.layers, best.over_wfbp, best.over_single) == (130, 1.78, 1.3675)
    others = sorted(one.over_wfbp for one in kept.values() if one is not best)
    assert (others[0], others[-1]) == (1.4819, 1.8407)


@pytest.mark.parametrize("text", [None, "nothing\n"])
def test_a_log_that_is_none(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.log"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit):
        mg_wfbp_readings.main([str(path)])
    assert f"{path}: " in capsys.readouterr().err


def test_prints_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.log"
    path.write_text(TABLE)
    mg_wfbp_readings.main([str(path)])
    header, line = capsys.readouterr().out.splitlines()
    assert header == "log,layers,backward_ms,buckets,over_wfbp,over_single"
    assert line.startswith("one,2,0.500,1,")

"""SSD-SGD's rows: its own model, what was measured, and training that loses its way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import ssd_sgd as script
import ssd_sgd_runs as runs
import ssd_sgd_search as search
from figures import ssd_sgd as ssd
from formulas.ssd_sgd import ssgd_iteration_s

SETTING = runs.Setting(batch_size=16, epochs=4, iterations=10, lr=0.05)


def run(row: str, seed: int, *curve: float, workload: str = "digits") -> runs.Run:
    return runs.Run(
        workload=workload,
        row=row,
        seed=seed,
        accuracy=curve[-1],
        curve=curve,
        warm_up=19,
        seconds=1.0,
    )


def study(*found: runs.Run, **settings: runs.Setting) -> runs.Study:
    whole = {"digits": SETTING} | {name.replace("_", " "): one for name, one in settings.items()}
    return runs.Study(ranks=4, quick=False, settings=whole, runs=found)


class TestSpeeds:
    def test_the_given_speed_is_met(self) -> None:
        of = ssd.times(ssd.RESNET50, 32, 4)
        # Eq. 2 has the last layer's backward, which the derivation of T_c leaves out.
        assert ssgd_iteration_s(of) == pytest.approx(ssd.ssgd_s() + of.backward_s[-1])
        assert ssd.ssgd_s() == pytest.approx(0.2803, abs=1e-4)
        assert sum(of.backward_s) + of.forward_s == pytest.approx(16 * 32 / 3657.22)
        assert sum(of.push_s) == pytest.approx(0.1168, abs=1e-4)

    def test_half_the_servers_take_twice_as_long(self) -> None:
        whole, half = (ssd.times(ssd.ALEXNET, 64, servers) for servers in (4, 2))
        assert half.push_s == pytest.approx([2 * seconds for seconds in whole.push_s])
        assert half.backward_s == whole.backward_s

    def test_networks_are_as_large_as_the_paper_says(self) -> None:
        for network, megabytes in ((ssd.ALEXNET, 203.4), (ssd.VGG11, 532.1)):
            nbytes = sum(nbytes for nbytes, _ in ssd.layers(network))
            assert nbytes / 1e6 == pytest.approx(megabytes, rel=0.002)
        assert ssd.compute_s(ssd.VGG11, 32) == pytest.approx(0.14 * 7.6165 / 4.1, rel=1e-3)

    def test_fig_6(self) -> None:
        found = {(one.where, one.what): one for one in ssd.figure_6()}
        headline = found["Fig. 6", "batch 64, 1 server, k = 5: gain over SSGD"]
        assert (headline.paper, headline.points) == (pytest.approx(110), True)
        assert headline.simulated == pytest.approx(83.2, abs=0.1)
        assert headline.measured == pytest.approx(50, abs=0.5)
        most = found["Fig. 6", "batch 32, most over all k and servers: gain over SSGD"]
        assert most.simulated == pytest.approx(100.2, abs=0.5)
        assert "with 4 servers, k = 5, measured with 3 servers, k = 5" in most.why

    def test_measured_is_what_the_benchmark_s_page_says(self) -> None:
        # docs/ssd_sgd.md: 4 servers, batch 32: +51%; AlexNet at 64: 1.33x.
        assert ssd.measured_gain(ssd.RESNET50, 32, 4, "ssd-5") == pytest.approx(0.51, abs=0.005)
        assert ssd.measured_gain(ssd.ALEXNET, 64, 4, "ssd-5") == pytest.approx(0.33, abs=0.005)

    def test_the_table_of_gains(self) -> None:
        table = ssd.speeds()
        assert len(table.lines) == 8
        assert table.lines[4][:3] == ("64", "1", "+10% (+33%)")


class TestAccuracies:
    def test_training_that_loses_its_way(self) -> None:
        found = study(
            run("sgd-5", 0, 0.6, 0.9, 0.29, 0.8),  # the delay begins with the third epoch
            run("sgd-5", 1, 0.2, 0.9, 0.31, 0.8),
            run("sgd-5", 2, 0.1, 0.9, 0.8, 0.1),
        )
        assert ssd.lost(found, "digits", "sgd-5") == (2, 3)

    def test_so_does_the_local_rule_sgd_in_all_seeds(self) -> None:
        committed = script.shown_study(None)
        assert ssd.lost(committed, "digits", "sgd-5") == (5, 5)
        assert ssd.lost(committed, "text", "sgd-5") == (3, 3)
        assert ssd.lost(committed, "digits", "glu-5") == (0, 5)
        (row,) = (
            one
            for one in ssd.figure_5(committed, None)
            if one.what == "SGD as the local rule, k = 5: accuracy above GLU"
        )
        assert "in 5 of 5 seeds" in row.why
        assert row.measured == pytest.approx(-15.3, abs=0.05)

    def test_only_digits_stand_beside_resnet20(self) -> None:
        rows = list(ssd.table_2(script.shown_study(None)))
        assert len(rows) == 15
        assert [one.measured is not None for one in rows] == [True] * 5 + [False] * 10
        assert rows[4].paper == pytest.approx(91.129 - 92.126)

    def test_each_rule_has_its_best_rate(self) -> None:
        half, quarter = search.at(2), search.at(4)
        found = study(
            run("sgd-5", 0, 0.5, workload=search.at(1)),
            run("sgd-5", 0, 0.9, workload=quarter),
            run("sgd-5", 1, 0.8, workload=quarter),
            run("glu-5", 0, 0.95, workload=search.at(1)),
            run("glu-5", 0, 0.97, workload=half),
        )
        assert ssd.best_divisor(found, "sgd-5") == 4
        # A single seed at another rate counts for less than two.
        lucky = replace(found, runs=(*found.runs, run("sgd-5", 0, 0.99, workload=half)))
        assert ssd.best_divisor(lucky, "sgd-5") == 4
        committed = script.shown_study(None)
        # DC-ASGD-a has no run, and no row.
        (row,) = (one for one in ssd.figure_5(committed, found) if "searched" in one.what)
        assert row.measured == pytest.approx(85 - 97)
        assert "best at lr / 4: 85.0%, GLU at lr / 2: 97.0%; 2 seeds" in row.why
        table = ssd.rates(found)
        assert table.lines[1][:3] == ("GLU", "95.0 (one seed)", "97.0 (one seed)")
        assert table.lines[2][3] == "85.0 (80.0 to 90.0)"
        assert table.lines[0][1:] == ("-", "-", "-")

"""The measurement of LP's Table 2 goes on where it stopped, and under no other setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import bsp_sgd_lab as lab
from bsp_sgd_table import ALONE, PLACES
from syncopate.artifacts.cluster import Cluster
from syncopate.errors import ArtifactError

CLUSTER = Cluster.flat(4, latency_s=1e-4, bandwidth_bytes_per_s=1.2e8)


def begun(*words: str) -> lab.Lab:
    return lab.begun(lab.settled_options(words), CLUSTER)


def test_bytes_shrink_with_the_seconds_and_the_link() -> None:
    found = begun("--scale", "0.5")
    assert found.bytes_scale == pytest.approx(0.5 * 0.125 * 1448 / 1514, rel=1e-3)
    workload = lab.workload_of(found, "AlexNet")
    assert workload.compute_s == pytest.approx(0.5 * 0.93167, rel=1e-4)
    assert workload.nbytes == pytest.approx(256e6 * found.bytes_scale, rel=1e-5)
    assert begun("--rate", "2gbit").bytes_scale == pytest.approx(2 * found.bytes_scale)


def test_every_cell_is_predicted_once() -> None:
    found = lab.planned(begun(), "GoogLeNet")
    assert [(cell.collective, cell.number) for cell in found.cells] == [ALONE, *PLACES]
    alone, *cells = found.cells
    assert alone.predicted_s == pytest.approx(0.5 * 0.26367, rel=1e-4)
    assert min(cell.predicted_s for cell in cells) > alone.predicted_s
    assert lab.planned(found, "GoogLeNet") is found
    assert len(lab.planned(found, "AlexNet").cells) == 20


def test_rounds_are_counted_by_network_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    options = lab.settled_options(["--json", str(path)])
    assert lab.resumed(options) is None
    found = lab.planned(lab.planned(begun(), "GoogLeNet"), "AlexNet")
    for seconds in (1.0, 2.0):
        found = lab.with_round(found, "AlexNet", dict.fromkeys((ALONE, *PLACES), seconds))
    assert lab.rounds_of(found, "AlexNet") == 2
    assert lab.rounds_of(found, "GoogLeNet") == 0
    assert {cell.samples_s for cell in found.cells if cell.network == "AlexNet"} == {(1.0, 2.0)}
    # A round that was cut short does not count.
    last = found.cells[-1]
    cut = replace(found, cells=(*found.cells[:-1], replace(last, samples_s=(1.0,))))
    assert lab.rounds_of(cut, "AlexNet") == 1
    found.save(path)
    assert lab.resumed(options) == found


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--scale", "0.25"], "scale 0.5, not 0.25; give --scale 0.5 or another file"),
        (["--hosts", "8"], "hosts 4, not 8"),
        (["--rate", "2gbit"], "rate '1gbit'"),
        (["--iterations", "10"], "iterations 5"),
        (["--quick"], "scale 0.5"),
    ],
)
def test_rounds_of_another_setting_are_not_mixed_in(
    tmp_path: Path, words: list[str], what: str
) -> None:
    path = begun().save(tmp_path / "lab.json")
    with pytest.raises(ArtifactError, match=what):
        lab.resumed(lab.settled_options(["--json", str(path), *words]))


@pytest.mark.parametrize(
    "words", [["--hosts", "1"], ["--rounds", "0"], ["--scale", "0"], ["--networks", "VGG"]]
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        lab.settled_options(words)
    assert words[0] in capsys.readouterr().err

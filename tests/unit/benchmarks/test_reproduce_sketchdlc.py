"""SketchDLC's experiment without its jobs: lengths, the paper's figures, tables."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console

import sketchdlc
import sketchdlc_paper as said
import sketchdlc_runs as runs
import sketchdlc_worker as work
from syncopate.analysis.serving import Message
from syncopate.errors import ArtifactError
from syncopate.protocol.codec import encode
from syncopate.protocol.messages import Push
from syncopate.zoo import ResNet50

NETWORKS = (work.LENET5, work.RESNET50)


class TestLengths:
    @pytest.mark.parametrize("network", NETWORKS)
    def test_the_formula_gives_tables_6_and_7_message_by_message(self, network: str) -> None:
        printed, formula = said.paper(network).sizes, said.sizes_by_formula(network)
        assert len(printed) == {work.LENET5: 8, work.RESNET50: 22}[network]
        assert {key: formula[key] for key in printed} == printed

    @pytest.mark.parametrize("network", NETWORKS)
    def test_so_do_the_sums_of_table_5_once_its_headings_are_put_right(self, network: str) -> None:
        text, formula = said.paper(network).text, said.sizes_by_formula(network)
        assert len(formula) == {work.LENET5: 8, work.RESNET50: 157}[network]
        for heading, operation in said.TABLE_5.items():
            total = sum(sizes[operation] for sizes in formula) / 1e6
            # Of ResNet-50 the last digit is one more than the lengths add up to.
            digit = 0.01 if total > 1 else 0.00001
            assert abs(text[f"Table 5 {heading}"] - total) < 1.5 * digit

    def test_resnet50_has_the_convolutions_of_the_zoo(self) -> None:
        theirs = Counter(p.numel() for p in ResNet50().parameters() if p.dim() > 1)
        ours = Counter(
            one.numel for one in work.resnet50_parameters() if one.name.endswith("_weight")
        )
        assert ours == theirs

    def test_lenet5_takes_28_x_28_pixels(self) -> None:
        assert work.LeNet()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_resnet50_is_replayed_as_long_as_the_papers_phases() -> None:
    workload = work.resnet50_workload()
    points = said.paper(work.RESNET50).points
    assert workload.forward_s == pytest.approx(points[runs.Place("phase 1", "w0")].mean, rel=1e-3)
    assert workload.backward_s == pytest.approx(points[runs.Place("phase 2", "w0")].mean, rel=1e-3)
    # The classifier's gradients are ready first, and its key is the last.
    assert [tensor.name for tensor in workload.tensors[:2]] == ["fc1_bias", "fc1_weight"]
    assert [tensor.numel for tensor in reversed(workload.tensors)] == [
        one.numel for one in work.resnet50_parameters()
    ]


class TestFigures:
    @pytest.mark.parametrize(
        ("network", "drawn", "points", "computation_ms", "communication_ms"),
        [(work.LENET5, 0.1197, 0.118, 4.69, 8.81), (work.RESNET50, 0.657, 0.658, 676.5, 488.4)],
    )
    def test_phases_and_overlap(
        self,
        network: str,
        drawn: float,
        points: float,
        computation_ms: float,
        communication_ms: float,
    ) -> None:
        paper = said.paper(network)
        overlap = paper.normals[runs.Place("overlap")].mean
        assert overlap == pytest.approx(drawn, abs=5e-5)
        assert overlap == pytest.approx(paper.text["overlap"], abs=3e-4)
        # Fig. 9 by the analysis of our own traces; its points lie as far apart as 35 us.
        found = {place.quantity: one.mean for place, one in paper.points.items()}
        assert found["overlap"] == pytest.approx(points, abs=5e-4)
        assert found["computation"] * 1e3 == pytest.approx(computation_ms, abs=0.1)
        assert found["phase 3"] * 1e3 == pytest.approx(communication_ms, abs=0.1)

    def test_overheads_of_lenet5_are_the_texts(self) -> None:
        paper = said.paper(work.LENET5)

        def mean_us(quantity: str) -> float:
            means = [one.mean for place, one in paper.normals.items() if place[0] == quantity]
            return 1e6 * sum(means) / len(means)

        assert mean_us("synchronization") == pytest.approx(1068.38, abs=0.5)
        assert mean_us("update") == pytest.approx(564.49, abs=10)
        assert mean_us("search") == pytest.approx(1007.47, rel=0.07)  # of worker 1 alone

    @pytest.mark.parametrize("network", NETWORKS)
    def test_fig_16_draws_phase_1(self, network: str) -> None:
        paper = said.paper(network)
        drawn = [paper.normals[runs.Place("computation", node)].mean for node in ("w0", "w1")]
        phase = paper.points[runs.Place("phase 1", "w0")].mean
        assert sum(drawn) / 2 == pytest.approx(phase, rel=0.06)
        assert sum(drawn) / 2 < 0.75 * paper.text["computation"]

    @pytest.mark.parametrize("network", NETWORKS)
    def test_bars_are_in_order(self, network: str) -> None:
        bars = said.paper(network).bars
        for bar in bars.values():
            known = [value for value in bar if value is not None]
            assert known == sorted(known)
        assert len(bars) == 4 * len(said.paper(network).sizes)


def message(node: str, iteration: int, *, push: bool, sends: bool, at_s: float) -> Message:
    return Message(node, push, sends, 0, iteration, "s0" if node[0] == "w" else "w0", at_s, 8)


def trace(iterations: int) -> list[Message]:
    """Return what worker 0 and its server noted of a training of one key, 1 s an iteration."""
    found = []
    for iteration in range(-1, iterations):
        for number, (push, sends) in enumerate(
            ((True, True), (True, False), (False, True), (False, False))
        ):
            at_s = iteration + number / 10
            found.append(message("w0", iteration, push=push, sends=sends, at_s=at_s))
            found.append(message("s0", iteration, push=push, sends=not sends, at_s=at_s + 0.01))
    return found


def study(quick: bool = False) -> runs.Study:
    learned = work.Learned(first_loss=2.0, last_loss=0.5)
    kept = runs.kept(trace(5), (0,), learned)
    return runs.Study(quick=quick).joined(work.LENET5, kept)


class TestStudy:
    def test_the_first_iteration_does_not_count(self) -> None:
        kept = study().networks[work.LENET5]
        assert kept.iterations == 4
        assert kept.messages == dict.fromkeys(sorted(runs.OPERATIONS), 4)
        found = kept.found()
        assert found[runs.Place("phase 1", "w0")].number == 4
        assert found[runs.Place("phase 1", "w0")].mean == pytest.approx(0.7)
        assert found[runs.Place("phase 3", "w0")].mean == pytest.approx(0.3)
        assert found[runs.Place("update", "", 0)].mean == pytest.approx(0.1)
        assert found[runs.Place("search", "w0", 0)].mean == pytest.approx(0.1)

    def test_is_refused_where_it_was_made_otherwise(self, tmp_path: Path) -> None:
        path = tmp_path / "study.json"
        study().save(path)
        assert runs.resumed(path, False, {work.LENET5: 4}).networks.keys() == {work.LENET5}
        with pytest.raises(ArtifactError, match="4 iterations, not 5; give another folder"):
            runs.resumed(path, False, {work.LENET5: 5})
        with pytest.raises(ArtifactError, match="give another folder"):
            runs.resumed(path, True, {work.LENET5: 4})

    def test_is_not_run_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        study().save(tmp_path / "study.json")
        asked = []

        def run_job(network: str, iterations: int, *_: object) -> runs.Trained:
            asked.append((network, iterations))
            return study().networks[work.LENET5]

        monkeypatch.setattr(sketchdlc, "run_job", run_job)
        wanted = {work.LENET5: 4, work.RESNET50: 7}
        found = sketchdlc.trained(tmp_path, wanted, False)
        assert asked == [(work.RESNET50, 7)]
        assert runs.Study.load(tmp_path / "study.json") == found


class TestTables:
    def printed(self, shown: runs.Study) -> str:
        file = io.StringIO()
        sketchdlc.show(Console(file=file, width=150), shown)
        return file.getvalue()

    def test_of_a_small_study(self) -> None:
        text = self.printed(study())
        assert "Table 6: message lengths of LeNet-5" in text
        assert "Table 7" not in text
        assert "LeNet-5: 4 iterations; loss 2.000 at first, 0.500 at last." in text
        assert "no figure counts" not in text
        assert "no figure counts" in self.printed(study(quick=True))

    def test_of_our_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert sketchdlc.main([]) == 0
        text = capsys.readouterr().out
        for title in (
            "Table 5",
            "Table 6",
            "Table 7",
            "Figs. 9",
            "Figs. 11",
            "Figs. 13",
            "Figs. 17",
        ):
            assert title in text
        assert sketchdlc.main(["--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert not report["quick"]
        for network, iterations in runs.ITERATIONS.items():
            ours = report[network]["ours"]
            parameters = len(work.PARAMETERS[network]())
            assert ours["iterations"] == iterations
            expected = iterations * parameters * runs.WORKERS
            assert ours["messages"] == dict.fromkeys(sorted(runs.OPERATIONS), expected)
            assert report[network]["formula"] == report[network]["paper"]["lengths"]

    def test_our_own_lengths_are_tensors_and_headers(self) -> None:
        for network, iterations in runs.ITERATIONS.items():
            parameters = work.PARAMETERS[network]()
            for sizes in runs.Study.load(sketchdlc.CAPTURED).networks[network].sizes:
                nbytes = 4 * parameters[sizes.key].numel
                first, last = runs.FIRST + 1, runs.FIRST + iterations
                headers = (len(encode(Push(sizes.key, number))) for number in (first, last))
                assert sizes.push_sent == tuple(nbytes + header for header in headers)

    def test_what_is_not_there_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert sketchdlc.main(["--results", str(tmp_path / "none.json")]) != 0
        assert "cannot read this sketchdlc study" in capsys.readouterr().err
        path = tmp_path / "study.json"
        path.write_bytes(study().to_json().replace(b'"lenet5"', b'"lenet6"'))
        assert sketchdlc.main(["--results", str(path)]) != 0
        assert "unknown network 'lenet6'; known: lenet5, resnet50" in capsys.readouterr().err
        assert sketchdlc.main(["--train", str(path / "below")]) != 0
        assert "cannot be made: Not a directory" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            sketchdlc.main(["--iterations", "0"])

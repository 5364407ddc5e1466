"""``syncopate profile --on``: a workload for a device that is not here."""

from __future__ import annotations

import json

import pytest

from syncopate.artifacts.workload import Workload

REFUSED = "left out: with --on nothing runs here"


def test_a_device_by_name_gives_a_workload_that_says_what_it_assumes(run, tmp_path) -> None:
    code, out, err = run("profile syncopate.zoo:lenet5 --on v100 --batch 32 -o w.json")
    assert (code, err) == (0, "wrote w.json\n")
    said = out.splitlines()[-1]
    assert said.startswith("times are an assumption: the roofline of NVIDIA V100 SXM2")
    workload = Workload.load("w.json")
    assert said == f"times are {workload.metadata['times']}"
    assert workload.metadata["batch"] == "32"
    assert "operations: forward" in out


def test_a_device_by_its_peaks(run) -> None:
    code, out, err = run(
        "profile syncopate.zoo:lenet5 --device-peak 2TFLOPS --device-bandwidth 100GB/s "
        "--efficiency 0.5 --json -o w.json"
    )
    assert code == 0
    assert Workload.from_json(out) == Workload.load("w.json")
    said = json.loads(out)["metadata"]["times"]
    assert "a device given by hand (2 TFLOP/s in float32, 100 GB/s" in said
    assert f"times are {said}" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--on v1", "unknown device 'v1'; known: h200, h100"),
        ("--batch 3", "--batch is 3; it must be left out without --on or --device-peak"),
        ("--on v100 --device-peak 3T", "--device-peak is '3T'; it must be left out beside --on"),
        ("--on v100 --device-bandwidth 3T", "--device-bandwidth is '3T'; it must be left out"),
        ("--device-peak 3T", "--device-bandwidth is not given; it must be given with"),
        ("--device-peak fast --device-bandwidth 3T", "--device-peak is 'fast'; it must be a"),
        ("--on v100 --local 2", f"--local is 2; it must be {REFUSED}"),
        ("--on v100 --iterations 2", f"--iterations is 2; it must be {REFUSED}"),
        ("--on v100 --compute int8", "unknown type to compute in 'int8'; known: tf32"),
        ("--on v100 --efficiency 2", "efficiency is 2.0; it must be a number in (0, 1]"),
        ("--on v100 --optimizer No", "unknown optimizer 'No'"),
    ],
)
def test_refusals(run, options, said) -> None:
    code, out, err = run(f"profile syncopate.zoo:lenet5 {options}")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_model_that_raises_is_told_by_its_line(run, tmp_path) -> None:
    (tmp_path / "bad.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n    return nn.Linear(2, 2), torch.ones(1, 3)\n"
        "def reads():\n    class Odd(nn.Linear):\n        def forward(self, x):\n"
        "            return x if x.sum() > 0 else super().forward(x)\n"
        "    return Odd(2, 2), torch.ones(1, 2)\n"
    )
    code, _, err = run("profile bad.py:build --on v100")
    assert (code, err.count("\n")) == (1, 1)
    assert "estimating bad.py:build raised RuntimeError" in err
    code, _, err = run("profile bad.py:reads --on v100")
    assert (code, err.count("\n")) == (1, 1)
    assert "reads cannot be estimated: RuntimeError: Tensor.item()" in err
    assert "bad.py:8" in err

"""Explain names a slow rank and a slow link first, from what a training in a lab captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

import syncopate
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.cli.app import app
from syncopate.lab import Topology
from syncopate.planning import make_plan
from syncopate.units import MIB
from syncopate.zoo import replay
from tests.lab.hosts import run_on_hosts

FOUR = Topology(hosts=4, rate_bytes_per_s=400e6 / 8)
"""At 400 Mbit/s the links are what a message waits for, also where others use this machine."""

STEPS = 7
SLOW = 1
LONGER_S = 0.72
"""By how much: also where others use this machine, transfers cost less."""


def workload(backward_s: float) -> Workload:
    """Return what a rank trains: half a MiB in each of four layers."""
    tensors = tuple(
        GradientTensor(name=f"layer{layer}", numel=MIB // 8, backward_s=backward_s / 4)
        for layer in reversed(range(4))
    )
    return Workload(
        model="four", tensors=tensors, forward_s=0.02, backward_s=backward_s, update_s=0.005
    )


def trained(folder: str, slow_s: float) -> None:
    """Be a rank that trains and is captured; the backward of one of them takes ``slow_s``."""
    dist.init_process_group("gloo")
    bare = replay(workload(slow_s if dist.get_rank() == SLOW else 0.08))
    plan = make_plan(workload(0.08), FOUR.cluster(), "auto", exchange="allreduce", channels=1)
    model, optimizer = syncopate.distribute(bare, bare.optimizer(), plan=plan)

    def step() -> None:
        optimizer.zero_grad()
        model(None).backward()
        optimizer.step()

    step()
    with syncopate.trace(folder):
        for _ in range(STEPS):
            step()
    model.syncopate.detach()
    dist.destroy_process_group()


def causes(topology: Topology, folder: Path, *, slow_s: float = 0.08) -> list[dict[str, Any]]:
    """Return what explain says of a training."""
    run_on_hosts(topology, trained, str(folder), slow_s)
    said = CliRunner().invoke(app, ["explain", str(folder), "--json"], catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(said.stdout)["causes"]
    return found


def test_a_slow_rank_is_named_first(tmp_path: Path) -> None:
    first, *_ = causes(FOUR, tmp_path / "slow", slow_s=0.08 + LONGER_S)
    assert (first["kind"], first["ranks"]) == ("compute", [SLOW]), first
    assert first["what"].startswith("rank 1 computes longer than the others"), first
    # What it costs, less what the transfers would take anyway; loosely, for busy machines.
    assert 0.5 * LONGER_S < first["gain_s"] < 1.5 * LONGER_S
    # Its pushes hide behind its backward as those of the others do behind theirs.
    assert first["gain_s"] == pytest.approx(first["own"] - first["others"], rel=0.5)


def test_a_slow_link_is_named_first(tmp_path: Path) -> None:
    rate_bytes_per_s = FOUR.rate_bytes_per_s / 10
    first, *_ = causes(FOUR.with_host_rates({2: rate_bytes_per_s}), tmp_path / "link")
    assert (first["kind"], first["ranks"]) == ("link", [2]), first
    assert first["what"].startswith("rank 2 has a slow link"), first
    # A ring sends 3/2 of the bytes over each link.
    assert first["gain_s"] > 0.5 * 1.5 * 2 * MIB / rate_bytes_per_s

"""A training for which a plan is kept; nothing here plans, nor loads what does."""

from __future__ import annotations

import socket
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from syncopate.artifacts.cluster import Cluster
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.engine.distribute import distribute
from syncopate.engine.selfplan import cache
from syncopate.engine.selfplan.start import facts_of
from syncopate.engine.selfplan.wishes import Wishes

TIMEOUT_S = 300.0


def started(**options: Any) -> Any:
    """Return a small model, distributed with its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = distribute(model, optimizer, timeout_s=TIMEOUT_S, **options)
    return model


def keep() -> Plan:
    """Keep a plan for what :func:`started` starts, and return it; every rank calls it."""
    engine = started(cache=False, deterministic=True).syncopate
    world_size = engine.communicator.world_size
    plan = replace(engine.plan, policy="kept")
    hosts = [socket.gethostname()] * world_size
    facts = facts_of(engine, Wishes(), hosts, plan.fingerprint)
    tensors = tuple(GradientTensor(name=n, numel=s, dtype=d) for n, s, d in engine.tensors)
    if engine.communicator.rank == 0:
        cache.write(
            cache.Settled(
                facts=facts,
                plan=plan,
                name="by hand",
                step_s=0.1,
                ddp_step_s=0.2,
                workload=Workload(
                    model=engine.model_name, tensors=tensors, forward_s=0.0, backward_s=0.0
                ),
                cluster=Cluster.flat(world_size, latency_s=1e-5, bandwidth_bytes_per_s=1e9),
                date="2026-01-01T00:00:00+00:00",
            )
        )
    engine.detach()
    return plan

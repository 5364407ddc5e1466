"""Plans on a real network: a replayed ResNet-50 on emulated hosts, beside DDP in the same run.

    python benchmarks/replay_lab.py                       # as root on Linux: 4 hosts at 1 Gbit/s
    python benchmarks/replay_lab.py --hosts 8 --scale 0.05 --json replay_lab.json

Started plainly it makes a lab (network namespaces, shaped links) and runs itself on every host. The
workload has ResNet-50's 161 tensors, each a share ``--scale`` of its size. It computes by sleeping;
its gradients are real and so is their traffic. Sleeping takes no processor, so plans are made for
ideal overlap. Every policy and DDP train in turns; iterations are medians over turns, the maximum
over ranks, and are held against their predictions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from emulated import hosts
from syncopate.artifacts.cluster import Interference
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import GradientTensor, Workload
from syncopate.calibration.calibrate import calibrate
from syncopate.cli.demo.measure import Contender, measure
from syncopate.collectives import Communicator
from syncopate.engine.distribute import distribute
from syncopate.output import write_output
from syncopate.planning import compare
from syncopate.units import KIB, MIB, format_bytes, format_seconds
from syncopate.zoo import replay, resnet50

SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)


def scaled_resnet50(scale: float, backward_s: float) -> Workload:
    """Return ResNet-50's tensors in reverse order, shrunk, with backward spread evenly."""
    parameters = list(resnet50().model.named_parameters())[::-1]
    tensors = tuple(
        GradientTensor(
            name=name,
            numel=max(1, int(parameter.numel() * scale)),
            backward_s=backward_s / len(parameters),
        )
        for name, parameter in parameters
    )
    return Workload(
        model=f"ResNet-50 x {scale:g}",
        tensors=tensors,
        forward_s=backward_s / 2,
        backward_s=backward_s * (1 + 1e-9),
    )


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Contender:
    """Return one iteration of a replayed model, without a name or preparation of its own."""
    inputs = torch.ones(1)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return Contender("ddp", lambda: None, step)


def rank_main(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 prints."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with Communicator() as communicator:
        workload = scaled_resnet50(options.scale, options.backward)
        cluster = calibrate(communicator, budget_s=options.calibration, sizes=SIZES)
        cluster = msgspec.structs.replace(cluster, interference=Interference())
        model, peer = replay(workload), replay(workload)
        plans: tuple[Plan, ...] = communicator.broadcast_object(compare(model.workload, cluster))
        ddp = step_of(DistributedDataParallel(peer), peer.optimizer())
        ours, optimizer = distribute(model, model.optimizer(), plan=plans[-1])
        step = step_of(ours, optimizer).step
        contenders = [
            Contender(plan.policy, lambda plan=plan: ours.syncopate.install(plan), step)
            for plan in plans
        ]
        times = measure(
            [*contenders, ddp], communicator, rounds=options.rounds, iterations=3, warmup=1
        )
        if communicator.rank == 0:
            tell(options, workload, plans, {name: tuple(s) for name, s in times.items()})
        ours.syncopate.detach()
    dist.destroy_process_group()


def tell(
    options: argparse.Namespace,
    workload: Workload,
    plans: tuple[Plan, ...],
    times: dict[str, tuple[float, ...]],
) -> None:
    """Print the comparison and write the JSON file if one is named."""
    measured_s = {name: statistics.median(samples) for name, samples in times.items()}
    print(f"{workload.model}: {len(workload.tensors)} tensors, {format_bytes(workload.nbytes)}")
    print(f"{'policy':10s} {'buckets':>7s} {'predicted':>10s} {'measured':>10s} {'DDP / it':>8s}")
    for plan in plans:
        assert plan.prediction is not None
        print(
            f"{plan.policy:10s} {len(plan.buckets):7d} "
            f"{format_seconds(plan.prediction.iteration_s):>10s} "
            f"{format_seconds(measured_s[plan.policy]):>10s} "
            f"{measured_s['ddp'] / measured_s[plan.policy]:7.2f}x"
        )
    print(f"{'ddp':10s} {'':7s} {'':10s} {format_seconds(measured_s['ddp']):>10s}")
    if options.json:
        found = {
            plan.policy: {"plan": json.loads(plan.to_json()), "samples_s": times[plan.policy]}
            for plan in plans
        }
        report = vars(options) | {"json": None, "policies": found, "ddp_samples_s": times["ddp"]}
        write_output(options.json, json.dumps(report, indent=1).encode() + b"\n")


def main() -> int:
    """Start the lab, or be one of its ranks."""
    parser = hosts.parser("A replayed ResNet-50 on emulated hosts.")
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link")
    parser.add_argument("--scale", type=float, default=0.1, help="share of ResNet-50's sizes")
    parser.add_argument("--backward", type=float, default=0.12, help="seconds of backward")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each policy")
    parser.add_argument("--calibration", type=float, default=12.0, help="seconds of calibration")
    parser.add_argument("--quick", action="store_true", help="two turns, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.calibration = 2, 4.0
    return hosts.run(__file__, options, rank_main)


if __name__ == "__main__":
    sys.exit(main())

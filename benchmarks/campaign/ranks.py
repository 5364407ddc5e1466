"""Ranks: the side of the campaign that runs on every emulated host."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncopate.collectives import Communicator

from .parts import Part
from .results import PartResult
from .session import Session, facts
from .timing import FULL, QUICK

TIMEOUT_S = 120.0


def run(parts: Sequence[Part], folder: Path, commands: dict[str, str], *, quick: bool) -> None:
    """Measure parts that share a lab, as one of its ranks; rank 0 writes each when it is done."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with Communicator(timeout_s=TIMEOUT_S) as communicator:
        session = Session(communicator, parts[0].topology, QUICK if quick else FULL)
        for part in parts:
            session.say(f"{part.name}: {part.title}")
            metadata = facts()
            body = importlib.import_module(f".{part.body}", __package__)
            measure: Callable[[Session], dict[str, Any]] = body.measure
            start_s = time.monotonic()
            found = measure(session)
            result = PartResult(
                part=part.name,
                command=commands[part.name],
                topology=part.topology,
                quick=quick,
                elapsed_s=time.monotonic() - start_s,
                metadata=metadata,
                **found,
            )
            if communicator.rank == 0:
                session.say(f"wrote {result.save(folder / f'{part.name}.json')}")
        session.close()
    dist.destroy_process_group()

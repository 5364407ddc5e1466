"""Syncopate: measure, plan, run and predict gradient communication in data-parallel training.

The public names, each loaded from its module when it is first used: importing this package loads
neither torch nor scipy, so planning for a cluster starts in a blink on any laptop.

[Note: loaded beside torch] A program that has loaded torch, or that a launcher started as a rank,
is going to train. There :func:`distribute` is loaded with the package, as a program's libraries
are, and not when all ranks of a host stand before it at the same time. torch comes to know the
backend of :mod:`syncopate.c10d` then, or as soon as it is loaded. Where ``SYNCOPATE_TRACE`` is
set the package is loaded when Python starts (:mod:`syncopate.startup`), in every process that a
rank starts too, and has to leave torch to the program.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncopate.artifacts.cluster import Cluster as Cluster
    from syncopate.artifacts.plan import Plan as Plan
    from syncopate.artifacts.results.whatif import Prices as Prices
    from syncopate.artifacts.results.whatif import WhatIf as WhatIf
    from syncopate.artifacts.timeline import Timeline as Timeline
    from syncopate.artifacts.workload import Workload as Workload
    from syncopate.benchmarking.run import bench as bench
    from syncopate.c10d.fsdp2 import fsdp2 as fsdp2
    from syncopate.c10d.register import register_backend as register_backend
    from syncopate.calibration.calibrate import calibrate as calibrate
    from syncopate.calibration.logs.read import read_logs as read_logs
    from syncopate.collectives.communicator import Communicator as Communicator
    from syncopate.delay import Delay as Delay
    from syncopate.delay import LocalSGD as LocalSGD
    from syncopate.engine.checks.lint import check as check
    from syncopate.engine.ddp.wrap import ddp as ddp
    from syncopate.engine.distribute import Distributed as Distributed
    from syncopate.engine.distribute import distribute as distribute
    from syncopate.engine.exchange.optimizers import declare_optimizer as declare_optimizer
    from syncopate.engine.published import publish as publish
    from syncopate.errors import ArtifactError as ArtifactError
    from syncopate.errors import CalibrationError as CalibrationError
    from syncopate.errors import CollectiveError as CollectiveError
    from syncopate.errors import EngineError as EngineError
    from syncopate.errors import ExtensionError as ExtensionError
    from syncopate.errors import InvalidValueError as InvalidValueError
    from syncopate.errors import ParameterServerError as ParameterServerError
    from syncopate.errors import PlanError as PlanError
    from syncopate.errors import ScheduleError as ScheduleError
    from syncopate.errors import SyncopateError as SyncopateError
    from syncopate.errors import UnknownNameError as UnknownNameError
    from syncopate.paramserver.worker import KVStore as KVStore
    from syncopate.planning.fsdp.planner import make_fsdp_plan as make_fsdp_plan
    from syncopate.planning.planner import compare as compare
    from syncopate.planning.planner import make_plan as make_plan
    from syncopate.planning.whatif.study import whatif as whatif
    from syncopate.profiling.estimate import estimate as estimate
    from syncopate.profiling.profile import profile as profile
    from syncopate.profiling.ready import workload_of as workload_of
    from syncopate.runs.analyze import analyze as analyze
    from syncopate.runs.compare import difference as difference
    from syncopate.runs.explain import explain as explain
    from syncopate.runs.page import report as report
    from syncopate.runs.replay import replay as replay
    from syncopate.runs.watch import watch as watch
    from syncopate.runs.workload import recorded_workload as recorded_workload
    from syncopate.simulation.ranks import Variation as Variation
    from syncopate.simulation.timeline import simulate as simulate
    from syncopate.tracing.capture import pause as pause
    from syncopate.tracing.capture import trace as trace
    from syncopate.validation.validate import validate as validate

__version__ = "0.2.0"

_MODULES = {
    "calibrate": "calibration.calibrate",
    "estimate": "profiling.estimate",
    "profile": "profiling.profile",
    "workload_of": "profiling.ready",
    "recorded_workload": "runs.workload",
    "read_logs": "calibration.logs.read",
    "replay": "runs.replay",
    "Cluster": "artifacts.cluster",
    "Communicator": "collectives.communicator",
    "Delay": "delay",
    "LocalSGD": "delay",
    "check": "engine.checks.lint",
    "ddp": "engine.ddp.wrap",
    "Distributed": "engine.distribute",
    "distribute": "engine.distribute",
    "declare_optimizer": "engine.exchange.optimizers",
    "publish": "engine.published",
    "ArtifactError": "errors",
    "CalibrationError": "errors",
    "CollectiveError": "errors",
    "EngineError": "errors",
    "ExtensionError": "errors",
    "InvalidValueError": "errors",
    "ParameterServerError": "errors",
    "PlanError": "errors",
    "ScheduleError": "errors",
    "SyncopateError": "errors",
    "UnknownNameError": "errors",
    "KVStore": "paramserver.worker",
    "Plan": "artifacts.plan",
    "compare": "planning.planner",
    "make_fsdp_plan": "planning.fsdp.planner",
    "make_plan": "planning.planner",
    "simulate": "simulation.timeline",
    "Variation": "simulation.ranks",
    "Prices": "artifacts.results.whatif",
    "WhatIf": "artifacts.results.whatif",
    "whatif": "planning.whatif.study",
    "analyze": "runs.analyze",
    "bench": "benchmarking.run",
    "fsdp2": "c10d.fsdp2",
    "register_backend": "c10d.register",
    "difference": "runs.compare",
    "explain": "runs.explain",
    "report": "runs.page",
    "watch": "runs.watch",
    "Timeline": "artifacts.timeline",
    "pause": "tracing.capture",
    "trace": "tracing.capture",
    "validate": "validation.validate",
    "Workload": "artifacts.workload",
}

_NEEDED = {
    "torch": {
        "Communicator",
        "Distributed",
        "KVStore",
        "bench",
        "calibrate",
        "check",
        "ddp",
        "declare_optimizer",
        "distribute",
        "estimate",
        "fsdp2",
        "profile",
        "publish",
        "register_backend",
        "workload_of",
    },
    "zmq": {"KVStore"},
}
"""Package that an extra brings -> the names that are loaded with it alone."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _loadable()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        needed = str(error.name).partition(".")[0]
        if needed not in _NEEDED or not _is_missing(needed):
            raise
        errors = import_module(f"{__name__}.errors")
        raise errors.MissingPackageError(f"{__name__}.{name}", needed) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def _loadable() -> list[str]:
    """Return the public names that what is installed suffices for: ``import *`` loads them all."""
    without = (names for package, names in _NEEDED.items() if _is_missing(package))
    return sorted({*_MODULES, "__version__"}.difference(*without))


def _is_missing(package: str) -> bool:
    return not sys.modules.get(package) and find_spec(package) is None


def __dir__() -> list[str]:
    return sorted({*globals(), *_loadable()})


def _tell_torch() -> None:
    with suppress(ImportError):  # a torch without its distributed part
        __getattr__("register_backend")()


# [Note: loaded beside torch]
_is_rank = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
_at_startup = bool(os.environ.get("SYNCOPATE_TRACE"))
if sys.modules.get("torch") or (_is_rank and not _at_startup and find_spec("torch")):
    import_module(f"{__name__}.{_MODULES['distribute']}")
    _tell_torch()
else:
    import_module(f"{__name__}.startup").after_torch(_tell_torch)

"""Sweeps: the row of sizes, elements, and everything that is refused before a rank starts."""

from __future__ import annotations

import math

import pytest

from syncopate.artifacts.results.benchmark import geometric
from syncopate.benchmarking.sweep import Effort, Sweep, parse_algorithm
from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.units import MIB


def test_sizes_grow_by_a_factor_up_to_the_last():
    assert geometric(4, 64, 4) == (4, 16, 64)
    assert geometric(4, 63, 4) == (4, 16)
    assert geometric(1024, 1024, 2) == (1024,)
    assert geometric(1, 4, 1.5) == (1, 2, 3)
    assert geometric(4, 64 * MIB, 4)[-1] == 64 * MIB
    assert geometric(4, 64, math.inf) == geometric(4, 64, 1e308) == (4,)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((0, 4, 2), "first size"),
        ((8, 4, 2), "last size"),
        ((4, 8, 1), "factor"),
        ((4, 8, math.nan), "factor"),
        ((1, 64 * MIB, 1 + 1e-15), "factor .* at most 65536 sizes"),
    ],
)
def test_a_row_that_does_not_grow_is_refused(arguments, what):
    with pytest.raises(InvalidValueError, match=what):
        geometric(*arguments)


def test_sizes_become_whole_elements_once_each():
    sweep = Sweep("all_reduce", (1024, 1, 6, 7, 4), dtype="float32")
    assert sweep.counts == (1, 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collective": "all_redcue"}, "unknown collective 'all_redcue'; known: all_reduce"),
        ({"sizes": ()}, "at least one byte"),
        ({"sizes": (0,)}, "at least one byte"),
        ({"dtype": "float31"}, "unknown dtype 'float31'"),
        ({"root": 1}, "all_reduce has no root"),
        ({"collective": "reduce", "root": -1}, "root is -1"),
        ({"algorithms": ("rign",)}, "unknown algorithm 'rign' for all_reduce; known: native"),
        ({"algorithms": ("lp:blocks",)}, "NAME:OPTION=VALUE"),
        ({"algorithms": ("lp:block=2",)}, "unknown option 'block' for all_reduce .lp.; known: bl"),
        ({"algorithms": ("native:blocks=2",)}, "all_reduce .native.; known: none"),
        ({"algorithms": ("auto:blocks=2",)}, "all_reduce .auto.; known: none"),
        ({"against": ("horovod",)}, "unknown peer 'horovod'; known: gloo, mpi"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises((InvalidValueError, UnknownNameError), match=message):
        Sweep(**{"collective": "all_reduce", "sizes": (4,), **options})


def test_an_algorithm_may_bring_its_options():
    assert parse_algorithm("all_reduce", "ring") == ("ring", {})
    assert parse_algorithm("all_reduce", "auto") == ("auto", {})
    assert parse_algorithm("reduce", "lp:blocks=8") == ("lp", {"blocks": 8})
    name, options = parse_algorithm("all_reduce", "blueconnect:factors=2x4:stages=ring+recursive")
    assert name == "blueconnect"
    assert options == {"factors": (2, 4), "stages": ("ring", "recursive")}
    assert parse_algorithm("all_reduce", "ring:order=2x0x1")[1] == {"order": (2, 0, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"mode": "fast"}, "unknown mode 'fast'; known: barrier, back-to-back"),
    ],
)
def test_an_effort_out_of_range_is_refused(options, message):
    with pytest.raises((InvalidValueError, UnknownNameError), match=message):
        Effort(**options)

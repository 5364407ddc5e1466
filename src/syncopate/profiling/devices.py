"""Devices: published peaks of accelerators, for times of a model on a device that is not at hand.

[Note: peaks] A peak is what the maker prints for dense work: multiply-adds counted as two, no
sparsity, the boost clock. ``float32`` is the rate of ordinary float32 arithmetic; ``tf32`` that of
float32 matrices on tensor cores, which torch uses for convolutions and, where a script asks for it,
for other products. Half precision is with float32 accumulation, as training needs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from syncopate.errors import InvalidValueError, UnknownNameError

TF32 = "tf32"
"""The name of products of float32 matrices on tensor cores; no dtype of tensors."""


ANY = ""
"""Stands for every dtype in the peaks of a device that has one peak alone."""


@dataclass(frozen=True)
class Device:
    """The peak rates of a device.

    Attributes:
        name: what to call it in reports.
        peaks: dtype, or ``"tf32"`` -> floating-point operations per second, see [Note: peaks];
            :data:`ANY` where there is one for all.
        memory_bytes_per_s: rate at which its memory is read and written.
        source: who published the figures.
    """

    name: str
    peaks: Mapping[str, float]
    memory_bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        rates = {f"peak of {name}": rate for name, rate in self.peaks.items()}
        for what, rate in (rates | {"memory bandwidth": self.memory_bytes_per_s}).items():
            if not 0 < rate < float("inf"):
                raise InvalidValueError(f"{what} of {self.name}", rate, "a finite number > 0")

    def peak(self, dtype: str) -> float:
        """Return the operations per second in ``dtype``.

        A wider type's where it has no rate of its own, as old devices compute bfloat16 in float32;
        the only one there is where one was given by hand.

        Raises:
            UnknownNameError: neither the type nor a wider one has a rate.
        """
        for name in (dtype, *_WIDER.get(dtype, ()), ANY):
            if name in self.peaks:
                return self.peaks[name]
        raise UnknownNameError("dtype", dtype, self.peaks, f"computing on {self.name}")


_WIDER = {
    TF32: ("float32",),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "complex64": ("float32",),
    "complex128": ("float64",),
}


def _half(float32: float, half: float, **others: float) -> dict[str, float]:
    return {"float32": float32, "float16": half, "bfloat16": half} | others


_HOPPER = _half(66.9e12, 989.4e12, tf32=494.7e12, float64=33.5e12)
_AMPERE = _half(19.5e12, 312e12, tf32=156e12, float64=9.7e12)

DEVICES: dict[str, Device] = {
    "h200": Device("NVIDIA H200 SXM", _HOPPER, 4.8e12, "NVIDIA H200 data sheet"),
    "h100": Device("NVIDIA H100 SXM", _HOPPER, 3.35e12, "NVIDIA H100 architecture white paper"),
    "a100": Device("NVIDIA A100 80GB SXM", _AMPERE, 2.039e12, "NVIDIA A100 data sheet"),
    "a100-40gb": Device("NVIDIA A100 40GB SXM", _AMPERE, 1.555e12, "NVIDIA A100 data sheet"),
    "l40s": Device(
        "NVIDIA L40S", _half(91.6e12, 362e12, tf32=183e12), 864e9, "NVIDIA L40S data sheet"
    ),
    "rtx4090": Device(
        "NVIDIA GeForce RTX 4090",
        _half(82.6e12, 165.2e12, tf32=82.6e12),
        1008e9,
        "NVIDIA Ada GPU architecture white paper",
    ),
    "rtx3090": Device(
        "NVIDIA GeForce RTX 3090",
        _half(35.6e12, 71e12, tf32=35.6e12),
        936e9,
        "NVIDIA Ampere GA102 GPU architecture white paper",
    ),
    "rtx2080ti": Device(
        "NVIDIA GeForce RTX 2080 Ti",
        {"float32": 13.45e12, "float16": 53.8e12},
        616e9,
        "NVIDIA Turing GPU architecture white paper, reference clocks",
    ),
    "t4": Device("NVIDIA T4", {"float32": 8.1e12, "float16": 65e12}, 320e9, "NVIDIA T4 data sheet"),
    "v100": Device(
        "NVIDIA V100 SXM2",
        {"float32": 15.7e12, "float16": 125e12, "float64": 7.8e12},
        900e9,
        "NVIDIA V100 data sheet",
    ),
    "p100": Device(
        "NVIDIA P100 SXM2",
        {"float32": 10.6e12, "float16": 21.2e12, "float64": 5.3e12},
        732e9,
        "NVIDIA P100 data sheet",
    ),
    "k80": Device(
        "NVIDIA K80, one of its two GPUs",
        {"float32": 4.37e12, "float64": 1.455e12},
        240e9,
        "NVIDIA K80 board specification, boost clock",
    ),
    "mi300x": Device(
        "AMD Instinct MI300X",
        _half(163.4e12, 1307.4e12, tf32=653.7e12, float64=81.7e12),
        5.3e12,
        "AMD Instinct MI300X data sheet",
    ),
}
"""Name on the command line -> device."""


def device_named(name: str) -> Device:
    """Return a device of :data:`DEVICES`, however it is capitalised, dashed or spaced.

    Raises:
        UnknownNameError: no such device; lists those there are.

    Example:
        >>> device_named("RTX 2080 Ti").memory_bytes_per_s
        616000000000.0
    """
    wanted = _plain(name)
    for known, device in DEVICES.items():
        if _plain(known) == wanted:
            return device
    raise UnknownNameError("device", name, DEVICES)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


_RATE = re.compile(r"([0-9]*\.?[0-9]+(?:e\+?[0-9]+)?)\s*([kmgtp]?)(?:flop/?s|flops|b/s|b)?", re.I)
_FACTOR = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


def parse_peak(what: str, text: str) -> float:
    """Read a rate such as ``"312T"``, ``"312TFLOPS"``, ``"2039GB/s"`` or ``"3.12e14"``.

    Raises:
        InvalidValueError: it is none, or 0.
    """
    found = _RATE.fullmatch(text.strip())
    rate = float(found.group(1)) * _FACTOR[found.group(2).lower()] if found else 0.0
    if not 0 < rate < float("inf"):
        raise InvalidValueError(what, text, "a number > 0 with k, M, G, T or P, such as 312T")
    return rate

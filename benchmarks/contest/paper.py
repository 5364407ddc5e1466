"""Paper: the training speeds of SSD-SGD's Figs. 6 and 7, and its machines scaled to a lab's links.

Xu et al., "SSD-SGD: Communication Sparsification for Distributed Deep Learning Training" (2021).

[Note: the ratio of computing to communicating] The testbed (Section 4.1) has 4 machines of 4 V100,
joined by 56 Gbit/s InfiniBand. ResNet-50 reaches 3657.22 and 3682.12 images/s by linear scaling at
32 and 64 images a GPU (Section 4.5), so that a machine computes 0.140 and 0.278 s an iteration. At
32 images and with 4 servers SSD-SGD-5 reaches 786.86 images/s a machine (Section 4.4), 72.3% more
than SSGD (Section 4.6): SSGD takes 0.280 s. By Eq. 2 that is T_f + T_c, the last layer's backward
left out, and a third of computing is forward: T_c is 0.234 s. Pushes take half of it, as in Eq. 7:
0.117 s for 102 MB, an eighth of what 56 Gbit/s would carry. So it is from the measured speeds that
the ratio is taken, and not from the link's name. A lab's link takes longer for the same bytes; all
computation is stretched by as much, and speeds are printed divided by it: in the paper's images/s.
AlexNet and VGG-11, of which the paper gives no speed, compute as many operations a second as that
ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable

from syncopate.artifacts.workload import Workload

from .profiles import (
    ALEXNET_S,
    RESNET50_S,
    VGG11_S,
    alexnet_profile,
    resnet50_profile,
    vgg11_profile,
)
from .works import GOODPUT

MACHINES, GPUS = 4, 4
LINEAR_IMAGES_S = {32: 3657.22, 64: 3682.12}
"""Images per GPU -> images/s of ResNet-50 by linear scaling (Section 4.5)."""

SSD5_IMAGES_S = 786.86
"""Of a machine, with ResNet-50 at 32 images a GPU, 4 servers and k = 5 (Section 4.4)."""

SSD5_SPEEDUPS = {
    ("resnet50", 32): 0.723,
    ("resnet50", 64): 0.098,
    ("alexnet", 32): 0.796,
    ("alexnet", 64): 1.007,
    ("vgg11", 32): 0.587,
    ("vgg11", 64): 0.587,
}
"""Speed-ups of SSD-SGD-5 over SSGD with 4 servers (Fig. 7, Section 4.6). For VGG-11 the text gives
one figure and no batch size; that of ResNet-50 at 64 is the smallest that it gives for Fig. 7."""

FIG6_SPEEDUPS = {32: (0.08, 0.78), 64: (0.03, 1.10)}
"""Images per GPU -> least and most over all k and numbers of servers (Section 4.5)."""

_FORWARD = 1 / 3
_PROFILES: dict[str, tuple[Callable[[float], Workload], float]] = {
    "resnet50": (resnet50_profile, RESNET50_S),
    "alexnet": (alexnet_profile, ALEXNET_S),
    "vgg11": (vgg11_profile, VGG11_S),
}
MODELS = tuple(_PROFILES)


def images(batch: int) -> int:
    """Return the images that one machine computes in an iteration, of ``batch`` a GPU."""
    return GPUS * batch


def compute_s(batch: int) -> float:
    """Return what a machine of the paper computes in an iteration of ResNet-50."""
    return MACHINES * images(batch) / LINEAR_IMAGES_S[batch]


def push_s() -> float:
    """Return what the pushes of ResNet-50 take in the paper's testbed; see the module's note."""
    ssgd_s = images(32) / SSD5_IMAGES_S * (1 + SSD5_SPEEDUPS["resnet50", 32])
    return (ssgd_s - _FORWARD * compute_s(32)) / 2


def stretch(rate_bytes_per_s: float) -> float:
    """Return how much longer a lab's links take than the paper's.

    Args:
        rate_bytes_per_s: of each link, frames and all.
    """
    nbytes = resnet50_profile().nbytes
    return nbytes / (rate_bytes_per_s * GOODPUT) / push_s()


def workload(model: str, batch: int, rate_bytes_per_s: float) -> Workload:
    """Return what a model computes and sends in the lab, for a machine of the paper.

    Args:
        model: one of ``MODELS``.
        batch: images a GPU; 32 or 64.
        rate_bytes_per_s: as for :func:`stretch`.
    """
    profile, own_s = _PROFILES[model]
    return profile(own_s / RESNET50_S * compute_s(batch) * stretch(rate_bytes_per_s))

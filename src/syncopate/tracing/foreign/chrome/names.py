"""Names: which collective an event is part of, by what its tool called it.

The kernels of NCCL and RCCL bear the collective in their names, in a form of each version:

    ncclAllReduceRingLLKernel_sum_f32(ncclColl)                     NCCL 2.4 to 2.7
    ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)            2.8 to 2.18, and RCCL
    ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, ...)      from 2.19 on
    ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(...)            symmetric memory
    ncclDevKernel_Generic(...), rcclGenericKernel<...>(...)         any collective

``SendRecv`` is what sends and receives between two ranks, and all-to-all, which is made of them.
Which one, and what a generic kernel is, the call tells that launched it.
"""

from __future__ import annotations

import re

GENERIC = "collective"
"""What a kernel is that could be any."""

POINT_TO_POINT = "send"
"""What a kernel is that sends and receives, where nothing else is known."""

_LIBRARIES = re.compile(r"^(?:void\s+)?(?:\w+::)*(?:nccl|rccl|msccl|mccl|hccl)", re.IGNORECASE)
_SYMMETRIC = re.compile(r"(?:multimem|one_shot|two_shot)_(all_reduce|all_gather|reduce_scatter)")
_IN_KERNELS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": POINT_TO_POINT,
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "generic": GENERIC,
}
"""Part of a kernel's name, its underscores left out -> collective; the first that fits is it."""

_NAMED = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
}
_WITHOUT = re.compile(r"_|coalesced|intotensor|tensor|single|base|sparse")
_CALL = re.compile(r"^(?:c10d|gloo|nccl|rccl|ucc|mpi|xccl|hccl)::?(?!\d)(\w+)")


def collective_of(name: str) -> str | None:
    """Return the collective that PyTorch means: ``"_allgather_base"``, ``"allreduce_coalesced_"``.

    None: it is none, such as a wait.
    """
    return _NAMED.get(_WITHOUT.sub("", name.partition(" ")[0].lower().replace("_", "")))


def collective_of_call(name: str) -> str | None:
    """Return the collective of a call or a run: ``"c10d::allreduce_"``, ``"gloo:all_reduce"``."""
    found = _CALL.match(name)
    return collective_of(found[1]) if found else None


def collective_of_kernel(name: str) -> str | None:
    """Return the collective of a kernel; None: it computes."""
    if found := _SYMMETRIC.search(name):
        return found[1]
    if not _LIBRARIES.match(name):
        return None
    # What stands behind the name are types: ncclDevKernelArgsStorage, ncclWorkElem.
    own = re.split(r"[(<]", name, maxsplit=1)[0].lower().replace("_", "")
    if "kernel" not in own:
        return None
    return next((kind for part, kind in _IN_KERNELS.items() if part in own), GENERIC)

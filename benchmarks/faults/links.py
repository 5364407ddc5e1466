"""Links: how the link of a host is spoilt, and mended, while a training runs."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from faults.named import CUT, CUT_TO, LOSSY, LOST, UPLINK, Fault
from syncopate.errors import SyncopateError
from syncopate.lab import Lab
from syncopate.lab.names import host_namespace


def spoil(lab: Lab, fault: Fault, rate_bytes_per_s: float, *, on: bool) -> None:
    """Do to the link of a host what the fault says, or undo it.

    Args:
        lab: where it runs.
        fault: names the host, and what is done to its link.
        rate_bytes_per_s: of the link as it should be.
        on: do it; otherwise undo it.
    """
    slow_bytes_per_s = rate_bytes_per_s * (CUT_TO if on else 1.0)
    if fault.link == CUT:
        lab.limit(fault.host, slow_bytes_per_s)
    elif fault.link == UPLINK:
        lab.limit(fault.host, slow_bytes_per_s, sent_only=True)
    elif fault.link == LOSSY and on:
        kept = ["netem", "loss", f"{LOST:%}", "rate", f"{round(rate_bytes_per_s * 8)}bit"]
        where = host_namespace(lab.run_id, fault.host)
        done = _tc("ip", "netns", "exec", where, "tc", "qdisc", "replace", "dev", "eth0", "root",
                   *kept)  # fmt: skip
        if done.returncode:
            raise SyncopateError(f"tc: {done.stderr.strip()}")
    else:
        lab.limit(fault.host, rate_bytes_per_s)


@cache
def missing(fault: Fault) -> str:
    """Return why this machine cannot have a fault; empty: it can."""
    if fault.link != LOSSY:
        return ""
    if shutil.which("tc") is None or shutil.which("unshare") is None:
        return "tc and unshare (iproute2, util-linux) are needed to lose packets"
    tried = _tc("unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", "1%")
    return f"this kernel has no netem ({tried.stderr.strip()})" if tried.returncode else ""


def _tc(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)

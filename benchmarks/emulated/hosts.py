"""Hosts: a script that starts itself as every rank of a lab."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from syncopate.lab import Lab, Topology
from syncopate.lab.support import why_not
from syncopate.units import parse_rate


def parser(description: str) -> argparse.ArgumentParser:
    """Return a command line that knows how many hosts, and whether it is a rank's."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--hosts", type=int, default=4)
    found.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return found


def run(
    script: str,
    options: argparse.Namespace,
    rank_main: Callable[[argparse.Namespace], None],
    *,
    ranks_per_host: int = 1,
    more: Sequence[str] = (),
) -> int:
    """Run ``script`` as every rank of a lab, or be such a rank; return the exit code.

    Where no lab can be made it says why, and returns 0.

    Args:
        script: path of the script; it is started with this process's own arguments.
        options: of a :func:`parser` that was also given ``--rate``.
        rank_main: what a rank does.
        ranks_per_host: how many ranks each host has.
        more: further arguments for the ranks.

    Raises:
        SyncopateError: no lab can have such hosts or links.
    """
    if options.rank:
        rank_main(options)
        return 0
    obstacle = why_not()
    if obstacle:
        print(f"skipped: {obstacle}")
        return 0
    topology = Topology(
        hosts=options.hosts,
        ranks_per_host=ranks_per_host,
        rate_bytes_per_s=parse_rate(options.rate),
    )
    with Lab(topology) as lab:
        return lab.run([sys.executable, script, "--rank", *sys.argv[1:], *more]).exit_code

"""The parameter server's speed: at line rate, against ZeroMQ alone, and against torch's RPC.

    python benchmarks/paramserver.py --json paramserver.json     # as root on Linux: four minutes
    python benchmarks/paramserver.py --only loopback --loopback-rounds 30
    python benchmarks/paramserver.py --only lab --rate 2gbit --json 2gbit.json
    python benchmarks/paramserver.py --quick                     # to see that it runs

In the lab every worker, server and the scheduler has an emulated host; 1 worker has 1 server, and 4
workers have 1 to 4. What is printed is the share of the line rate: the aim is 90%. On loopback one
worker and one server, which do not encrypt, take turns with the same job encrypted, with plain
pyzmq, which moves the same frames over TCP, with pyzmq over a Unix socket as ours are on Linux,
with pyzmq there whose ends also add and copy what comes, with pyzmq through a thread of its own,
with plain copies in memory, and with torch.distributed.rpc; printed is their time over ours: the
aim is 0.80 against pyzmq.

Tensors are those of ResNet-50 (102 MB), one of 16 MiB, and on loopback one of 4 bytes, and 10,000
of 64 bytes at once. Rounds are
interleaved, and every one is kept in the file as soon as it is over. A run that was stopped goes on
where it was; more rounds join those that are there.
"""

from __future__ import annotations

import argparse
import sys

from emulated import hosts
from emulated.options import explained
from serving import emulated_hosts, loopback, work
from syncopate.errors import ArtifactError

ROUNDS, LOOPBACK_ROUNDS = 3, 9
PLACES = (emulated_hosts.PLACE, loopback.PLACE)


def on_loopback(options: argparse.Namespace) -> None:
    """Measure on loopback, print and write."""
    results = work.resumed(options.json, work.setting_of(options.quick, options.rate))
    more = options.loopback_rounds - results.rounds(loopback.PLACE)
    if more > 0:
        with loopback.contest(options.quick) as one_round:
            for _ in range(more):
                results = work.with_facts(results.joined(one_round()))
                if options.json:
                    results.save(options.json)
    work.tell(results, loopback.PLACE)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = explained(argparse.ArgumentParser(), __doc__)
    found.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    found.add_argument("--only", choices=PLACES, help="one half alone")
    found.add_argument("--rate", default="1gbit", help="rate of each host's link (1gbit)")
    found.add_argument("--rounds", type=int, default=ROUNDS, help=f"in the lab, in all ({ROUNDS})")
    found.add_argument(
        "--loopback-rounds",
        type=int,
        default=LOOPBACK_ROUNDS,
        help=f"on loopback, in all ({LOOPBACK_ROUNDS})",
    )
    return found


def main() -> int:
    """Measure both halves, or be a rank of the lab."""
    options = parser().parse_args()
    options.hosts = emulated_hosts.HOSTS
    if options.quick:
        options.rounds, options.loopback_rounds = 1, 2
    try:
        work.resumed(options.json, work.setting_of(options.quick, options.rate))
    except ArtifactError as error:
        parser().error(str(error))
    code = 0
    if options.only != loopback.PLACE:
        code = hosts.run(__file__, options, emulated_hosts.rank_main)
    if options.only != emulated_hosts.PLACE and not options.rank:
        on_loopback(options)
    return code


if __name__ == "__main__":
    sys.exit(main())

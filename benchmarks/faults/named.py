"""Named: the faults of the benchmark, what is wrong in each, and what explain has to say of it."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

SLOW_RANK, SLOW_BY = 1, 3.0
SLEEPER, SLEPT_S = 2, 0.2
CUT_HOST, CUT_TO = 2, 0.1
LOSSY_HOST, LOST = 2, 0.02
SLOW_SERVER, UPDATING_S = 1, 0.004
STARVED, LATE_S = 3, 0.06
SAVER, SAVING_S = 0, 0.25
EVALUATING_S = 0.3
EVERY, SELDOM = 4, 5
"""What happens now and then happens in each of so many iterations; what happens seldom in these."""

UNEQUAL = 1.5
"""By which part of itself the longest batch is longer than the shortest."""

HOGS = 3
"""Other jobs on the machine."""

CUT, UPLINK, LOSSY = "cut", "uplink", "lossy"
"""What can be wrong with a link: both ways slow, slow only from the host, or packets are lost."""


class Fault(NamedTuple):
    """What is wrong, and what explain has to say first.

    Attributes:
        name: on the command line.
        title: in the table.
        kinds: causes that name it; any of them will do. Empty: no cause is right.
        ranks: whose it is; empty: of all ranks, or of none. Of a server, its rank among servers.
        of: the single faults that it is of; empty: it is one itself.
        hosts: of the lab.
        servers: how many of the hosts, the last ones, are parameter servers.
        host: the host whose link is changed; -1: none.
        link: how.
        iterations: counted ones of a block.
        plan: what trains with it: ``"best"``, ``"single"`` or ``"each"``.
        real: whether ranks compute, each on a core of its own as far as there are such, instead of
            sleeping.
        profiled: whether plain DDP trains on two hosts of two ranks, and torch.profiler looks on.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    of: tuple[Fault, ...] = ()
    hosts: int = 4
    servers: int = 0
    host: int = -1
    link: str = CUT
    iterations: int = 12
    plan: str = "best"
    real: bool = False
    profiled: bool = False

    @property
    def ranks_per_host(self) -> int:
        """How many ranks are on each host."""
        return 2 if self.profiled else 1

    @property
    def workers(self) -> int:
        """How many ranks train."""
        return (self.hosts - self.servers) * self.ranks_per_host

    @property
    def parts(self) -> tuple[Fault, ...]:
        """What is wrong, one by one."""
        return self.of or (self,)

    @property
    def noisy(self) -> bool:
        """Whether other jobs belong to it."""
        return any(part.name in ("noise", "neighbour") for part in self.parts)

    @property
    def is_transfers(self) -> bool:
        """Whether it is named by what a plan or a network could save at most."""
        return bool({"plan", "transfers"} & set(self.kinds))

    def injected(self, faulty: bool) -> frozenset[str]:
        """Return what to inject in a block with the fault, or in one without.

        Beside another fault, other jobs run in all blocks: their cost is not the fault's.
        """
        if faulty:
            return frozenset(part.name for part in self.parts)
        return frozenset({"noise"} if self.of and self.noisy else ())


_SLEPT = f"{SLEPT_S * 1e3:.0f} ms more in backward of rank {SLEEPER}"
_LATE = f"rank {STARVED} loads {LATE_S * 1e3:.0f} ms late"
_SAVES = f"rank {SAVER} saves in one iteration of {EVERY}"

SINGLE = (
    Fault("slow", f"rank {SLOW_RANK} computes {SLOW_BY:g}x as long", ("compute",), (SLOW_RANK,)),
    Fault("backward", _SLEPT, ("compute",), (SLEEPER,)),
    Fault("sleep", f"the same in one iteration of {EVERY}", ("pause",), (SLEEPER,)),
    Fault("link", f"the link of rank {CUT_HOST} cut to {CUT_TO:g}", ("link",), (CUT_HOST,),
          host=CUT_HOST, iterations=6),
    Fault("uplink", "the same, only what rank 2 sends", ("link",), (CUT_HOST,),
          host=CUT_HOST, link=UPLINK, iterations=6),
    Fault("loss", f"{LOST:.0%} of the packets of rank {LOSSY_HOST} are lost",
          ("link", "congestion"), (), host=LOSSY_HOST, link=LOSSY),
    Fault("input", _LATE, ("input",), (STARVED,)),
    Fault("input-all", f"every rank loads {LATE_S * 1e3:.0f} ms late", ("input",)),
    Fault("gc", f"garbage collection, on each rank in turn, {EVERY} apart",
          ("garbage collection",), (0, 1, 2, 3)),
    Fault("checkpoint", _SAVES, ("checkpoint",), (SAVER,)),
    Fault("unmarked", "the same, not marked in the script", ("pause",), (SAVER,)),
    Fault("evaluation", f"every rank evaluates in one iteration of {EVERY}", ("evaluation",),
          (0, 1, 2, 3)),
    Fault("batches", "batches of unequal length", ("batches",), iterations=24),
    Fault("backward-seldom", f"twice {_SLEPT}, in one iteration of {SELDOM}", ("pause",),
          (SLEEPER,), iterations=20),
    Fault("input-seldom", f"rank {STARVED} loads 6x as late, in one iteration of {SELDOM}",
          ("pause",), (STARVED,), iterations=20),
    Fault("gc-seldom", f"garbage collection on rank 1, in one iteration of {SELDOM}",
          ("garbage collection",), (1,), iterations=20),
    Fault("each", "one bucket for each of 480 tensors", ("plan",), plan="each"),
    Fault("single", "a single bucket", ("plan",), plan="single"),
    Fault("server", f"server {SLOW_SERVER} takes {UPDATING_S * 1e3:.0f} ms more for an update",
          ("slow server",), (SLOW_SERVER,), servers=2),
    Fault("server-link", f"the link of server {SLOW_SERVER} cut to {CUT_TO:g}",
          ("slow server",), (SLOW_SERVER,), servers=2, host=2 + SLOW_SERVER, iterations=6),
    Fault("served-slow", f"rank {SLOW_RANK} computes {SLOW_BY:g}x as long, with 2 servers",
          ("compute",), (SLOW_RANK,), servers=2),
    Fault("real-slow", f"rank {SLOW_RANK} of 2 computes {SLOW_BY:g}x as much", ("compute",),
          (SLOW_RANK,), hosts=2, real=True),
    Fault("neighbour", f"another job on the core of rank {SLOW_RANK} of 2", ("compute",),
          (SLOW_RANK,), hosts=2, real=True),
    Fault("healthy", "nothing, 4 ranks", ()),
    Fault("healthy-2", "nothing, 2 ranks", (), hosts=2),
    Fault("healthy-real", "nothing, 2 ranks that compute", (), hosts=2, real=True),
    Fault("healthy-served", "nothing, 2 ranks and 2 servers", (), servers=2),
    Fault("noise", f"{HOGS} other jobs on the machine", ()),
)  # fmt: skip

BASIC = ("backward", "input", "link", "checkpoint", "gc", "noise")
"""The faults of which every pair is tried."""


def _pair(one: Fault, other: Fault) -> Fault:
    host, link = max((part.host, part.link) for part in (one, other))
    return Fault(
        f"{one.name}+{other.name}",
        f"{one.name} and {other.name}",
        (*one.kinds, *other.kinds),
        of=(one, other),
        host=host,
        link=link,
        iterations=min(one.iterations, other.iterations) if host < 0 else 12,
    )


_SEEN_BY_PROFILERS = ("slow", "backward", "sleep", "link", "input", "input-all", "unmarked",
                      "healthy")  # fmt: skip


def _profiled(fault: Fault) -> Fault:
    """Return the same fault of plain DDP on two hosts, as a profiler shows it.

    Of two hosts either may have the slow link, and a profiler counts no bytes: transfers are slow.
    """
    seen = fault._replace(kinds=("transfers",), ranks=()) if fault.host >= 0 else fault
    return seen._replace(
        name=f"ddp-{fault.name}",
        title=f"{fault.title}; plain DDP, profiled",
        of=(seen,),
        hosts=2,
        host=min(fault.host, 1),
        profiled=True,
    )


_BY_NAME = {fault.name: fault for fault in SINGLE}
PAIRS = tuple(_pair(_BY_NAME[one], _BY_NAME[other]) for one, other in combinations(BASIC, 2))

PROFILED = tuple(_profiled(_BY_NAME[name]) for name in _SEEN_BY_PROFILERS)

FAULTS = {fault.name: fault for fault in (*SINGLE, *PAIRS, *PROFILED)}
"""Name -> fault, in the order of the table."""

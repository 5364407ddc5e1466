"""Logs as the tools write them, small."""

from __future__ import annotations

from collections.abc import Iterable

from syncopate.artifacts.results.benchmark import BUS_FACTORS

SIZES = tuple(8 * 4**k for k in range(12))
"""From 8 B to 32 MiB."""

_PLACES = "#" + 50 * " " + "out-of-place" + 23 * " " + "in-place\n"


def _header(first: str, times: str, units: str) -> str:
    return f"#\n{_PLACES}#{first}{times}{times}\n#        (B)    (elements)  {units}{units}\n"


NEW = _header(
    "       size         count      type   redop    root",
    "     time   algbw   busbw  #wrong",
    "   (us)  (GB/s)  (GB/s)        ",
)
OLD = _header(
    "       size         count    type   redop",
    "     time   algbw   busbw  error",
    "   (us)  (GB/s)  (GB/s)       ",
)
OLDEST = _header(
    "      bytes             N    type      op", "     time  algbw  busbw      res", ""
)
ENDS = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.15327 \n#\n"


def rank_lines(hosts: int, per_host: int, *, old: bool = False) -> str:
    group = "" if old else "Group  0 "
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} {group}Pid {100 + rank:6d} on node{rank // per_host:02d} device "
        f"{rank % per_host:2d} [0x{rank:02x}] NVIDIA A100-SXM4-80GB\n"
        for rank in range(hosts * per_host)
    )


def row(
    nbytes: int, times_us: Iterable[float], factor: float, root: str = "-1", check: str = "0"
) -> str:
    text = f"{nbytes:12d}  {nbytes // 4:12d}     float     sum  {root:>6}"
    for time_us in times_us:
        algbw = nbytes / time_us / 1e3
        text += f"  {time_us:7.2f}  {algbw:6.2f}  {algbw * factor:6.2f}  {check:>6}"
    return text


def times_us(nbytes: int, start_us: float = 120.0, s_per_byte: float = 2e-9) -> tuple[float, float]:
    """Return a line's times, in place a hundredth less."""
    whole = start_us + nbytes * s_per_byte * 1e6
    return round(whole, 2), round(0.99 * whole, 2)


def nccl_tests(
    hosts: int = 4,
    per_host: int = 8,
    *,
    test: str = "all_reduce",
    start_us: float = 120.0,
    s_per_byte: float = 2e-9,
    sizes: Iterable[int] = SIZES,
    before: str = "",
) -> str:
    """Return a log whose times are a line."""
    factor = BUS_FACTORS.get(test, lambda _: 1.0)(hosts * per_host)
    rows = [row(size, times_us(size, start_us, s_per_byte), factor) for size in sizes]
    begins = "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n"
    begins += f"# Collective test starting: {test}_perf\n"
    begins += (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 33554432 step: 4(factor) warmup iters: 1\n#\n"
    )
    return before + begins + rank_lines(hosts, per_host) + NEW + "\n".join(rows) + "\n" + ENDS


BW = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x18 QPN 0x04da PSN 0x8635a
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 3902.477000 != 400.000000. CPU Frequency is not max.
 2          5000             5.32               5.30               2.778732
 65536      5000             11800.10            11500.00           0.184000
 8388608    5000             0.00 11600.00                   0.001450
---------------------------------------------------------------------------------------
"""
LAT = """---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.76           6.12         1.80    1.83    0.06    1.88    6.12
 4096    1000          2.60           9.12         2.62    2.65    0.06    2.88    9.12
 65536   1000          14.7           29.12        14.92    15.0    0.06    16.0    29.12
---------------------------------------------------------------------------------------
"""
IPERF = """Connecting to host 10.0.0.2, port 5201
[  5] local 10.0.0.1 port 51042 connected to 10.0.0.2 port 5201
[  7] local 10.0.0.1 port 51044 connected to 10.0.0.2 port 5201
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-1.00   sec   575 MBytes  4.82 Gbits/sec    0   3.02 MBytes
[  7]   0.00-1.00   sec   545 MBytes  4.58 Gbits/sec    0   3.02 MBytes
[SUM]   0.00-1.00   sec  1.09 GBytes  9.40 Gbits/sec    0
- - - - - - - - - - - - - - - - - - - - - - - - -
[  5]   1.00-2.00   sec   575 MBytes  4.70 Gbits/sec    0   3.02 MBytes
[  7]   1.00-2.00   sec   545 MBytes  4.50 Gbits/sec    0   3.02 MBytes
[SUM]   1.00-2.00   sec  1.09 GBytes  9.20 Gbits/sec    0
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-2.00   sec  1.12 GBytes  4.76 Gbits/sec    0             sender
[  5]   0.00-2.04   sec  1.11 GBytes  4.72 Gbits/sec                  receiver
[  7]   0.00-2.00   sec  1.06 GBytes  4.54 Gbits/sec    0             sender
[  7]   0.00-2.04   sec  1.05 GBytes  4.50 Gbits/sec                  receiver
[SUM]   0.00-2.00   sec  2.18 GBytes  9.30 Gbits/sec    0             sender
[SUM]   0.00-2.04   sec  2.16 GBytes  9.22 Gbits/sec                  receiver

iperf Done.
"""

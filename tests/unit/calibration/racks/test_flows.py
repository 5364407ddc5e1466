"""Rates of flows: what counts of them, and that both ends stop together."""

from __future__ import annotations

import threading
import time
from queue import Queue

import pytest
import torch

from syncopate.calibration.racks.flows import (
    WINDOW,
    _Buffers,
    _flow,
    block_bytes,
    rate_within,
)
from syncopate.units import KIB, MIB
from tests.children import HANGS_S

BLOCK = 64 * KIB


class Pipe:
    """One end of an exchange between two threads; a block takes some time to arrive."""

    def __init__(self, out: Queue[torch.Tensor], into: Queue[torch.Tensor], delay_s: float) -> None:
        self.out, self.into, self.delay_s = out, into, delay_s
        self.posted: list[torch.Tensor] = []

    def start(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        self.out.put(outgoing.clone())
        self.posted.append(incoming)

    def finish(self) -> None:
        block = self.into.get(timeout=HANGS_S)
        time.sleep(self.delay_s)
        self.posted.pop(0).copy_(block)


class TestRate:
    def test_a_burst_and_a_late_end_do_not_count(self) -> None:
        # A megabyte at once, then 100 MB/s; the pair goes on alone, faster, when time is up.
        seconds, rate = 0.05, 1e8
        arrivals_s = [0.0] * (MIB // BLOCK)
        while arrivals_s[-1] < seconds:
            arrivals_s.append(arrivals_s[-1] + BLOCK / rate)
        arrivals_s += [arrivals_s[-1] + i * BLOCK / 1e9 for i in range(1, 9)]
        assert rate_within(arrivals_s, BLOCK, seconds) == pytest.approx(rate, rel=0.01)
        assert len(arrivals_s) * BLOCK / arrivals_s[-1] > 1.2 * rate

    def test_a_pause_counts(self) -> None:
        arrivals_s = [i * 1e-3 for i in range(1, 21)] + [0.04 + i * 1e-3 for i in range(1, 21)]
        begin_s, end_s = (share * 0.05 for share in WINDOW)
        arrived = (20 - begin_s / 1e-3) + (end_s - 0.04) / 1e-3
        expected = arrived * BLOCK / (end_s - begin_s)
        # The block after the pause is spread over it.
        assert rate_within(arrivals_s, BLOCK, 0.05) == pytest.approx(expected, rel=0.05)

    def test_few_blocks_are_better_than_none(self) -> None:
        assert rate_within([0.2, 0.4], BLOCK, 0.05) == pytest.approx(BLOCK / 0.2)
        assert rate_within([0.01], BLOCK, 0.05) == pytest.approx(BLOCK / 0.01)

    def test_a_block_is_a_millisecond_within_limits(self) -> None:
        assert block_bytes(119.6e6) == 128 * KIB
        assert block_bytes(50e6) == 64 * KIB
        assert block_bytes(0.0) == 16 * KIB
        assert block_bytes(1e12) == MIB


class TestEnds:
    @pytest.mark.parametrize("delays_s", [(0.0, 0.0), (0.004, 0.0), (0.0, 0.004), (0.03, 0.03)])
    def test_both_ends_stop_after_as_many_blocks(self, delays_s: tuple[float, float]) -> None:
        there: Queue[torch.Tensor] = Queue()
        back: Queue[torch.Tensor] = Queue()
        ends = Pipe(there, back, delays_s[0]), Pipe(back, there, delays_s[1])
        arrivals_s: dict[int, list[float]] = {}

        def run(end: int) -> None:
            buffers = _Buffers(16, torch.device("cpu"))
            arrivals_s[end] = _flow(ends[end], buffers, None if end else 0.02)  # type: ignore[arg-type]

        threads = [threading.Thread(target=run, args=(end,)) for end in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS_S)
        assert len(arrivals_s[0]) == len(arrivals_s[1])
        assert arrivals_s[0][-1] >= 0.02
        assert there.empty()
        assert back.empty()
        assert not ends[0].posted
        assert not ends[1].posted

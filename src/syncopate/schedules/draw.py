"""Draw: a schedule as text, round by round, for documents and for the eye."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from textwrap import wrap

from syncopate.schedules.base import Schedule, Transfer
from syncopate.units import format_count

_ARROWS = {"copy": "->", "reduce": "+>"}


def draw(schedule: Schedule, width: int = 100) -> str:
    """Return ``schedule`` as text: one paragraph per round, one entry per transfer.

    ``2 +> 3 [0:2]`` says that rank 3 adds chunks 0 and 1 of rank 2 to its own, ``->`` that it
    takes them over; the range is left out where the buffer is a single chunk.

    Args:
        schedule: any schedule; a picture of thousands of transfers is not readable.
        width: longest line, in characters.

    Example:
        >>> from syncopate.schedules.registry import build
        >>> print(draw(build("all_reduce", "binary_tree", 4)))
        all_reduce (binary_tree), 4 ranks: 4 rounds, 1 chunk
        round 0  1 +> 0    3 +> 2
        round 1  2 +> 0
        round 2  0 -> 2
        round 3  0 -> 1    2 -> 3
    """
    rounds, chunks = format_count(schedule.rounds, "round"), format_count(schedule.chunks, "chunk")
    lines = [f"{schedule.title}: {rounds}, {chunks}"]
    digits = len(str(max(schedule.rounds - 1, 0)))
    for step, transfers in groupby(schedule.transfers, attrgetter("round")):
        head = f"round {step:>{digits}}  "
        # A no-break space keeps an entry on one line.
        entries = "    ".join(_entry(schedule, t).replace(" ", "\xa0") for t in transfers)
        lines += wrap(
            entries,
            max(width, len(head) + 20),
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
        )
    return "\n".join(lines).replace("\xa0", " ")


def _entry(schedule: Schedule, transfer: Transfer) -> str:
    text = f"{transfer.src} {_ARROWS[transfer.op]} {transfer.dst}"
    if schedule.chunks == 1:
        return text
    if transfer.stop == transfer.start + 1:
        return f"{text} [{transfer.start}]"
    return f"{text} [{transfer.start}:{transfer.stop}]"

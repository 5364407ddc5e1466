"""Recorder: one rank notes what it did when, at the cost of one list append."""

from __future__ import annotations

from syncopate.timeline import Span


class Recorder:
    """Collects one rank's spans on that rank's clock, ``time.perf_counter``.

    ``add`` may be called from any thread. Nothing is checked or built until the spans are read, so
    that recording disturbs what it records as little as possible.

    Args:
        rank: whose time it is.
        enabled: whether ``add`` records at all; may be changed at any time.
    """

    def __init__(self, rank: int, *, enabled: bool = True) -> None:
        self.rank = rank
        self.enabled = enabled
        self._rows: list[tuple[str, str, float, float, int, int, int, str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        name: str,
        lane: str,
        when_s: tuple[float, float],
        *,
        iteration: int = 0,
        channel: int = 0,
        nbytes: int = 0,
        detail: str = "",
    ) -> None:
        """Note one span, by the fields of :class:`syncopate.timeline.Span`.

        ``when_s`` is its ``(start_s, end_s)``.
        """
        if self.enabled:
            self._rows.append((name, lane, *when_s, iteration, channel, nbytes, detail))

    def spans(self) -> tuple[Span, ...]:
        """Return what was recorded, in order of recording.

        Raises:
            SyncopateError: a recorded span is invalid (unknown lane, ends before it starts).
        """
        return tuple(self._span(row) for row in list(self._rows))

    def drain(self) -> tuple[Span, ...]:
        """Return what was recorded and forget it; spans added meanwhile are kept."""
        spans = self.spans()
        del self._rows[: len(spans)]
        return spans

    def _span(self, row: tuple[str, str, float, float, int, int, int, str]) -> Span:
        name, lane, start_s, end_s, iteration, channel, nbytes, detail = row
        return Span(
            name=name,
            lane=lane,
            rank=self.rank,
            start_s=start_s,
            end_s=end_s,
            iteration=iteration,
            channel=channel,
            nbytes=nbytes,
            detail=detail,
        )

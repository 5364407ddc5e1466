"""Behind: pulls that are launched behind the pushes of the next backward.

Pulls that are launched as a step ends come before the pushes of the next backward. Where forward is
too short for all of them, they hold those up. So the plan may have the last of them go behind: they
are launched with the last push, and arrive while the step and the forward after it run, whose
layers wait for the local update that begins with them. On a device all are launched at once: its
local updates take turns with the layers on one stream.
"""

from __future__ import annotations

from collections.abc import Callable

from syncopate.engine.exchange.layout import Work


class Held:
    """A pull that is launched later, or by the first wait for it, on all ranks alike."""

    def __init__(self, launch: Callable[[], Work]) -> None:
        self._launch = launch
        self._handle: Work | None = None

    def launch(self) -> Work:
        """Launch it, unless it has been."""
        if self._handle is None:
            self._handle = self._launch()
        return self._handle

    def wait(self) -> None:
        """Wait for it.

        Raises:
            CollectiveError: a rank is lost or late.
        """
        self.launch().wait()

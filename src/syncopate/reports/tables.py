"""Tables: the one look of tables with a title."""

from __future__ import annotations

from rich import box
from rich.table import Table


def titled_table(title: str) -> Table:
    """Return an empty table under a quiet title."""
    return Table(
        title=f" {title}",
        title_justify="left",
        title_style="dim",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )

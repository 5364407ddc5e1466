"""``syncopate compare``: two runs side by side, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.common.console import show
from syncopate.cli.common.timelines import read_recorded


def compare(
    *,
    before: Annotated[Path, typer.Argument(metavar="A", help="A run or a timeline: the first.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A run or a timeline: the second.")],
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say what changed from one run to another: computation, waiting, transfers, bandwidth.

    Changes within the spread over iterations do not count. Needs no ranks.

    For example:

      syncopate compare runs/a runs/b

      syncopate compare predicted.json measured.json --json
    """
    import syncopate

    found = syncopate.difference(read_recorded(before), read_recorded(after))
    show(found, json)

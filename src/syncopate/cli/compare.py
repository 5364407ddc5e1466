"""``syncopate compare``: two runs side by side, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.common.console import out
from syncopate.cli.common.timelines import read_timeline


def compare(
    *,
    before: Annotated[Path, typer.Argument(metavar="A", help="A timeline: the first run.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="A timeline: the second run.")],
    json: Annotated[bool, typer.Option("--json", help="Print all values as JSON.")] = False,
) -> None:
    """Say what changed from one run to another: computation, waiting, transfers, bandwidth.

    Changes within the spread over iterations do not count. Needs no ranks.

    For example:

      syncopate compare yesterday.json today.json

      syncopate compare predicted.json measured.json --json
    """
    import msgspec

    from syncopate.reports.difference import difference_json, difference_report

    runs = read_timeline(before), read_timeline(after)
    if json:
        found = msgspec.json.encode(difference_json(*runs))
        typer.echo(msgspec.json.format(found, indent=1).decode())
        return
    out().print(difference_report(*runs))

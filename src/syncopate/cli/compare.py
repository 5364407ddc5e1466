"""``syncopate compare``: two runs side by side, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from syncopate.cli.common.console import out, say_json
from syncopate.cli.common.served import trips_of
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
    import msgspec

    from syncopate.reports.difference import difference_json, difference_report
    from syncopate.reports.journeys import journeys_difference, journeys_json

    read = read_recorded(before), read_recorded(after)
    runs = read[0][0], read[1][0]
    trips = trips_of(read[0][1]), trips_of(read[1][1])
    if json:
        found = difference_json(*runs)
        if all(trips):
            found["journeys"] = [journeys_json(one) for one in trips]
        say_json(msgspec.json.format(msgspec.json.encode(found), indent=1))
        return
    out().print(difference_report(*runs))
    if all(trips):
        out().print(journeys_difference(*trips))

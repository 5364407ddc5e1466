"""Defaults: how much of a recording is looked at, and how its tables are read, unless asked."""

from __future__ import annotations

LAST, LAST_REPLAYED, LAST_WATCHED = 200, 50, 20
"""Iterations that are looked at, the last ones: of any recording, played elsewhere, watched."""

Table = tuple[str, str]
"""What a table calls our columns, and our kinds; see ``docs/other_tools.md``."""

NO_TABLE = ("", "")

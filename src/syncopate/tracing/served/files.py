"""Files: a captured run as DLC traces, one of each node."""

from __future__ import annotations

from collections.abc import Iterator

from syncopate.tracing.dlc import to_dlc
from syncopate.tracing.served.read import Served
from syncopate.tracing.served.to_dlc import dlc_traces, keys_table

KEYS = "keys.tsv"
"""The file that says which slice a key is; the format has no place for it."""


def dlc_files(served: Served) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files by their names, and what they leave out, a sentence for each node."""
    traces = dlc_traces(served)
    files = {
        f"{name}.txt": "".join(to_dlc(one.header, one.records)).encode()
        for name, one in traces.items()
    }
    why = "left out: the format has no place for them"
    said = tuple(
        f"{name}.txt: {', '.join(_counted(one.left_out))} {why}"
        for name, one in traces.items()
        if one.left_out
    )
    if not served.synchronous:
        said = (*said, "servers answered each push by itself: analyze these with --asynchronous")
    return files | {KEYS: keys_table(served).encode()}, said


def _counted(left_out: dict[str, int]) -> Iterator[str]:
    for kind, count in sorted(left_out.items()):
        yield f"{count} {kind}"

"""nccl-tests' JSON (``-J``): the same test as in its text, and read as that text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from syncopate.artifacts.artifact import TOO_DEEP
from syncopate.errors import ArtifactError

_PLACES = ("out_of_place", "in_place")
_VALUES = ("time", "alg_bw", "bus_bw", "nwrong")
_COLUMNS = "root" + "  time  algbw  busbw  #wrong" * len(_PLACES)


def is_nccl_json(text: str) -> bool:
    """Say whether a text is, or begins, nccl-tests' JSON."""
    return text.lstrip().startswith("{") and '"nccl_version"' in text


def as_lines(path: str, text: str) -> list[tuple[str, str]]:
    """Return the lines that the test would have printed, without prefixes.

    Args:
        path: of the file, for errors.
        text: the whole.

    Raises:
        ArtifactError: no valid JSON, or without results.
    """
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        reason = f"not valid JSON (damaged or truncated): {error}"
        raise ArtifactError(path, reason) from None
    except RecursionError:
        raise ArtifactError(path, TOO_DEEP) from None
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise ArtifactError(path, "JSON of nccl-tests without results")
    return [("", line) for line in _lines(document, results)]


def _lines(document: dict[str, Any], results: list[Any]) -> Iterator[str]:
    # The command last, because it says for sure what was tested.
    for what in ("env", "args"):
        words = document.get(what)
        yield from [str(word) for word in words] if isinstance(words, list) else []
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    for one in devices if isinstance(devices, list) else []:
        if isinstance(one, dict):
            yield (
                f"#  Rank {one.get('rank')} Group {one.get('group', 0)} Pid {one.get('pid')} on "
                f"{one.get('hostname')} device {one.get('device')} [{one.get('device_hex', '')}] "
                f"{one.get('device_info', '')}"
            )
    yield f"#  size  count  type  redop  {_COLUMNS}"
    for one in results:
        if not isinstance(one, dict):
            continue
        values = [one.get(name) for name in ("size", "count", "type", "redop", "root")]
        for place in _PLACES:
            found = one.get(place)
            if isinstance(found, dict):
                values += ["N/A" if found.get(name) is None else found[name] for name in _VALUES]
        yield "  ".join(str(value).strip() for value in values)

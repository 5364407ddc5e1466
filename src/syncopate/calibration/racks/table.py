"""Rack table: which hosts share a rack, as a text file says, so that no search is needed.

The file has a line ``host rack`` for each host, as Hadoop's table mapping has. What follows a ``#``
is a comment; blank lines are nothing. It may hold more hosts than the job has, those of a whole
data centre say. A host is called by the name that its ranks give, which ``hostname`` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from syncopate.collectives.communicator import Communicator
from syncopate.errors import ArtifactError
from syncopate.reading import read_whole
from syncopate.units import MIB, format_count

Groups = tuple[tuple[str, ...], ...]
"""The hosts of each rack: hosts, and racks by their first hosts, in the order of their ranks."""

_MOST_NAMED = 8
_MOST_BYTES = 64 * MIB


def read_groups(communicator: Communicator, path: Path, hosts: Sequence[str]) -> Groups:
    """Return the hosts of each rack, alike on all ranks, every one of which must call this.

    Rank 0 alone reads the file.

    Args:
        communicator: the ranks.
        path: the file, where rank 0 is.
        hosts: host name of every rank.

    Raises:
        ArtifactError: the file cannot be read, is damaged, or lacks a host; on every rank.
        CollectiveError: a rank was lost.
    """
    answer: tuple[bytes, str] = (b"", "")
    if communicator.rank == 0:
        try:
            answer = read_whole(path, _MOST_BYTES), ""
        except ArtifactError as error:  # the other ranks are waiting for an answer
            answer = b"", error.reason
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            answer = b"", f"cannot read this table of racks: {reason}; rank 0 must be able to"
    data, refusal = communicator.broadcast_object(answer)
    if refusal:
        raise ArtifactError(path, refusal)
    return groups_of(parse(data, path), hosts, path)


def parse(data: bytes, source: object) -> dict[str, str]:
    """Return the rack of each host that a table names.

    Args:
        data: what the file holds.
        source: what to call it in errors.

    Raises:
        ArtifactError: a line that does not name one host and one rack, or a host in two racks.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtifactError(source, f"not valid UTF-8: {error}") from None
    rack_of: dict[str, str] = {}
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            reason = (
                f"{' '.join(words)!r} is {format_count(len(words), 'word')}; a line must "
                "name a host and its rack, such as 'node7 rack2', be blank, or be a # comment"
            )
            raise ArtifactError(source, reason, f"line {number}")
        host, rack = words
        if rack_of.setdefault(host, rack) != rack:
            reason = (
                f"host {host!r} is in rack {rack!r} here and in {rack_of[host]!r} on line "
                f"{line_of[host]}; a host must be in one rack, so leave out one of the lines"
            )
            raise ArtifactError(source, reason, f"line {number}")
        line_of.setdefault(host, number)
    return rack_of


def groups_of(rack_of: Mapping[str, str], hosts: Sequence[str], source: object) -> Groups:
    """Return the hosts of each rack, of those that ``hosts`` names.

    Args:
        rack_of: the rack of each host; of more hosts than the job has, if need be.
        hosts: host name of every rank; at least one.
        source: what to call the table in errors.

    Raises:
        ArtifactError: it lacks a host.
    """
    names = list(dict.fromkeys(hosts))
    missing = [name for name in names if name not in rack_of]
    if missing:
        reason = (
            f"no line for {_listed(missing)}; every host of the job must have a line "
            f"'host rack', by the name that `hostname` prints there; known: {_listed(rack_of)}"
        )
        raise ArtifactError(source, reason)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(rack_of[name], []).append(name)
    return tuple(map(tuple, groups.values()))


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MOST_NAMED
    shown = ", ".join(every[:_MOST_NAMED]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown

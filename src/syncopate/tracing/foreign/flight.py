"""Flight recorder: the last collectives of a rank, as torch keeps them for every backend.

torch notes each collective when it is launched. With NCCL it also notes when its watchdog found it
done, which is up to a tenth of a second late, and how long it ran where
``TORCH_NCCL_ENABLE_TIMING=1``; with Gloo nothing is noted but the launch. Format: version 2 of
``torch/csrc/distributed/c10d/FlightRecorder.hpp``, as JSON or as a pickle of plain values.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

from syncopate.artifacts.cluster import MAX_RANKS
from syncopate.artifacts.timeline import Group
from syncopate.errors import ArtifactError
from syncopate.tracing.foreign.chrome.names import collective_of
from syncopate.tracing.foreign.ranktrace import Launch, RankTrace, Work, are_integers, nbytes_of
from syncopate.tracing.foreign.recording.recorded import RecordedRank
from syncopate.tracing.foreign.turns import forwards_and_backwards

TOOL = "torch's flight recorder"
BETWEEN_STEPS = "input, forward, backward"
"""What a rank does from a step to its last collective, where nothing tells these three apart."""

_FIELDS = {"pg_config": dict, "entries": list}
"""The fields of a dump that are read, and what each is."""

_RANK_IN_NAME = re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles numbers, texts, lists and dictionaries, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def unpickled(data: bytes, path: str | os.PathLike[str]) -> Any:
    """Return the plain values of a pickle.

    Raises:
        ArtifactError: it is damaged, or holds more than plain values, which could run code.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle raises errors of any kind
        reason = f"not a pickle of plain values, as torch's flight recorder writes it: {error}"
        raise ArtifactError(path, reason) from None


def is_dump(document: Mapping[str, Any]) -> bool:
    """Say whether a document is a dump of the flight recorder."""
    return {"entries", "version", "pg_config"} <= document.keys()


def read_dump(document: Mapping[str, Any], path: str | os.PathLike[str]) -> RankTrace:
    """Return the rank of a dump that torch itself wrote.

    Args:
        document: the dump.
        path: its file, whose name ends in the rank, as ``nccl_trace_rank_3`` or ``fr-3.json``: a
            dump does not say whose it is.

    Raises:
        ArtifactError: the name does not say it, or a field is not what version 2 says.
    """
    found = _RANK_IN_NAME.search(os.path.basename(path))
    if found is None or int(found[1]) >= MAX_RANKS:
        reason = "a dump of torch's flight recorder does not say its rank; end the name in it: fr-3"
        raise ArtifactError(path, reason)
    rank = int(found[1])
    trace = _trace(document, path, RankTrace(rank, 0, TOOL, ()))
    sizes = (len(group.ranks) for group in trace.groups)
    return trace._replace(world_size=max(rank + 1, *sizes, 1))


def read_recorded(
    recorded: RecordedRank, path: str | os.PathLike[str], damage: tuple[str, ...]
) -> RankTrace:
    """Return the rank of a training of plain torch that was recorded.

    Args:
        recorded: what it did.
        path: its file.
        damage: what of the file is damaged and left out, a sentence each.

    Raises:
        ArtifactError: a field of the flight recorder is not what version 2 says.
    """
    work = tuple(Work(s.name, "update", s.start_ns, s.end_ns) for s in recorded.steps)
    counting = [step for step in recorded.steps if step.optimizer == 0]
    marks = tuple((step.start_ns, step.number + 1) for step in counting)
    if counting and counting[0].number:
        marks = ((0, counting[0].number), *marks)
    rank = RankTrace(recorded.rank, recorded.world_size, TOOL, (), work, marks, host=recorded.host)
    trace = _trace(recorded.flight_recorder, path, rank)
    if recorded.forwards:
        found = forwards_and_backwards(trace, recorded.forwards, recorded.backwards)
    else:
        found = _between_steps(trace)
    return trace._replace(work=(*work, *found), notes=damage)


def _between_steps(trace: RankTrace) -> Iterator[Work]:
    """Yield what a rank did from a step to its last collective before the next: its own work."""
    launched_ns = [one.start_ns for one in trace.launches]
    work = sorted(trace.work, key=lambda one: one.start_ns)
    begins_ns = [one.start_ns for one in work]
    until_ns = list(accumulate((one.end_ns for one in work), max))
    for (before_ns, _), (now_ns, _) in pairwise(trace.marks):
        first, behind = bisect_right(launched_ns, before_ns), bisect_left(launched_ns, now_ns)
        done = bisect_left(begins_ns, launched_ns[first]) if first < behind else 0
        if done and until_ns[done - 1] < launched_ns[behind - 1]:
            yield Work(BETWEEN_STEPS, "backward", until_ns[done - 1], launched_ns[behind - 1])


def _trace(document: Mapping[str, Any], path: str | os.PathLike[str], rank: RankTrace) -> RankTrace:
    version = str(document.get("version", ""))
    if version.partition(".")[0] != "2":
        reason = f"version {version!r} of torch's flight recorder; expected 2"
        raise ArtifactError(path, reason, "$.version")
    launches, numbers = [], []
    config, entries = (_field(document, *field, path) for field in _FIELDS.items())
    groups = {str(name): _group(str(name), one) for name, one in config.items()}
    for index, entry in enumerate(entries):
        try:
            launches.append(_launch(entry, groups))
            numbers.append(int(entry["record_id"]))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"not an entry of torch's flight recorder: {error!r}"
            raise ArtifactError(path, reason, f"$.entries[{index}]") from None
    launches.sort(key=lambda launch: launch.start_ns)
    return rank._replace(
        launches=tuple(_numbered(launches)),
        lost=min(numbers, default=0),
        groups=tuple(groups.values()),
    )


def _field(document: Mapping[str, Any], name: str, kind: type, path: str | os.PathLike[str]) -> Any:
    found = document.get(name)
    if not isinstance(found, kind):
        reason = f"not a dump of torch's flight recorder: {name} is not a {kind.__name__}"
        raise ArtifactError(path, reason, f"$.{name}")
    return found


def _group(name: str, about: Any) -> Group:
    """Return a group as torch describes it: its ranks are a text."""
    if not isinstance(about, dict):
        return Group(name=name)
    ranks = tuple(int(one) for one in re.findall(r"\d+", str(about.get("ranks", ""))))
    return Group(name=name, ranks=ranks, description=str(about.get("desc", "")))


def _numbered(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Tell apart the collectives of one batch, which share its number."""
    seen: Counter[Hashable] = Counter()
    for launch in launches:
        if launch.key is None:
            yield launch
            continue
        yield launch._replace(key=(launch.key, seen[launch.key]))
        seen[launch.key] += 1


def _launch(entry: Mapping[str, Any], groups: Mapping[str, Group]) -> Launch:
    kind = str(entry["profiling_name"]).partition(":")[2].partition(" ")[0]
    name, description = (str(one) for one in entry["process_group"])
    group = groups.get(name)
    if group is None:  # that of all ranks has a name of its own in the configuration
        ranks = groups[""].ranks if description == "default_pg" and "" in groups else ()
        group = Group(name=name, ranks=ranks, description=description)
    done = entry.get("time_discovered_completed_ns") or None
    took_ms = entry.get("duration_ms")
    nbytes = sum(
        nbytes_of(shape, dtype)
        for shape, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    )
    start_ns = int(entry["time_created_ns"])
    return Launch(
        None if entry["is_p2p"] else (group.key, int(entry["collective_seq_id"])),
        collective_of(kind) or kind.lower(),
        group,
        start_ns,
        None if done is None else max(int(done), start_ns),
        nbytes,
        None if took_ms is None else round(float(took_ms) * 1e6),
        str(entry["profiling_name"]),
        integers=are_integers(entry["input_dtypes"]),
    )

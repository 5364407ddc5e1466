"""Files as other tools write them, made by hand: their facts, and nothing else."""

from __future__ import annotations

import json

EPOCH_NS = 1_795_000_000_000_000_000
MS = 1_000_000


def entry(number, at_ms, elements, **other):
    """Return an entry of the flight recorder: an all-reduce of floats."""
    return {
        "collective_seq_id": number,
        "duration_ms": None,
        "input_dtypes": ["Float"],
        "input_sizes": [[elements]],
        "is_p2p": False,
        "op_id": number,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "record_id": number - 1,
        "time_created_ns": EPOCH_NS + round(at_ms * MS),
        "time_discovered_completed_ns": 0,
    } | other


def dump(entries, ranks=2):
    """Return a dump of the flight recorder."""
    group = {"desc": "", "name": "", "ranks": str(list(range(ranks)))}
    return {"version": "2.10", "pg_config": {"": group}, "entries": entries}


def recorded(rank, entries, steps, *, host="one", world_size=2, first=0):
    """Return what ``syncopate record`` writes; steps are ``(start, end)`` in milliseconds."""
    return {
        "kind": "recorded rank",
        "schema_version": 1,
        "rank": rank,
        "world_size": world_size,
        "host": host,
        "torch": "2.13.0",
        "steps": [
            {
                "optimizer": 0,
                "name": "SGD",
                "number": first + number,
                "start_ns": EPOCH_NS + round(start * MS),
                "end_ns": EPOCH_NS + round(end * MS),
            }
            for number, (start, end) in enumerate(steps)
        ],
        "flight_recorder": dump(entries, world_size),
    }


def profile(rank, events, *, world_size=2, host="one"):
    """Return a trace of torch.profiler; events are ``(cat, name, start, end, args)`` in ms."""
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world_size},
        "host_name": host,
        "baseTimeNanoseconds": EPOCH_NS,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {}},
            *(
                {
                    "ph": "X",
                    "cat": cat,
                    "name": name,
                    "pid": 1,
                    "tid": 1,
                    "ts": start * 1000,
                    "dur": (end - start) * 1000,
                    "args": args,
                }
                for cat, name, start, end, args in events
            ),
        ],
    }


def write(folder, prefix, documents):
    """Write one JSON file of each rank; return the paths."""
    paths = [folder / f"{prefix}{rank}.json" for rank in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def times_ms(timeline, name, iteration):
    """Return the start and end of a span of each rank that has it, in milliseconds."""
    return {
        span.rank: (round(span.start_s * 1e3, 3), round(span.end_s * 1e3, 3))
        for span in timeline.spans
        if (span.name, span.iteration) == (name, iteration)
    }


def notes(timeline):
    """Return what a timeline says that it does not know."""
    return [text for key, text in timeline.metadata.items() if key.startswith("note: ")]

"""Files for other tools, opened by the tools themselves: what they read of a real run, and ours.

A run that was captured or recorded is converted to files for HolisticTraceAnalysis, for Chakra and
for Perfetto, in a temporary folder. The first is asked for overlap and idle time. The second is
decoded by the classes that protoc makes of Chakra's own schema, which ``--schema`` names. The third
is asked for counts in SQL, where its trace processor can be had; where it cannot, the rules of its
format are checked event by event. A reader that is missing is said, with the reason.

Without a run, examples/train.py is captured on two ranks first.

    python benchmarks/readers.py --python readers/bin/python --schema et_def.proto
    python benchmarks/readers.py runs/a --python readers/bin/python --json readers.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from syncopate.analysis.collectives import collectives
from syncopate.analysis.phases import COMMUNICATION, COMPUTATION, phases
from syncopate.artifacts.timeline import Timeline
from syncopate.output import write_output
from syncopate.runs.reading import read
from syncopate.tracing.foreign.exports.chakra import to_chakra
from syncopate.tracing.foreign.exports.hta import to_hta
from syncopate.tracing.perfetto import to_perfetto

HTA = """
    import importlib.metadata, inspect, json, sys
    from hta.trace_analysis import TraceAnalysis
    analysis = TraceAnalysis(trace_dir=sys.argv[1])

    failed = {}
    queues = analysis.get_queue_length_time_series()
    for name in [name for name in dir(analysis) if name.startswith("get_")]:
        call = getattr(analysis, name)
        known = inspect.signature(call).parameters
        given = {
            "visualize": False,
            "show_idle_interval_stats": True,
            "operator_name": "autograd::engine::evaluate_function: backward",
            "output_dir": sys.argv[1] + "/sequences",
            "queue_length_dict": queues,
            "time_series": queues,
        }
        given = {key: value for key, value in given.items() if key in known}
        if name == "get_gpu_kernels_with_user_annotations":
            given["rank"] = 0
        try:
            call(**given)
        except Exception as error:
            failed[name] = repr(error)

    kernels = analysis.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records")
    idle, _ = analysis.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=True)
    queue = analysis.get_queue_length_summary()
    overlap = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    times = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    print(json.dumps({
        "version": importlib.metadata.version("HolisticTraceAnalysis"),
        "overlap_percent": {row["rank"]: row["comp_comm_overlap_pctg"] for row in overlap},
        "idle_us": {row["rank"]: row["idle_time(us)"] for row in times},
        "compute_us": {row["rank"]: row["compute_time(us)"] for row in times},
        "failed": failed,
        "communication_us": sum(
            row["sum"] for row in kernels if "COMMUNICATION" in row["kernel_type"]
        ),
        "least_idle_ratio": float(idle["idle_time_ratio"].min()),
        "steps": [int(step) for step in analysis.get_profiler_steps()],
        "stragglers": [int(rank) for rank in analysis.get_potential_stragglers()],
        "least_queue": float(queue["queue_length"]["min"].min()),
    }))
"""

CHAKRA = """
    import collections, importlib.metadata, json, pathlib, sys, tempfile
    from grpc_tools import protoc
    schema = pathlib.Path(sys.argv[2]).resolve()
    made = tempfile.mkdtemp()
    assert protoc.main(["", f"-I{schema.parent}", f"--python_out={made}", str(schema)]) == 0
    sys.path.insert(0, made)
    import et_def_pb2
    from google.protobuf.internal.decoder import _DecodeVarint32

    def messages(data):
        at = 0
        while at < len(data):
            length, at = _DecodeVarint32(data, at)
            yield data[at:at + length]
            at += length

    ranks = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.et")):
        first, *rest = messages(path.read_bytes())
        metadata = et_def_pb2.GlobalMetadata.FromString(first)
        nodes = [et_def_pb2.Node.FromString(one) for one in rest]
        known = {node.id for node in nodes}
        assert all(set(node.data_deps) <= known for node in nodes), "an unknown node"
        ranks[path.name.split(".")[-2]] = {
            "schema": metadata.version,
            "nodes": dict(collections.Counter(et_def_pb2.NodeType.Name(n.type) for n in nodes)),
            "comm_bytes": sum(
                a.int64_val for n in nodes for a in n.attr if a.name == "comm_size"
            ),
            "duration_us": sum(
                n.duration_micros for n in nodes if n.type == et_def_pb2.COMP_NODE
            ),
        }
    print(json.dumps({"protobuf": importlib.metadata.version("protobuf"), "ranks": ranks}))
"""

PERFETTO = """
    import importlib.metadata, json, sys
    from perfetto.trace_processor import TraceProcessor
    processor = TraceProcessor(trace=sys.argv[1])
    def ask(query):
        return [list(vars(row).values()) for row in processor.query(query)]
    print(json.dumps({
        "version": importlib.metadata.version("perfetto"),
        "slices": ask("select count(*) as n from slice")[0][0],
        "by_category": dict(ask("select category, count(*) as n from slice group by category")),
        "flows": ask("select count(*) as n from flow")[0][0],
        "errors": ask("select name, value from stats where severity = 'error' and value > 0"),
    }))
"""


def read_by(python: str, script: str, *arguments: str | Path) -> dict[str, Any]:
    """Return what a reader read, or why it did not."""
    done = subprocess.run(
        [python, "-c", textwrap.dedent(script), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"not_read": re.sub(r"'/\S+/", "'", " ".join(lines[-1].split()))}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def figures_of(timeline: Timeline) -> dict[str, Any]:
    """Return what readers are to find, by our own formulas: of each rank over the whole run."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for one in phases(timeline):
        found[one.rank]["hidden_s"] += one.overlapped_s
        found[one.rank]["communication_s"] += one.communication_s
    for span in timeline.spans:
        if span.lane in COMMUNICATION:
            found[span.rank]["bytes"] += span.nbytes
            found[span.rank]["messages"] += 1
        elif span.lane in COMPUTATION:
            found[span.rank]["compute_us"] += (span.end_s - span.start_s) * 1e6
    rows = sorted(found.items())
    return {
        "overlap_percent": {r: 100 * m["hidden_s"] / m["communication_s"] for r, m in rows},
        "compute_us": {r: round(m["compute_us"]) for r, m in rows},
        "comm_bytes": {r: m["bytes"] for r, m in rows},
        "messages": {r: m["messages"] for r, m in rows},
    }


def rules_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return how often each rule of Chrome's JSON is kept and broken, event by event."""
    events = document["traceEvents"]
    broken: Counter[str] = Counter()
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    flows: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            broken["X has ts and dur, both >= 0"] += not (event["ts"] >= 0 and event["dur"] >= 0)
            start = round(event["ts"] * 1000)
            end = round((event["ts"] + event["dur"]) * 1000)
            stack = stacks[event["pid"], event["tid"]]
            while stack and stack[-1] <= start:
                stack.pop()
            broken["X nests within its thread"] += bool(stack) and end > stack[-1]
            stack.append(end)
            broken["threads have names"] += (event["pid"], event["tid"]) not in named
        elif event["ph"] in "sf":
            flows[event["id"]].append(event["ph"])
            broken["ids of flows are integers"] += not isinstance(event["id"], int)
            broken['f has "bp": "e"'] += event["ph"] == "f" and event.get("bp") != "e"
    broken["flows begin and end"] += sum(phases != ["s", "f"] for phases in flows.values())
    return {
        "events": dict(Counter(event["ph"] for event in events)),
        "broken": dict(broken),
        "flows": len(flows),
    }


def main() -> None:
    """Convert, have it read, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", type=Path, help="directory of a run, or a timeline")
    parser.add_argument("--python", default=sys.executable, help="a Python that has the readers")
    parser.add_argument("--schema", type=Path, default=Path("et_def.proto"), help="Chakra's")
    parser.add_argument("--last", type=int, default=20, help="iterations to convert")
    parser.add_argument("--json", type=Path, help="where to write what was read")
    parser.add_argument("--quick", action="store_true", help="accepted as every benchmark does")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or capture(Path(folder) / "train")
        timeline = read(run, last=arguments.last).of_ranks().timeline
    found = read_all(timeline, arguments.python, arguments.schema)
    print(json.dumps(found, indent=1))
    if arguments.json:
        write_output(arguments.json, json.dumps(found, indent=1).encode() + b"\n")


def capture(directory: Path) -> Path:
    """Train on two ranks, and return the directory of the run."""
    script = Path(__file__).parents[1] / "examples" / "train.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script), "--epochs", "2"],
        check=True,
        stdout=sys.stderr,
        env=os.environ | {"SYNCOPATE_TRACE": str(directory)},
    )
    return directory


def read_all(timeline: Timeline, python: str, schema: Path) -> dict[str, Any]:
    """Return what was written of a timeline, and what each reader read."""
    kinds = {span: kind for kind, spans in collectives(timeline) for span in spans}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (to_hta(timeline, kinds) | to_chakra(timeline, kinds)).items():
            below = Path(folder) / ("chakra" if name.endswith(".et") else "hta")
            write_output(below / name, content)
        perfetto = write_output(Path(folder) / "perfetto.json", to_perfetto(timeline))
        rules = rules_of(json.loads(perfetto.read_bytes()))
        read = {
            "hta": read_by(python, HTA, Path(folder) / "hta"),
            "chakra": read_by(python, CHAKRA, Path(folder) / "chakra", schema.resolve()),
            "perfetto": read_by(python, PERFETTO, perfetto),
        }
    return {
        "run": {"ranks": timeline.world_size, "spans": len(timeline.spans)},
        "written": {
            "spans_by_lane": dict(Counter(span.lane for span in timeline.spans)),
            **figures_of(timeline),
            "perfetto_rules": rules,
        },
        "read": read,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()

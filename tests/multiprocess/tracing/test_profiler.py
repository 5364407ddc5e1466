"""A plain DDP script over Gloo under torch.profiler; one rank slow in its backward."""

from __future__ import annotations

import subprocess
import sys

from syncopate.analysis.causes.explanation import explanation
from syncopate.artifacts.plan import Plan
from syncopate.artifacts.workload import Workload
from syncopate.tracing.foreign import read_timeline
from tests.children import HANGS_S, environment, run_command
from tests.multiprocess.tracing.test_record import MODEL, SLEEP_S

ITERATIONS = 6

SCRIPT = f"""{MODEL}
if __name__ == "__main__":
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("gloo")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        train({ITERATIONS})
    trace = f"{{sys.argv[1]}}/rank{{dist.get_rank()}}.json.gz"
    if dist.get_rank() == 0:
        import syncopate

        syncopate.recorded_workload(profiler, trace=trace).save(f"{{sys.argv[1]}}/own.json")
    else:
        profiler.export_chrome_trace(trace)
    dist.destroy_process_group()
"""


def test_a_profile_of_plain_ddp_is_explained(tmp_path):
    """Gloo tells the profiler nothing of a collective but its name and shapes."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", str(script), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=HANGS_S, env=environment())
    timeline = read_timeline(sorted(tmp_path.glob("rank*.json.gz")))
    assert {span.iteration for span in timeline.spans} == set(range(ITERATIONS))
    for iteration in range(1, ITERATIONS):
        names = [
            span.name
            for span in timeline.spans
            if (span.iteration, span.rank, span.lane) == (iteration, 0, "push")
        ]
        assert sorted(names) == ["bucket 0", "bucket 1"]
    sizes = {s.nbytes for s in timeline.spans if s.lane == "push" and s.iteration > 0}
    assert sizes == {4 * (256 * 256 + 256)}
    cause = explanation(timeline).causes[0]
    assert (cause.kind, cause.ranks, cause.lane) == ("compute", (1,), "backward")
    assert 0.8 * SLEEP_S < cause.gain_s < 1.2 * SLEEP_S
    _plan_without_a_change_of_the_script(tmp_path, timeline)


def _plan_without_a_change_of_the_script(folder, timeline):
    """From the trace by commands to a workload, a plan and other networks; and by one call."""
    convert = "convert rank0.json.gz rank1.json.gz --to workload -o workload.json"
    run(*convert.split(), folder=folder)
    work = Workload.load(folder / "workload.json")
    assert work.nbytes == 2 * 4 * (256 * 256 + 256)
    layer = ["256", "256x256"]
    assert [tensor.name for tensor in work.tensors] == [
        f"gradient {number} ({shape})" for number, shape in enumerate(layer * 2)
    ]
    ready_s = work.ready_s
    assert (
        work.forward_s
        < ready_s[0]
        < ready_s[1]
        < ready_s[2]
        < ready_s[3]
        <= (work.forward_s + work.backward_s)
    )
    mine = [span for span in timeline.spans if span.rank == 0 and span.iteration > 0]
    assert 0 < work.forward_s < max(s.duration_s for s in mine if s.lane == "forward")
    assert 0 < work.tensors[0].backward_s < work.backward_s
    assert work.update_s > 0
    told = ("-w", "workload.json", "--network", "1gbe", "--nodes", "4")
    run("plan", *told, folder=folder)
    assert Plan.load(folder / "plan.json").fingerprint == work.fingerprint
    run("whatif", "workload.json", "--network", "1gbe", "--nodes", "4,8", folder=folder)
    own = Workload.load(folder / "own.json")
    assert own.fingerprint == work.fingerprint
    assert own.metadata["ranks"] == "2"


def run(*line, folder):
    """Run a command of ours in a folder; return what it printed."""
    done = run_command(" ".join(line), folder)
    assert done.returncode == 0, done.stderr
    return done.stdout

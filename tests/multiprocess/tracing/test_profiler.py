"""A plain DDP script over Gloo under torch.profiler; one rank slow in its backward."""

from __future__ import annotations

import subprocess
import sys

from syncopate.analysis.causes.explanation import explanation
from syncopate.tracing.foreign import read_timeline
from tests.children import HANGS_S, environment
from tests.multiprocess.tracing.test_record import MODEL, SLEEP_S

ITERATIONS = 6

SCRIPT = f"""{MODEL}
if __name__ == "__main__":
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("gloo")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        train({ITERATIONS})
    profiler.export_chrome_trace(f"{{sys.argv[1]}}/rank{{dist.get_rank()}}.json.gz")
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

"""The example's whole training: with DDP, with Syncopate for the first time, and the next time.

    python benchmarks/example_total.py                    # 506 steps on 4 ranks, three turns
    python benchmarks/example_total.py --rounds 1 --json example_total.json
    python benchmarks/example_total.py --rounds 1 --short 12     # how a training begins

``examples/train.py`` runs as a user runs it, without options of its own but the number of epochs,
in turns: with ``--ddp``; with an empty cache, so that self-planning measures; and with the cache
that the run before filled. Times count from before the model is built and wrapped, testing after
each epoch included. What is printed is the median over turns after some numbers of steps; the time
to start Python and torch, alike for all, is left out. After each turn of all three come short ones
of DDP and of the plan that was kept, in turns: which one leads from the first step.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import syncopate
from syncopate.output import write_output

EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
DDP, FIRST, NEXT = "DDP", "first run", "next run"
_LINE = re.compile(r"(\d+) steps in ([\d.]+) s")
_SHOWN = (1, 2, 5, 10, 20, 30)
_SHORT_EPOCHS = 5


Samples = dict[str, list[dict[int, float]]]
"""How -> of each turn the seconds by steps done."""


def environment(cache: Path) -> dict[str, str]:
    """Return what the runs see; bytecode of this package is kept, as that of torch is."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"SYNCOPATE_CACHE": str(cache)}


def train(ranks: int, epochs: int, how: str, cache: Path) -> tuple[dict[int, float], str]:
    """Run the example once; return seconds by steps done, and what Syncopate said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(EXAMPLE), "--epochs"]
    command += [str(epochs), *(["--ddp"] if how == DDP else [])]
    done = subprocess.run(
        command,
        env=environment(cache),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{how} ended with {done.returncode}:\n{done.stderr}")
    said = [line for line in done.stderr.splitlines() if line.startswith("syncopate: ")]
    return {int(steps): float(s) for steps, s in _LINE.findall(done.stdout)}, "\n".join(said)


def tell(samples: Samples) -> None:
    """Print medians after some epochs and after the last."""
    steps = sorted(samples[DDP][0])
    shown = [steps[epoch - 1] for epoch in _SHOWN if epoch < len(steps)] + steps[-1:]
    print(f"{'steps':>6s}" + "".join(f"{name:>12s}{'':7s}" for name in samples))
    for count in shown:
        medians_s = {
            n: statistics.median(run[count] for run in runs) for n, runs in samples.items()
        }
        cells = (f"{s:10.2f} s{medians_s[DDP] / s:6.2f}x" for s in medians_s.values())
        print(f"{count:6d}" + " ".join(cells))


def main() -> int:
    """Run all three in turns."""
    parser = argparse.ArgumentParser(description="The example's whole training, three ways.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=46, help="of 11 steps on four ranks")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--short", type=int, default=4, help="short turns after each of these")
    parser.add_argument("--quick", action="store_true", help="one short turn, to see that it runs")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    options = parser.parse_args()
    # As the installation of a package does.
    compileall.compile_dir(Path(syncopate.__file__).parent, quiet=1)
    if options.quick:
        options.rounds, options.epochs, options.short = 1, 12, 1
    samples: Samples = {DDP: [], FIRST: [], NEXT: []}
    short: Samples = {DDP: [], NEXT: []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for how, runs in samples.items():
                seconds, said = train(options.ranks, options.epochs, how, Path(folder))
                runs.append(seconds)
                print(f"{how}: {max(seconds.values()):.2f} s\n{said}".rstrip(), flush=True)
            for _ in range(options.short):
                for how, runs in short.items():
                    runs.append(train(options.ranks, _SHORT_EPOCHS, how, Path(folder))[0])
        if options.json:
            # Turn by turn: a run that fails later takes nothing away.
            found = {"ranks": options.ranks, "epochs": options.epochs, "seconds_by_steps": samples}
            found["short_seconds_by_steps"] = short
            write_output(options.json, json.dumps(found, indent=1).encode() + b"\n")
    tell(samples)
    if options.short:
        print(f"\nMedians of {options.rounds * options.short} short turns:")
        tell(short)
    return 0


if __name__ == "__main__":
    sys.exit(main())

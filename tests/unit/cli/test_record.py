"""``syncopate record`` without ranks: the script runs as it would by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from syncopate.cli import main
from syncopate.tracing.foreign.recording.record import BUFFER_SIZE
from syncopate.tracing.foreign.recording.recorded import RecordedRank
from tests.children import HANGS_S

STEPS = """
import sys
import torch

weight = torch.zeros(2, requires_grad=True)
optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.AdamW([weight])]
for _ in range(3):
    weight.sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


@pytest.fixture
def record(monkeypatch, capfd, tmp_path):
    """Run the command on a script of these lines; return exit code, output, errors."""
    for name in ("RANK", "WORLD_SIZE", BUFFER_SIZE):
        monkeypatch.setenv(name, "0")  # so that it is put back as it was
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(text, *options, arguments=()):
        (tmp_path / "job.py").write_text(text)
        script = "job" if "-m" in options else "job.py"
        monkeypatch.setattr(sys, "argv", ["syncopate", "record", *options, script, *arguments])
        code = main()
        told = capfd.readouterr()
        return code, told.out, told.err

    return run


def test_a_script_is_main_and_has_its_arguments_and_folder(record, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    text = "import sys, beside\nprint(__name__, sys.argv, beside.WORD)"
    (tmp_path / "traces").mkdir()
    for options, name in (((), "job.py"), (("-m",), str(tmp_path / "job.py"))):
        code, out, err = record(text, *options, arguments=("--lr", "0.1", "-o", "x"))
        assert code == 0
        assert out == f"__main__ {[name, '--lr', '0.1', '-o', 'x']} beside\n"
        assert err == "wrote traces/rank-0.json\n"
        sys.modules.pop("beside")


@pytest.mark.parametrize("line", ["python job.py", "/usr/bin/python3.11 -m job", "job.py"])
def test_python_before_a_script_changes_nothing(record, tmp_path, line, monkeypatch, capfd):
    record("print(__name__)")
    monkeypatch.setattr(sys, "argv", ["syncopate", "record", *line.split()])
    assert main() == 0
    assert capfd.readouterr().out == "__main__\n"


def test_steps_of_every_optimizer_are_noted(record):
    assert record(STEPS)[0] == 0
    found = RecordedRank.load("traces/rank-0.json")
    assert (found.rank, found.world_size) == (0, 1)
    assert [(step.optimizer, step.name, step.number) for step in found.steps] == [
        (optimizer, name, number)
        for number in range(3)
        for optimizer, name in enumerate(("SGD", "AdamW"))
    ]
    assert all(step.start_ns <= step.end_ns for step in found.steps)
    assert found.flight_recorder["version"].startswith("2.")


def test_torch_is_told_how_many_collectives_it_holds(record, capfd):
    told = record(f"import os\nprint(os.environ['{BUFFER_SIZE}'])", "--entries", "7")[1]
    assert told == "7\n"


def test_what_was_written_stays_where_the_process_is_killed(tmp_path):
    """The script waits until its first steps are on the disk, and kills itself."""
    text = STEPS + textwrap.dedent("""
        import os, pathlib, signal, time
        path = pathlib.Path("traces/rank-0.json")
        while not path.exists() or path.read_bytes().count(b'"number":2,"start_ns"') < 2:
            time.sleep(0.05)
        weight.sum().backward()
        optimizers[0].step()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    (tmp_path / "job.py").write_text(text)
    line = [sys.executable, "-m", "syncopate", "record", "job.py"]
    ended = subprocess.run(line, cwd=tmp_path, timeout=HANGS_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    found, damage = RecordedRank.whole((tmp_path / "traces" / "rank-0.json").read_bytes())
    assert [step.number for step in found.steps] == [0, 0, 1, 1, 2, 2]
    assert damage == ()


def test_processes_that_load_data_write_nothing_and_cost_nothing(tmp_path):
    """They are copies of the process that is recorded, made while it is."""
    text = STEPS + textwrap.dedent("""
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.ones(8, 2))
        for _ in DataLoader(data, 2, num_workers=2, multiprocessing_context="fork"):
            (weight.sum() ** 2).backward()
            optimizers[0].step()
    """)
    (tmp_path / "job.py").write_text(text)
    line = [sys.executable, "-m", "syncopate", "record", "job.py"]
    ended = subprocess.run(line, cwd=tmp_path, timeout=HANGS_S, check=False)
    assert ended.returncode == 0
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["rank-0.json"]
    steps = RecordedRank.load(tmp_path / "traces" / "rank-0.json").steps
    assert [step.number for step in steps if step.optimizer == 0] == [*range(7)]


@pytest.mark.parametrize(
    ("ending", "code", "told"), [("sys.exit(7)", 7, ""), ("sys.exit('no data')", 1, "no data\n")]
)
def test_the_scripts_ending_is_the_commands(record, ending, code, told):
    ended, _, err = record(f"import sys\n{ending}")
    assert (ended, err) == (code, f"{told}wrote traces/rank-0.json, in the new folder traces\n")


def test_a_script_that_fails_is_kept_and_its_error_passes(record, tmp_path):
    with pytest.raises(ZeroDivisionError):
        record("1 / 0")
    assert (tmp_path / "traces" / "rank-0.json").exists()


def test_hooks_are_gone_afterwards(record):
    record(STEPS)
    before = RecordedRank.load("traces/rank-0.json")
    record("")
    assert len(before.steps) == 6
    assert RecordedRank.load("traces/rank-0.json").steps == ()


def test_what_cannot_be_run_is_refused(record, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(sys, "argv", ["syncopate", "record", "none.py"])
    assert main() == 2
    assert "SCRIPT is 'none.py'; it must be a Python file" in capfd.readouterr().err
    assert not (tmp_path / "traces").exists()
    code, _, err = record("", "--entries", "0")
    assert (code, "--entries is '0'; it must be an integer >= 1" in err) == (2, True)
    monkeypatch.setenv("WORLD_SIZE", "many")
    code, _, err = record("")
    assert (code, "WORLD_SIZE is 'many'; it must be a number" in err) == (2, True)

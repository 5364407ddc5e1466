from __future__ import annotations

import os

import pytest

from syncopate.errors import ArtifactError, SyncopateError, UnknownNameError
from syncopate.lab import kernel, launch, state, support
from syncopate.lab.topology import Topology


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Records and namespaces in a temporary folder: no privileges needed."""
    namespaces = tmp_path / "netns"
    namespaces.mkdir()
    monkeypatch.setattr(state, "FOLDER", tmp_path / "labs")
    monkeypatch.setattr(state, "NAMESPACES", namespaces)
    monkeypatch.setattr(state, "remove_namespace", lambda name: (namespaces / name).unlink())
    return namespaces


def test_a_lab_is_running_while_its_owner_holds_the_lock(folders):
    topology = Topology(hosts=3)
    lock = state.record("00000a", topology)
    ((lab, status),) = state.recorded()
    assert status == "running"
    assert (lab.owner_pid, lab.topology) == (os.getpid(), topology)
    assert state.clean() == []
    os.close(lock)
    assert [status for _, status in state.recorded()] == ["dead"]
    hosts = state.hosts_file("00000a").read_text().splitlines()
    assert hosts[:3] == ["127.0.0.1 localhost", "10.0.0.1 host0", "::ffff:10.0.0.1 host0.lab"]
    assert state.clean() == ["00000a"]
    assert list(state.FOLDER.iterdir()) == []


def test_clean_removes_the_dead_and_the_ownerless_alone(folders):
    os.close(state.record("00000a", Topology()))
    os.close(state.record("00000b", Topology(), standing=True))
    lock = state.record("00000c", Topology())
    kept = ["syn00000bh0", "syn00000ch0", "other", "syn-mine"]
    for name in ("syn00000ah0", "syn00000arack0", "syn00000dcore", *kept):
        (folders / name).touch()
    assert state.clean() == ["00000a", "00000d"]
    assert sorted(path.name for path in folders.iterdir()) == sorted(kept)
    assert {lab.run_id: status for lab, status in state.recorded()} == {
        "00000b": "standing",
        "00000c": "running",
    }
    os.close(lock)


def test_a_damaged_record_is_named_and_cleaned(folders):
    os.close(state.record("00000a", Topology(), standing=True))
    state.state_file("00000a").write_text("{")
    with pytest.raises(ArtifactError, match=r"00000a\.json"):
        state.recorded()
    (state.FOLDER / "notes.json").write_text("of another program")
    assert state.clean() == ["00000a"]
    assert [path.name for path in state.FOLDER.iterdir()] == ["notes.json"]


def test_a_standing_lab_is_found_by_name_or_when_it_is_the_only_one(folders):
    with pytest.raises(SyncopateError, match="no standing lab; make one"):
        state.standing(None)
    with pytest.raises(UnknownNameError, match="make one with `lab up`"):
        state.standing("00000a")
    os.close(state.record("00000a", Topology(), standing=True))
    assert state.standing(None).run_id == "00000a"
    os.close(state.record("00000b", Topology(), standing=True))
    with pytest.raises(SyncopateError, match="name one of 00000a, 00000b"):
        state.standing(None)
    assert state.standing("00000b").run_id == "00000b"
    with pytest.raises(UnknownNameError, match="unknown lab '00000c'; known: 00000a, 00000b"):
        state.standing("00000c")


def test_a_record_that_cannot_be_written_is_an_error_for_people(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(state, "FOLDER", tmp_path / "file" / "labs")
    with pytest.raises(SyncopateError, match="cannot record the lab in"):
        state.record("00000a", Topology())


def test_a_lab_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(support, "_has_capabilities", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SyncopateError, match=r"CAP_SYS_ADMIN and CAP_NET_ADMIN.*sudo"):
        support.require()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SyncopateError, match=r"--privileged"):
        support.require()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SyncopateError, match=r"a lab needs Linux .* and this is darwin"):
        support.require()


@pytest.mark.parametrize(
    ("code", "hint"),
    [(1, "run it as root"), (2, "modprobe -a veth bridge sch_tbf"), (28, "No space left")],
)
def test_the_kernels_refusals_say_what_to_do(code, hint):
    with (
        pytest.raises(SyncopateError, match=f"cannot make the link of host1: .*{hint}"),
        kernel.explained("make the link of host1"),
    ):
        raise OSError(code, os.strerror(code))


def test_a_launch_onto_a_host_that_is_gone_fails_as_a_shell_would(tmp_path, capfd):
    code = launch.main(["0", str(tmp_path / "gone"), "host1", "/etc/hosts", "true"])
    assert code == launch.CANNOT_EXECUTE
    assert "error: host1: " in capfd.readouterr().err

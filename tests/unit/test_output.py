"""Output: what is replaced and how, what is written through, and what is left as it is."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from syncopate.errors import ArtifactError
from syncopate.output import is_standard_output, require_writable, write_output
from tests.children import HANGS_S
from tests.unit.devices import device


def test_a_new_file_comes_with_its_folders_and_the_usual_permissions(tmp_path):
    path = tmp_path / "new" / "a.json"
    before = os.umask(0o027)
    try:
        assert write_output(path, b"new") == path
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["a.json"]


def test_whoever_reads_the_old_file_reads_it_to_its_end(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old content")
    with path.open("rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        write_output(path, b"new")
        assert reader.read() == b" content"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_old_file_is_there_until_all_of_the_new_one_is_on_disk(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    seen = []

    def sync(descriptor):
        seen.append((path.read_bytes(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    write_output(path, b"newer")
    assert seen == [(b"old", 5)]
    assert path.read_bytes() == b"newer"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch, failure):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail(descriptor):
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((ArtifactError, KeyboardInterrupt)) as raised:
        write_output(path, b"new")
    if isinstance(failure, OSError):
        assert str(raised.value) == f"{path}: cannot write: No space left"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_output(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root may give files")
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    write_output(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *asked: False)  # root may write everything
    with pytest.raises(ArtifactError, match=r"a\.json: cannot write: Permission denied"):
        write_output(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_link_stays_and_the_file_that_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "b.json", tmp_path / "a.json", tmp_path / "c.json"
    target.write_bytes(b"old")
    link.symlink_to(Path("there", "b.json"))
    second.symlink_to(link)
    for path, data in ((link, b"new"), (second, b"newer")):
        write_output(path, data)
        assert target.read_bytes() == data
    assert link.is_symlink()
    assert second.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["a.json", "c.json", "there"]
    assert os.listdir(tmp_path / "there") == ["b.json"]


def test_a_link_to_nothing_makes_the_file(tmp_path):
    link = tmp_path / "a.json"
    link.symlink_to(tmp_path / "there" / "b.json")
    write_output(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "b.json").read_bytes() == b"new"


@pytest.mark.parametrize("linked", [False, True])
def test_devices_are_written_to(tmp_path, linked):
    for name, complaint in (("full", "No space left on device"), ("null", "")):
        made = device(tmp_path, name)
        path = made
        if linked:
            path = tmp_path / f"link to {name}"
            path.symlink_to(made)
        if complaint:
            with pytest.raises(ArtifactError) as raised:
                write_output(path, b"new")
            assert str(raised.value) == f"{path}: cannot write: {complaint}"
        else:
            write_output(path, b"new")
        assert stat.S_ISCHR(made.lstat().st_mode)
        assert path.is_symlink() == linked


def test_a_pipe_carries_it_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"new" * 100_000)
    reader.join(HANGS_S)
    assert read == [b"new" * 100_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("kind", ["folder", "loop", "under a file"])
def test_what_cannot_be_written_is_one_clear_error(tmp_path, kind):
    path = tmp_path / "a"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.write_bytes(b"old")
        path = path / "b.json"
    with pytest.raises(ArtifactError, match=f"{path}: cannot write: ") as before:
        require_writable(path)
    with pytest.raises(ArtifactError) as after:
        write_output(path, b"new")
    assert str(before.value) == str(after.value)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["there", "new", "new/folder/file"])
def test_without_the_right_to_write_it_is_refused_beforehand(tmp_path, monkeypatch, name):
    (tmp_path / "there").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(ArtifactError, match="cannot write: Permission denied"):
        require_writable(tmp_path / name)
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize("name", ["-", "/dev/null", "there", "new", "new/folder/file", "link"])
def test_what_can_be_written_is_left_alone_beforehand(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    Path("link").symlink_to("nothing/yet")
    require_writable(name)
    assert sorted(os.listdir()) == ["link", "there"]


@pytest.mark.parametrize("path", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_in_order(tmp_path, path):
    """Also where it is a file, which to open anew would begin at its start."""
    script = (
        "from syncopate.output import write_output\n"
        "print('before')\n"
        f"write_output({path!r}, b'content\\n')\n"
        "print('after')\n"
    )
    with (tmp_path / "out").open("wb") as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, check=True, cwd=tmp_path)
    assert (tmp_path / "out").read_text() == "before\ncontent\nafter\n"
    assert os.listdir(tmp_path) == ["out"]
    assert is_standard_output(path)


def test_other_names_are_not_standard_output():
    names = [None, "a.json", "/dev/null", "/dev/stderr", "/dev/fd/2", "/dev/fd/12", "./a/-"]
    assert [is_standard_output(name) for name in names] == [False] * len(names)


def test_a_descriptor_handed_down_is_written_to(tmp_path):
    """Such as a shell's process substitution names."""
    read, write = os.pipe()
    try:
        write_output(f"/dev/fd/{write}", b"new")
        assert os.read(read, 10) == b"new"
    finally:
        os.close(read)
        os.close(write)

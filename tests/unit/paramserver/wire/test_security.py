"""Keys: a file of its owner's alone, from which all processes derive the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncopate.errors import ArtifactError
from syncopate.paramserver.wire.security import load_key, make_key


def test_a_key_is_its_owners_alone_and_all_derive_the_same(tmp_path):
    path = tmp_path / "keys" / "job.key"
    make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    one, two = load_key(path), load_key(path)
    assert one == two
    assert one.listener != one.caller
    assert all(len(part) == 40 for pair in one for part in pair)
    make_key(tmp_path / "other.key")
    assert load_key(tmp_path / "other.key") != one
    assert load_key(None) is None


def test_a_key_is_not_replaced_and_not_read_where_others_may_read_it(tmp_path):
    path = tmp_path / "job.key"
    make_key(path)
    with pytest.raises(ArtifactError, match="exists already"):
        make_key(path)
    path.chmod(0o640)
    with pytest.raises(ArtifactError, match="chmod 600"):
        load_key(path)


@pytest.mark.parametrize("text", ["", "syncopate-job-key-1 abc", "syncopate-job-key-2 " + "0" * 64])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / "job.key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(ArtifactError, match="no job key"):
        load_key(path)
    with pytest.raises(ArtifactError, match="cannot read"):
        load_key(tmp_path / "missing.key")


def test_a_device_or_a_long_file_is_not_read_as_a_key(tmp_path):
    with pytest.raises(ArtifactError, match=r"/dev/zero: this is a device"):
        load_key(Path("/dev/zero"))
    path = tmp_path / "job.key"
    path.touch(mode=0o600)
    path.write_text("x" * 5000)
    with pytest.raises(ArtifactError, match=r"longer than 4\.0 KiB"):
        load_key(path)

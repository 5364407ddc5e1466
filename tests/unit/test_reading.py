"""Reading: files unpacked and as UTF-8; what cannot be one of ours is refused."""

from __future__ import annotations

import gzip
import io
import os
import random

import pytest

from syncopate import reading
from syncopate.errors import ArtifactError
from syncopate.units import MIB

TEXT = '{"name": "na\xefve"}'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_encoding_is_read_as_utf8_packed_or_not(tmp_path, encoding, pack):
    path = tmp_path / "a.json"
    path.write_bytes(pack(TEXT.encode(encoding)))
    assert reading.read_whole(path) == TEXT.encode()
    with reading.opened(path) as file:
        assert file.read(3) == b'{"n'
        file.seek(0)
        assert file.read() == TEXT.encode()


def test_what_looks_like_utf16_and_is_none_stays_as_it_is():
    assert reading.as_utf8(b"\xff\xfe\x00") == b"\xff\xfe\x00"


def test_a_device_is_refused():
    with pytest.raises(ArtifactError, match="/dev/zero: this is a device; give a file"):
        reading.read_whole("/dev/zero")


@pytest.mark.parametrize("place", ["/dev/fd", "/proc/self/fd"])
def test_a_pipe_of_the_shell_is_read_to_its_end(place):
    if not os.path.isdir(place):
        pytest.skip(f"no {place} here")
    mine, others = os.pipe()
    try:
        os.write(others, TEXT.encode())
        os.close(others)
        assert reading.read_whole(f"{place}/{mine}") == TEXT.encode()
    finally:
        os.close(mine)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ArtifactError, match="pipe: this is a named pipe and not a regular file"):
        reading.read_whole(pipe)


def test_more_than_the_most_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * 11)
    assert reading.read_whole(path, 11) == b"x" * 11
    with pytest.raises(ArtifactError, match="longer than 10 B, the most that is read"):
        reading.read_whole(path, 10)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("noise_bytes", [0, 2 * MIB])
def test_a_file_that_unpacks_to_far_too_much_is_refused_before_it_does(
    tmp_path, whole, noise_bytes
):
    path = tmp_path / "bomb.gz"
    noise = random.Random(0).randbytes(noise_bytes)
    path.write_bytes(gzip.compress(bytes(96 * MIB), 9) + gzip.compress(noise, 1))
    unpacked: list[int] = []

    def unpack():
        with reading.opened(path) as file:
            while piece := file.read(-1 if whole else MIB):
                unpacked.append(len(piece))

    with pytest.raises(ArtifactError, match="unpacks to more than 100 times its size"):
        unpack()
    assert sum(unpacked) <= 64 * MIB


def _by_text(file):
    with io.TextIOWrapper(file, "latin-1") as text:
        return text.read()


@pytest.mark.parametrize("fault", ["cut off", "damaged"])
@pytest.mark.parametrize("how", [lambda file: file.read(), lambda file: file.read(5000), _by_text])
def test_a_compressed_file_that_is_not_whole_is_refused_as_any_that_cannot_be_read(
    tmp_path, fault, how
):
    packed = gzip.compress(random.Random(0).randbytes(3000))
    path = tmp_path / "a.json"
    path.write_bytes(packed[:-20] if fault == "cut off" else packed[:12] + b"\xff" * 99)
    said = "ended before" if fault == "cut off" else "while decompressing"
    with pytest.raises(OSError, match=said), reading.opened(path) as file:
        how(file)
    refused = pytest.raises(ArtifactError, match=f"cannot be read: .*{said}")
    with refused, reading.readable(path) as file:
        how(file)


def test_a_small_file_may_unpack_to_many_times_its_size(tmp_path):
    path = tmp_path / "blanks.gz"
    path.write_bytes(gzip.compress(bytes(2 * MIB), 9))
    assert path.stat().st_size * 100 < 2 * MIB
    assert len(reading.read_whole(path)) == 2 * MIB

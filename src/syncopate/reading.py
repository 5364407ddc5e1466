"""Reading: files that others wrote, unpacked and as UTF-8, within limits.

What cannot be one of our files is refused before it fills the memory: a device, which never ends; a
pipe that does not end; a compressed file that unpacks to many times what any of ours does. So is a
named pipe: without a writer, what reads it would wait for ever.
Windows writes text with a byte order mark, or as UTF-16; both are read as UTF-8.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from syncopate.errors import ArtifactError
from syncopate.units import GIB, MIB, format_bytes

MOST_BYTES = 4 * GIB
"""Of a file that is read whole, and of what comes through a pipe."""

MOST_TIMES = 100
"""A compressed file unpacks to so many times its size at most. Traces unpack to 10 to 60 times
theirs; blanks to a thousand times."""

_FREE_BYTES = 64 * MIB
"""Any compressed file may unpack to so much."""

_PIECE_BYTES = 4 * MIB
_DESCRIPTORS = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""What a shell calls its pipes, of which it opened the other end: ``/dev/stdin``, ``<(...)``."""

_NAMED_PIPE = "this is a named pipe and not a regular file; give a file, or /dev/stdin"
_GZIP = b"\x1f\x8b"
_UTF_8, _UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to be read, from its beginning as often as one likes.

    Args:
        path: a file, compressed or not, or a pipe of the shell's.

    Returns:
        What it holds, unpacked; text that begins with a byte order mark as UTF-8 without it.

    Raises:
        OSError: it cannot be read.
        ArtifactError: a device, a named pipe, or a pipe with more than ``MOST_BYTES``.
    """
    mode = require_file(path)
    file: IO[bytes] = Path(path).open("rb")  # noqa: SIM115  # the caller closes it
    try:
        if not stat.S_ISREG(mode):
            with file:
                file = io.BytesIO(_whole(file, path))
        begin = file.read(len(_UTF_8))
        file.seek(0)
        if begin.startswith(_GZIP):
            file = cast("IO[bytes]", _Unpacked(file, path))
            begin = file.read(len(_UTF_8))
            file.seek(0)
        if begin.startswith((_UTF_8, *_UTF_16)):
            with file:
                file = io.BytesIO(as_utf8(_whole(file, path)))
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def readable(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file as :func:`opened` does; errors of reading it name it.

    Raises:
        ArtifactError: it cannot be read, or as :func:`opened`.
    """
    try:
        with opened(path) as file:
            yield file
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(path, f"cannot be read: {reason}") from None


def require_file(path: str | os.PathLike[str]) -> int:
    """Refuse what could be read for ever, or would be waited for; return the file's mode.

    Raises:
        OSError: there is no such file.
        ArtifactError: a device, or a named pipe.
    """
    mode = Path(path).stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ArtifactError(path, "this is a device; give a file")
    if stat.S_ISFIFO(mode) and not _DESCRIPTORS.fullmatch(os.fspath(path)):
        raise ArtifactError(path, _NAMED_PIPE)
    return mode


def read_whole(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return all that a file holds, as :func:`opened` gives it.

    Raises:
        OSError: it cannot be read.
        ArtifactError: a device, a named pipe, or more than ``most_bytes``.
    """
    with opened(path) as file:
        return _whole(file, path, most_bytes)


def as_utf8(data: bytes) -> bytes:
    """Return text without its byte order mark, UTF-16 as UTF-8, and other bytes unchanged.

    Example:
        >>> as_utf8("{}".encode("utf-16"))
        b'{}'
    """
    if data.startswith(_UTF_16):
        try:
            return data.decode("utf-16").encode()
        except UnicodeDecodeError:
            return data
    return data.removeprefix(_UTF_8)


def _whole(file: IO[bytes], path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the rest of a file.

    Raises:
        ArtifactError: it is longer than ``most_bytes``.
    """
    size = os.fstat(file.fileno()).st_size if isinstance(file, io.BufferedReader) else 0
    data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(data) > most_bytes:
        raise ArtifactError(path, f"longer than {format_bytes(most_bytes)}, the most that is read")
    return data


class _Unpacked(gzip.GzipFile):
    """A compressed file that is refused once what was read has unpacked to more than ours do.

    Args:
        packed: the compressed file, which this one closes.
        path: what to call it in errors.
    """

    def __init__(self, packed: IO[bytes], path: str | os.PathLike[str]) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._packed, self._path = packed, path

    def read(self, size: int | None = -1) -> bytes:
        """Return so much of what is left, or all of it, as any file does."""
        if size is not None and 0 <= size <= _PIECE_BYTES:
            return self._checked(super().read, size)
        left = sys.maxsize if size is None or size < 0 else size
        pieces = []
        while left > 0 and (piece := self._checked(super().read, min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def read1(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes of the rest, as any file does."""
        return self._checked(super().read1, size)

    def close(self) -> None:
        """Close the compressed file too."""
        super().close()
        self._packed.close()

    def _checked(self, read: Callable[[int], bytes], size: int) -> bytes:
        """Return what is read.

        Raises:
            BadGzipFile: the compressed file is cut off or damaged: an ``OSError``, as all that
                readers of files expect.
        """
        try:
            piece = read(size)
        except (EOFError, zlib.error) as error:
            raise gzip.BadGzipFile(str(error)) from None
        packed = self._packed.tell()  # not the whole size: noise may follow a gigabyte of blanks
        if self.tell() > max(MOST_TIMES * packed, _FREE_BYTES):
            reason = f"unpacks to more than {MOST_TIMES} times its size, as no trace or table does"
            raise ArtifactError(self._path, reason)
        return piece

"""Output: what work gives while it runs and when it ends: how far it is, and whole files.

Long work is given a :data:`Progress`, and says by it how far it is.

A file is written where the user said, and nothing but regular files is replaced. A regular file is
replaced at once: a reader sees the old content or the new, never a part. What is no regular file (a
device, a pipe) is opened and written to, as a shell would. A symbolic link stays, and the file that
it leads to is replaced. ``-`` is standard output.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import BinaryIO

from syncopate.errors import ArtifactError

Progress = Callable[[str, float], None]
"""Called with what is going on and how much of the whole is done, 0 to 1."""

STANDARD_OUTPUT = "-"
"""The path that stands for standard output."""

UNFINISHED = ".syncopate-"
"""How the names of files begin of which not all is there; one stays if its writer is killed."""

_NAMED = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")
_made: set[Path] = set()
"""Folders that this process made for files, as they are after symbolic links."""

_NEW_MODE = 0o666  # less what the umask forbids
_PRIVATE_MODE = 0o600


def say(progress: Progress | None, what: str, done: float) -> None:
    """Call ``progress`` if there is one, ``done`` brought into [0, 1]."""
    if progress is not None:
        progress(what, min(max(done, 0.0), 1.0))


def part(progress: Progress | None, begin: float, end: float) -> Progress:
    """Return a progress for one stage, which takes the whole from ``begin`` to ``end``."""
    return lambda what, done: say(progress, what, begin + (end - begin) * done)


def write_output(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write ``data`` to ``path``, and return the path.

    Parent folders are made, as :func:`newly_made` tells. An existing file keeps its permissions
    and, where this process may give it away, its owner.

    Args:
        path: a file, new or not; a device or pipe; a symbolic link to any of them; or ``-``.
        data: the whole content.

    Raises:
        ArtifactError: it cannot be written, or not be replaced.
    """
    target = Path(path)
    try:
        inherited = _inherited(target)
        if inherited is not None:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()  # what was printed before comes before
            _pour(os.dup(inherited), data)
        elif _is_replaceable(target):
            _replace(Path(os.path.realpath(target)), data)
        else:
            _pour(os.open(target, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), data)
    except OSError as error:
        what = "standard output" if inherited == 1 else target
        raise ArtifactError(what, f"cannot write: {error.strerror or error}") from None
    return target


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that :func:`write_output` could not write to, before work is done for it.

    Nothing is made or opened. A disk may still be full, or a folder be taken away, by the end.

    Raises:
        ArtifactError: it is a folder, is in none that can be made, or may not be written.
    """
    target = Path(path)
    if _inherited(target) is not None:
        return
    try:
        _access(Path(os.path.realpath(target)))
    except OSError as error:
        raise ArtifactError(target, f"cannot write: {error.strerror or error}") from None


def newly_made(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the folders of ``paths`` that were made for files since this was last asked."""
    found = []
    for folder in dict.fromkeys(Path(path).parent for path in paths):
        real = Path(os.path.realpath(folder))
        if real in _made:
            _made.discard(real)
            found.append(folder)
    return found


def new_file(directory: Path, stem: str, suffix: str) -> tuple[Path, BinaryIO]:
    """Begin a file beside those that are there, to be written without a buffer.

    Args:
        directory: where; must exist.
        stem: its name; ``-2``, ``-3`` and so on follow it where there are files of that name.
        suffix: what the name ends with.

    Returns:
        Its path, and the file.

    Raises:
        ArtifactError: it cannot be made.
    """
    for number in count(1):
        path = directory / f"{stem}{'' if number == 1 else f'-{number}'}{suffix}"
        try:
            return path, path.open("xb", buffering=0)
        except FileExistsError:
            continue
        except OSError as error:
            raise ArtifactError(path, f"cannot write: {error.strerror or error}") from None
    raise AssertionError


def new_successor(path: Path) -> tuple[Path, BinaryIO]:
    """Begin a file that is to take the place of another, to be written without a buffer.

    One that was left over, because its process was killed, is written anew.

    Args:
        path: the other; hidden beside it the new one lies, until ``replace`` puts it there.

    Returns:
        Its path, and the file.

    Raises:
        OSError: it cannot be made.
    """
    successor = path.with_name(f".{path.name}.new")
    return successor, successor.open("wb", buffering=0)


def new_directory(path: str | os.PathLike[str]) -> Path:
    """Make a directory unless it is there, with its parents; return its path.

    :func:`newly_made` tells of it.

    Raises:
        ArtifactError: it is not there and cannot be made, or nothing can be written in it.
    """
    directory = Path(path)
    try:
        there = directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        if not there:
            _made.add(Path(os.path.realpath(directory)))
    except OSError as error:
        reason = f"cannot make this directory: {error.strerror or error}"
        raise ArtifactError(directory, reason) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ArtifactError(directory, "cannot write in this directory; give another")
    return directory


def is_standard_output(path: str | os.PathLike[str] | None) -> bool:
    """Say whether ``path`` is a name of standard output."""
    return path is not None and _inherited(Path(path)) == 1


def _inherited(path: Path) -> int | None:
    """Return the open descriptor that ``path`` is a name of.

    To open such a name anew would begin at the start of the file that the descriptor leads to.
    """
    numbered = _NUMBERED.fullmatch(str(path))
    return int(numbered[1]) if numbered else _NAMED.get(str(path))


def _is_replaceable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _access(target: Path) -> None:
    """Ask whether a file, which is no link, may be written, and, if new, what it is to be in.

    Raises:
        OSError: it may not.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    asked = [(target, os.W_OK)] if target.exists() else []
    if _is_replaceable(target):  # a new file takes its place
        folder = next(parent for parent in target.parents if parent.exists())
        asked.append((folder, os.W_OK | os.X_OK))
    for there, rights in asked:
        if not os.access(there, rights):
            reads_only = os.statvfs(there).f_flag & os.ST_RDONLY
            number = errno.EROFS if reads_only else errno.EACCES
            raise OSError(number, os.strerror(number))


def _pour(descriptor: int, data: bytes) -> None:
    """Write to ``descriptor``, and close it."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _replace(target: Path, data: bytes) -> None:
    """Put a new file in the place of ``target``, which is no link, once all of it is on disk."""
    if not target.parent.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _made.add(target.parent)
    before = target.stat() if target.exists() else None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    temporary = target.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
    mode = _NEW_MODE if before is None else _PRIVATE_MODE
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if before is not None:
                with contextlib.suppress(OSError):  # not every user may give files away
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

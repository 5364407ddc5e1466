"""What writing a file raises on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from syncopate.errors import ArtifactError


def refuse_as_full(path: Path) -> NoReturn:
    """Raise what writing a file does where the disk has no room for it."""
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ArtifactError(path, f"cannot write: {error.strerror}") from None

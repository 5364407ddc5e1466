"""Framework: what is said where the package of an integration is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from syncopate.errors import MissingPackageError


@contextmanager
def needed(name: str, package: str) -> Iterator[None]:
    """Import a framework in the block.

    Args:
        name: the class that needs it.
        package: as it is imported.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackageError(name, package) from None

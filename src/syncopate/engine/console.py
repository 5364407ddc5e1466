"""Console: lines that the engine tells the user."""

from __future__ import annotations

import logging
import sys

from syncopate.errors import visible


def log(message: str) -> None:
    """Log one line; on standard error where logging is not configured."""
    logger = logging.getLogger("syncopate")
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logger.info(visible(message))

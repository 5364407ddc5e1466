"""Options: what the command lines of benchmarks that keep every sample have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def explained(found: argparse.ArgumentParser, page: str | None) -> argparse.ArgumentParser:
    """Return the command line with the examples of a script's docstring, and what all take.

    Args:
        found: the command line of the script; without a description it gets the page's first line.
        page: the script's docstring: what it does, a paragraph of examples, and more.
    """
    first, examples, *_ = (page or "").split("\n\n")
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    found.description = found.description or first
    found.epilog = "for example:\n" + examples
    found.add_argument("--quick", action="store_true", help="short and small, to see that it runs")
    found.add_argument("--json", type=Path, help="where every sample is kept, and goes on from")
    return found

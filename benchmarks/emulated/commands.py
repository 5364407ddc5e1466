"""Commands: what a user types on the hosts of a lab, and a benchmark that does so."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from syncopate.lab import Lab
from syncopate.lab.support import why_not
from syncopate.output import write_output


class Commands:
    """Runs commands of Python on the hosts of a lab.

    Args:
        lab: entered.
        environment: beside that of this process.

    Attributes:
        typed: what was run, as a user types it.
    """

    def __init__(self, lab: Lab, environment: Mapping[str, str] | None = None) -> None:
        self._lab, self._environment = lab, os.environ | dict(environment or {})
        self.typed: list[str] = []

    def run(self, *words: str, everywhere: bool = True) -> str:
        """Run a command on every host, or here; return what it said.

        Raises:
            SystemExit: it failed.
        """
        self.typed.append(shlex.join(words))
        print(f"$ {self.typed[-1]}", flush=True)
        said: list[str] = []
        if everywhere:
            outcome = self._lab.run(
                [sys.executable, *words],
                environment=self._environment,
                sink=lambda rank, _, line: said.append(f"rank {rank}: {line}"),
            )
            code = outcome.exit_code
        else:
            done = subprocess.run(
                [sys.executable, *words],
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self._environment,
            )
            said, code = done.stdout.splitlines(), done.returncode
        if code:
            raise SystemExit("\n".join([*said[-30:], f"ended with {code}"]))
        return "\n".join(said)


def measured(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Measure, keep every sample and print the table; with ``--no-run`` of what is kept.

    Args:
        parser: of ``options``, among them ``--json`` and ``--no-run``.
        options: as parsed.
        measure: returns what there is to keep.
        table: returns the table of it.
    """
    if options.no_run:
        if options.json is None:
            parser.error("--no-run needs --json")
        print(table(json.loads(options.json.read_text())))
        return 0
    obstacle = why_not()
    if obstacle:
        print(f"skipped: {obstacle}")
        return 0
    kept = measure(options)
    if options.json is not None:
        write_output(options.json, json.dumps(kept, indent=1).encode())
    print(table(kept))
    return 0

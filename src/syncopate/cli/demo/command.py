"""``syncopate demo``: starts local ranks and lets them tell the story."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from syncopate.cli.common import ranks
from syncopate.cli.common.console import is_leader, out, say_json
from syncopate.errors import InvalidValueError
from syncopate.output import is_standard_output


def demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the artefacts.")
    ] = Path("syncopate-demo"),
    local: Annotated[
        int, typer.Option(help="Local ranks to start; left alone under torchrun.")
    ] = 4,
    quick: Annotated[
        bool, typer.Option(help="Fewer measurements: half the time, more noise.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print every table of every chapter, too.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON at the end.")
    ] = False,
) -> None:
    """Measure, plan, train, compare with DDP and predict, on local processes and real data.

    Four ranks train ResNet-20 on scikit-learn's handwritten digits, in about two minutes on two
    cores. Everything it prints is measured on the way, or predicted and held against that.

    For example:

      syncopate demo

      syncopate demo --local 2 --quick -o /tmp/demo

      torchrun --nnodes 2 --nproc-per-node 2 --no-python syncopate demo
    """
    if (output.exists() and not output.is_dir()) or is_standard_output(output):
        raise InvalidValueError("--output", str(output), "a folder, new or not, for several files")
    if not ranks.started():
        if find_spec("sklearn") is None:  # refused before anything is measured
            from syncopate.zoo import digits

            digits()
        out().print(
            Text.assemble(
                ("Syncopate", "bold"),
                f": {local} local ranks train ResNet-20 on handwritten digits.\n"
                "Six chapters, about two minutes; Ctrl-C ends all ranks.",
            )
        )
        ranks.start_if_asked(local)
    from syncopate.cli.demo.story import Settings, tell
    from syncopate.zoo import digits

    settings = Settings(output=output, full=full)
    if quick:
        settings = replace(settings, calibration_s=6.0, rounds=4, iterations=4)
    with ranks.joined() as communicator:
        digits()  # before anything is measured: the package may be there and broken
        result = tell(communicator, settings)
    if json and is_leader():
        say_json(result.to_json())

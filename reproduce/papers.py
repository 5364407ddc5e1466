"""All five papers, figure by figure: what they print, what is simulated and measured, and why.

    python reproduce/papers.py                          # tables, and the page's anew
    python reproduce/papers.py --paper blueconnect      # one paper's, on the screen alone
    python reproduce/papers.py --json                   # the same as JSON
    python reproduce/papers.py --quick                  # to see that it runs: the page stays

The tables of docs/reproduce.md are what this writes, between its marks. What was measured or
trained is read from ``data``; each paper's own script says how it was.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from figures import beyond, blueconnect, linear_pipeline, mg_wfbp, sketchdlc, ssd_sgd
from figures.rows import Paper, drawn_markdown, drawn_table, markdown, show
from syncopate.errors import ArtifactError, SyncopateError
from syncopate.output import write_output

PAGE = Path(__file__).parents[1] / "docs" / "reproduce.md"
PAPERS: Mapping[str, Callable[..., Paper]] = {
    "mg_wfbp": mg_wfbp.paper,
    "linear_pipeline": linear_pipeline.paper,
    "blueconnect": blueconnect.paper,
    "ssd_sgd": ssd_sgd.paper,
    "sketchdlc": sketchdlc.paper,
}
BEYOND = "beyond"
_BEGIN, _END = "<!-- figures of {}: written by make reproduce -->\n", "<!-- end of figures -->\n"


def renewed(page: str, regions: Mapping[str, str], path: Path = PAGE) -> str:
    """Return a page with the text between its marks put in place of what was there.

    Args:
        page: its text.
        regions: name -> what stands between the marks of that name.
        path: of the page, for an error.

    Raises:
        ArtifactError: the page lacks the marks of a region, or has them twice.
    """
    for name, text in regions.items():
        begin = _BEGIN.format(name)
        pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(_END)})", re.DOTALL)
        found = pattern.findall(page)
        if len(found) != 1:
            reason = f"has the line {begin.strip()!r} and an end {len(found)} times, not once"
            raise ArtifactError(path, reason)
        page = pattern.sub(lambda marks, text=text: f"{marks[1]}\n{text}\n{marks[2]}", page)
    return page


def main(words: Sequence[str] | None = None) -> int:
    """Print what is asked for, and write the page; see the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--paper", nargs="+", choices=(*PAPERS, BEYOND), help="which (all)")
    add("--json", action="store_true", help="print JSON instead of tables; the page stays")
    add("--quick", action="store_true", help="leave out what takes long; the page stays")
    options = parser.parse_args(words)
    names = options.paper or [*PAPERS, BEYOND]
    papers = [PAPERS[name](quick=options.quick) for name in names if name in PAPERS]
    past = beyond.beyond(quick=options.quick) if BEYOND in names else None
    if options.json:
        report = {"papers": [paper.as_json() for paper in papers]}
        print(json.dumps(report | ({BEYOND: vars(past)} if past else {}), indent=1))
        return 0
    console = Console()
    show(papers, console)
    if past is not None:
        console.print(drawn_table(past))
    if options.paper or options.quick or past is None:
        return 0
    regions = {paper.name: markdown(paper) for paper in papers} | {BEYOND: drawn_markdown(past)}
    try:
        write_output(PAGE, renewed(PAGE.read_text(), regions).encode())
    except (SyncopateError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    console.print(f"wrote the tables of {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

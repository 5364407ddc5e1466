"""The website: built without a warning, and every link on it leads to a file and a heading."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.children import HANGS_S, REPOSITORY

pytestmark = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("material")),
    reason="needs mkdocs-material: pip install '.[site]'",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids.add(told.get("id") or "")
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))


def test_every_link_leads_to_a_file_and_a_heading(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > len(list((REPOSITORY / "docs").glob("*.md")))
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            known = pages.get(target)
            if not target.exists() or (known and parts.fragment not in {*known.ids, ""}):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


def test_it_has_the_overview_search_and_what_pages_lead_to(site):
    overview = (site / "repository" / "index.html").read_text("utf-8")
    assert 'href="../training.html"' in overview
    assert "distribute" in (site / "repository/examples/train.py.html").read_text("utf-8")
    found = (site / "search" / "search_index.json").read_text("utf-8")
    assert "training.html" in found
    assert "repository/index.html" in found
    assert "repository/benchmarks/results" not in found
    assert not list(site.rglob("*.py"))

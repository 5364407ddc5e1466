"""Site: the pages as a website (``make site``), on which links lead as they do in the repository.

A hook of mkdocs (``mkdocs.yml``). Pages link to files outside ``docs/``: benchmarks, their results,
examples, sources. Each of these that a page leads to becomes a part of the site too, under
``repository/``: Markdown and notebooks as pages, a folder as its README.md or a list of what is in
it, sources as pages of code, other files as they are.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
OUTSIDE = "repository/"
"""Where on the site the files outside ``docs/`` are."""

CODE = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sbatch": "bash", "": ""}
"""Suffix of a source -> its language."""

SEARCHED = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/first_steps.ipynb"}
"""What search finds of the files outside ``docs/``."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what pages lead to outside ``docs/``."""
    waiting = ["README.md", *(f"docs/{page.src_uri}" for page in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(_file(path, config))
        for target in _targets(path):
            if target not in seen and not target.startswith("docs/"):
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Return a page whose links lead to where their targets are on the site."""
    here = page.file.src_uri
    path = here.removeprefix(OUTSIDE) if here.startswith(OUTSIDE) else f"docs/{here}"
    if _is_code(path.removesuffix(".md")):
        return markdown

    def led(link: re.Match[str]) -> str:
        target = _resolved(path, link[1])
        return f"]({os.path.relpath(_place(target), os.path.dirname(here) or '.')}"

    return _LINK.sub(led, markdown)


def _resolved(path: str, link: str) -> str:
    """Return the target of a link on a page, from the root of the repository."""
    return os.path.normpath(os.path.join(os.path.dirname(path), link))


def _targets(path: str) -> Iterator[str]:
    """Yield what a file or a folder leads to; what there is not, mkdocs complains of."""
    if (REPOSITORY / path).is_dir():
        names = sorted(each.name for each in (REPOSITORY / path).iterdir())
        yield from (f"{path}/{name}" for name in names if not name.startswith(("_", ".")))
    elif path.endswith((".md", ".ipynb")):
        text = (REPOSITORY / path).read_text("utf-8")
        found = (_resolved(path, link) for link in _LINK.findall(text))
        yield from (target for target in found if (REPOSITORY / target).exists())


def _is_code(path: str) -> bool:
    return Path(path).suffix in CODE and (REPOSITORY / path).is_file()


def _place(path: str) -> str:
    """Return where a file of the repository is among the sources of the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (REPOSITORY / path).is_dir():
        readme = (REPOSITORY / path / "README.md").exists()
        return f"{OUTSIDE}{path}/{'README' if readme else 'index'}.md"
    page = _is_code(path) or path.endswith(".ipynb")
    return f"{OUTSIDE}{path}.md" if page else f"{OUTSIDE}{path}"


def _file(path: str, config: Any) -> File:
    """Return a file of the site for one of the repository."""
    source, place = REPOSITORY / path, _place(path)
    if not place.endswith(".md"):
        return File.generated(config, place, abs_src_path=str(source))
    if source.is_dir():
        names = [target.removeprefix(f"{path}/") for target in _targets(path)]
        text = f"# {path}\n\n" + "\n".join(f"- [{name}]({name})" for name in names)
    else:
        text = source.read_text("utf-8")
    if path.endswith(".ipynb"):
        text = "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    elif source.is_file() and not path.endswith(".md"):
        text = f"# {path}\n\n{_fenced(text, CODE[source.suffix])}"
    if path not in SEARCHED:
        text = f"---\nsearch:\n  exclude: true\n---\n{text}"
    return File.generated(config, place, content=text)


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else _fenced(text, "python")


def _fenced(text: str, language: str) -> str:
    return f"~~~~~~ {language}\n{text}\n~~~~~~"

"""Page: one HTML file that holds all it shows and works without a network.

Pages are Jinja templates beside this module. They need the extra ``html``: Jinja, and some of them
Plotly for the script that draws, which is written into the page.
"""

from __future__ import annotations

import json
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from syncopate.errors import SyncopateError

_TEMPLATES = "jinja2"
_NEEDED = (_TEMPLATES, "plotly")


def require_html(*needed: str) -> None:
    """Refuse when a page could not be written; ask before anything is measured for it.

    Args:
        needed: packages; all that any page needs where none is named.

    Raises:
        SyncopateError: a package is missing; says how to install it.
    """
    missing = [name for name in needed or _NEEDED if find_spec(name) is None]
    if missing:
        raise SyncopateError(
            f"an HTML page needs {' and '.join(missing)}: pip install jinja2 plotly"
        )


def render_page(template: str, data: Any, **values: Any) -> str:
    """Return a page.

    Args:
        template: file name beside this module, in ``templates``. It writes a file that stands there
            as it is with ``{{ raw("name") }}``, and the script of Plotly with ``{{ plotly() }}``.
        data: what the page's script reads, anything that JSON can hold; the template places it
            with ``{{ data }}``.
        values: further values for the template, escaped where they stand.

    Raises:
        SyncopateError: a package is missing.
    """
    require_html(_TEMPLATES)
    jinja2, markupsafe = import_module("jinja2"), import_module("markupsafe")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["raw"] = lambda name: markupsafe.Markup(_read(name))
    environment.globals["plotly"] = lambda: markupsafe.Markup(_plotly())
    # "</script>" inside a script would end it, and "<!--" begin a comment, wherever they stand.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page: str = environment.from_string(_read(template)).render(
        **values, data=markupsafe.Markup(text)
    )
    return page


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")


def _plotly() -> str:
    require_html()
    script: str = import_module("plotly.offline").get_plotlyjs()
    return script

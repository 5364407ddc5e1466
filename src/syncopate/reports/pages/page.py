"""Page: one HTML file that holds all it shows and works without a network.

Pages are Jinja templates beside this module, and need the extra ``html``. They draw by themselves.
"""

from __future__ import annotations

import json
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from syncopate.errors import SyncopateError

_NEEDED = "jinja2"


def require_html() -> None:
    """Refuse when a page could not be written; ask before anything is measured for it.

    Raises:
        SyncopateError: a package is missing; says how to install it.
    """
    if find_spec(_NEEDED) is None:
        raise SyncopateError(f"an HTML page needs {_NEEDED}: pip install jinja2")


def render_page(template: str, data: Any, **values: Any) -> str:
    """Return a page.

    Args:
        template: file name beside this module, in ``templates``. It writes a file that stands there
            as it is with ``{{ raw("name") }}``.
        data: what the page's script reads, anything that JSON can hold; the template places it
            with ``{{ data }}``.
        values: further values for the template, escaped where they stand.

    Raises:
        SyncopateError: a package is missing.
    """
    require_html()
    jinja2, markupsafe = import_module("jinja2"), import_module("markupsafe")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["raw"] = lambda name: markupsafe.Markup(_read(name))
    # "</script>" inside a script would end it, and "<!--" begin a comment, wherever they stand.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page: str = environment.from_string(_read(template)).render(
        **values, data=markupsafe.Markup(text)
    )
    return page


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")

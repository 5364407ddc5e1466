"""Page: one HTML file that holds all it shows and works without a network.

Pages are Jinja templates beside this module, and need the extra ``html``. They draw by themselves.
"""

from __future__ import annotations

import json
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from syncopate.errors import MissingPackageError, visible

_NEEDED = "jinja2"


def require_html() -> None:
    """Refuse when a page could not be written; ask before anything is measured for it.

    Raises:
        MissingPackageError: says how to install it.
    """
    if find_spec(_NEEDED) is None:
        raise MissingPackageError("an HTML page", "jinja2")


def render_page(template: str, data: Any, **values: Any) -> str:
    """Return a page.

    Args:
        template: file name beside this module, in ``templates``. It writes a file that stands there
            as it is with ``{{ raw("name") }}``.
        data: what the page's script reads, anything that JSON can hold; the template places it
            with ``{{ data }}``.
        values: further values for the template, escaped where they stand.

    In both, what a terminal would obey is shown: names from files may hold it.

    Raises:
        MissingPackageError: Jinja is not installed.
    """
    require_html()
    jinja2, markupsafe = import_module("jinja2"), import_module("markupsafe")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.globals["raw"] = lambda name: markupsafe.Markup(_read(name))
    # "</script>" inside a script would end it, and "<!--" begin a comment, wherever they stand.
    text = json.dumps(_visible(data), allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    page: str = environment.from_string(_read(template)).render(
        **values, data=markupsafe.Markup(text)
    )
    return page


def _visible(data: Any) -> Any:
    """Return data whose texts hold nothing that a browser would obey, as :func:`visible` has it."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {_visible(key): _visible(value) for key, value in data.items()}
    return [_visible(value) for value in data] if isinstance(data, list | tuple) else data


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")

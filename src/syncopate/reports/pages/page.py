"""Page: one HTML file that holds all it shows and works without a network.

Pages are Jinja templates beside this module. They need the extra ``html``: Jinja, and Plotly for
the script that draws, which is written into the page.
"""

from __future__ import annotations

import json
from importlib import import_module, resources
from importlib.util import find_spec
from typing import Any

from syncopate.errors import SyncopateError

_NEEDED = ("jinja2", "plotly")


def require_html() -> None:
    """Refuse when a page could not be written; ask before anything is measured for it.

    Raises:
        SyncopateError: a package is missing; says how to install it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SyncopateError(
            f"an HTML page needs {' and '.join(missing)}: pip install 'syncopate[html]'"
        )


def render_page(template: str, data: Any, **values: Any) -> str:
    """Return a page.

    Args:
        template: file name beside this module, in ``templates``.
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
    source = resources.files(__package__).joinpath("templates", template).read_text("utf-8")
    # "</script>" inside a script would end it, wherever it stands.
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/")
    script = import_module("plotly.offline").get_plotlyjs()
    page: str = environment.from_string(source).render(
        **values, data=markupsafe.Markup(text), plotly=markupsafe.Markup(script)
    )
    return page

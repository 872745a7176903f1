"""The HTML page: template, styles, scripts, chart library and data in one text."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from gear_data.common.extras import import_extra

#: Scripts of the page, in order. They share one scope.
SCRIPTS = (
    "core.js", "charts.js", "overview.js", "episodes.js", "columns.js", "player.js", "viewer.js", "mixture.js",
    "start.js",
)  # fmt: skip


def check_charts() -> None:
    """Checks that the package of the charts is installed.

    Raises:
        MissingExtraError: it is not.
    """
    import_extra("vl_convert", "report")


def render(title: str, data: Mapping[str, Any]) -> str:
    """Returns the page.

    The page's policy allows only its own two scripts, by their hashes, and no request to any place.

    Args:
        title: title of the page.
        data: what the scripts draw, JSON-able, without NaN.

    Raises:
        MissingExtraError: the package of the charts is not installed.
    """
    library, script = chart_library(), _script("\n".join(_asset(name) for name in SCRIPTS))
    # In the order of the template.
    parts = {
        "policy": policy(library, script),
        "title": html.escape(title),
        "style": _asset("style.css"),
        "data": json_in_html(data),
        "library": library,
        "script": script,
    }
    page = _asset("page.html")
    found = []
    for name, text in parts.items():
        before, _, page = page.partition("{{" + name + "}}")
        found += [before, text]
    return "".join([*found, page])


def policy(*scripts: str) -> str:
    """Returns the Content-Security-Policy of a page with these scripts."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def json_in_html(data: Any) -> str:
    """Returns JSON that is safe inside a script element of HTML.

    No text of the data can end the element or begin a comment: `<`, `>` and `&` are escaped, and all characters outside
    ASCII.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def chart_library() -> str:
    """Returns the code of Vega, Vega-Lite and Vega-Embed."""
    code: str = import_extra("vl_convert", "report").javascript_bundle()
    return _script(code)


def _script(code: str) -> str:
    """Returns code that is safe inside a script element."""
    return code.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return importlib.resources.files("gear_data.reports").joinpath("assets", name).read_text(encoding="utf-8")

"""mkdocs hook: the search shows pages about tasks before pages about the API and the design.

Every page of a decision has the heading "Decision". Without the hook they come before the pages about Decision
Transformer.
"""

from __future__ import annotations

from typing import Any

#: Folder -> factor of the scores of its pages.
BOOSTS = {"how-to/": 2.0, "tutorial/": 2.0, "reference/api/": 0.5, "explanation/": 0.5, "explanation/decisions/": 0.02}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Gives a page the factor of its folder: the longest that fits."""
    folders = [folder for folder in BOOSTS if page.file.src_uri.startswith(folder)]
    if folders:
        page.meta["search"] = {"boost": BOOSTS[max(folders, key=len)]}
    return markdown

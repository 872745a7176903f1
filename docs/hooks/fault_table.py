"""mkdocs hook: writes the table of faults into the page on clusters."""

from __future__ import annotations

from typing import Any

from gear_data.cluster.faults import markdown_table

PAGE = "explanation/cluster.md"
MARK = "<!-- the table of faults -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page's Markdown with the table in place of the mark."""
    if page.file.src_uri != PAGE:
        return markdown
    if MARK not in markdown:
        raise ValueError(f"{PAGE} has no line '{MARK}'")
    return markdown.replace(MARK, markdown_table())

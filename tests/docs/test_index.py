"""The index of the how-to pages, and where their data come from."""

from __future__ import annotations

import re

import yaml

from tests.support.docs.examples import ROOT

HOW_TO = ROOT / "docs" / "how-to"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: None)
_Loader.add_multi_constructor("tag:", lambda loader, tag, node: None)


def _of_the_index() -> dict[str, list[str]]:
    """Returns group -> its pages, as the index lists them."""
    found: dict[str, list[str]] = {}
    for line in (HOW_TO / "index.md").read_text().splitlines():
        if title := re.fullmatch(r"\*\*(.+)\*\*", line):
            found[title[1]] = []
        elif found:
            found[list(found)[-1]] += re.findall(r"\]\(([\w/-]+\.md)\)", line)
    return found


def test_index_and_navigation_have_the_same_groups_of_all_pages() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
    [how_to] = [section["How-to"] for section in config["nav"] if "How-to" in section]
    groups = {name: pages for group in how_to[1:] for name, pages in group.items()}
    listed = _of_the_index()
    assert len(listed) > 8
    assert {name: [page.removeprefix("how-to/") for page in pages] for name, pages in groups.items()} == listed
    pages = sorted(page for group in listed.values() for page in group)
    assert pages == sorted(
        path.relative_to(HOW_TO).as_posix() for path in HOW_TO.rglob("*.md") if path != HOW_TO / "index.md"
    )


def test_a_page_with_a_file_of_the_hub_says_where_it_comes_from() -> None:
    pages = [
        path
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if "hopper-medium.parquet" in path.read_text()
    ]
    assert pages
    source = "huggingface.md#decision-transformer"
    own = HOW_TO / "convert" / "huggingface.md"
    assert [path.name for path in pages if path != own and source not in path.read_text()] == []
    assert "## Decision Transformer" in own.read_text()

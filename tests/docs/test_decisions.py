"""Pages of decisions: code names each of them, and each says what a decision must say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.benchmarks.commands import BENCHMARKS
from tests.support.docs.examples import ROOT

DECISIONS = ROOT / "docs" / "explanation" / "decisions"
PAGES = sorted(page for page in DECISIONS.glob("*.md") if page.name != "index.md")
CODE = ("gear_data", "kernels", "loaders", "scripts", "benchmarks", "tests/support")
PARTS = ["Decision", "Reasons", "Measurements", "Tried or considered", "What would change it"]
_LINK = re.compile(r"\bWhy: (docs/\S+)")


def _name(page: Path) -> str:
    return page.stem


def _links() -> dict[str, set[str]]:
    """Returns page -> the files whose code names it."""
    found: dict[str, set[str]] = {}
    for folder in CODE:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".cu", ".h"):
                for page in _LINK.findall(file.read_text()):
                    found.setdefault(page, set()).add(file.relative_to(ROOT).as_posix())
    return found


def test_code_names_every_page_and_no_other() -> None:
    links = _links()
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert len(pages) > 9
    assert {page: files for page, files in links.items() if page not in pages} == {}, "these pages do not exist"
    assert pages - links.keys() == set(), "name them in the code that they explain: 'Why: PAGE'"


def test_the_index_lists_every_page_once() -> None:
    rows = re.findall(r"^- \[.+?\]\(([\w-]+\.md)\)$", (DECISIONS / "index.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_has_all_parts_and_a_command(page: Path) -> None:
    text = page.read_text()
    opening, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert "?" in opening, "a page opens with its question"
    parts = dict(section.split("\n", 1) for section in sections)
    assert [title for title in parts if title in PARTS] == PARTS
    commands = re.findall(r"benchmarks/(\w+\.py)", parts["Measurements"])
    assert commands, "Measurements names the command that prints such figures"
    assert [command for command in commands if not (BENCHMARKS / command).is_file()] == []

"""The README is shown on a package index, too: its links are absolute, and lead to files that exist."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from tests.support.docs.examples import ROOT

README = (ROOT / "README.md").read_text()
REPOSITORY = "https://github.com/gear-data/gear-data"
LINKS = re.findall(r"\]\(([^)\s]+)", README) + re.findall(r"\b(?:href|src)=\"([^\"]+)\"", README)


def _anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_are_absolute() -> None:
    assert len(LINKS) > 15
    assert [link for link in LINKS if not link.startswith("https://")] == []


@pytest.mark.parametrize("link", sorted({link for link in LINKS if link.startswith(REPOSITORY)}))
def test_a_link_into_the_repository_leads_somewhere(link: str) -> None:
    place, _, anchor = link.removeprefix(REPOSITORY).partition("#")
    if not place:
        assert anchor in _anchors(README)
        return
    kind, branch, path = place.removeprefix("/").split("/", 2)
    target = ROOT / PurePosixPath(path)
    assert (branch, kind) == ("main", "tree" if target.is_dir() else "blob")
    assert target.exists()
    if anchor:
        assert anchor in _anchors(target.read_text())


def test_its_first_commands_set_up_and_test() -> None:
    first = README.split("```")[1].splitlines()
    assert [line.split("#")[0].strip() for line in first[1:3]] == ["make demo", "make test"]

"""The examples of README.md and of the documentation run, page by page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docs.examples import ROOT, Runner, prepared

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
Prepare = Callable[[str, Path], None]


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    return prepared(tmp_path_factory.mktemp("prepared"))


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_examples_of_a_page_run(page: Path, prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / ".cache"))
    runner = Runner(tmp_path, prepare, monkeypatch.setenv)
    runner.run(page)

"""Sources on a web server, which lists folders as HTML and says nothing else about files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.http import HTTPFileSystem

import gear_data
from gear_data.common import retry
from gear_data.errors import RemoteError, SourceNotFoundError
from gear_data.ingest.location import locate_files
from tests.ingest.cached.test_in_place import web_server
from tests.ingest.cached.test_opening import check
from tests.support.rollouts import Rollout

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder at `url`."""
    (tmp_path / "web/robot").mkdir(parents=True)
    return tmp_path / "web/robot"


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with web_server(folder.parent, ranges=True) as url:
        yield url


def test_a_file(source: Path, folder: Path, url: str, rollouts: list[Rollout], runs: list[str]) -> None:
    source.rename(folder / "hops.hdf5")
    for _ in range(2):
        check(gear_data.open(f"{url}hops.hdf5"), rollouts)
    assert len(runs) == 1
    with pytest.raises(SourceNotFoundError, match="no such file or folder"):
        locate_files(f"{url}others.hdf5")


@pytest.mark.parametrize("query", ["?download=1", "?path=a/b.txt&x=1"])
def test_a_file_whose_url_has_a_query(
    source: Path, folder: Path, url: str, rollouts: list[Rollout], query: str
) -> None:
    """As the links of Zenodo and of signed URLs have."""
    source.rename(folder / "hops.hdf5")
    check(gear_data.open(f"{url}hops.hdf5{query}"), rollouts)


def test_a_file_that_is_listed_and_not_there(folder: Path, url: str) -> None:
    (folder / "index.html").write_text('<a href="hops.hdf5">hops.hdf5</a>')
    with pytest.raises(SourceNotFoundError, match=r"hops\.hdf5: the server lists it, and does not send it"):
        locate_files(url)


def test_links_that_sort_a_listing_are_no_files(folder: Path, url: str) -> None:
    """As Apache's pages have them."""
    (folder / "part").mkdir()
    (folder / "part/hops.csv").write_text("a\n1\n")
    links = "".join(f'<a href="{link}">x</a>' for link in ("?C=N;O=D", "?C=M;O=A", "/", "#top", "part/"))
    (folder / "index.html").write_text(f"<html>{links}</html>")
    assert [file.name for file in locate_files(url).files] == ["part/hops.csv"]


def test_a_folder_whose_listing_fails_is_listed_again(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's `find` would leave it out."""
    for name in ("first", "second"):
        (folder / name).mkdir()
        (folder / name / "hops.csv").write_text("a\n1\n")
    listed, failures = HTTPFileSystem._ls_real, [ConnectionResetError(errno.ECONNRESET, "reset by peer")]

    async def failing(self: Any, url: str, **options: Any) -> Any:
        if url.rstrip("/").endswith("second") and failures:
            raise failures.pop()
        return await listed(self, url, **options)

    monkeypatch.setattr(HTTPFileSystem, "_ls_real", failing)
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    assert [file.name for file in locate_files(url).files] == ["first/hops.csv", "second/hops.csv"]
    assert not failures


def test_a_server_that_is_gone(
    source: Path, folder: Path, rollouts: list[Rollout], runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.rename(folder / "hops.hdf5")
    with web_server(folder.parent, ranges=True) as url:
        first = gear_data.open(f"{url}hops.hdf5")
    monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)
    check(gear_data.open(f"{url}hops.hdf5"), rollouts)
    assert gear_data.open(f"{url}hops.hdf5").path == first.path
    assert len(runs) == 1
    with pytest.raises(RemoteError, match=r"hops\.hdf5/other/manifest\.json: cannot be looked up, tried once"):
        gear_data.open(f"{url}hops.hdf5/other")

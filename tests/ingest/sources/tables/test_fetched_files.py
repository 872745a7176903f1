"""Small files at URLs are fetched several at once, and yielded in their order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gear_data.errors import RemoteError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.tables import fetched_files
from gear_data.ingest.sources.tables.fetched_files import fetched_ahead, with_fetched

LIMIT = 100


class Server:
    """A file system that answers when all of `together` requests, or the last ones, have arrived."""

    def __init__(self, together: int) -> None:
        self.requests: list[str] = []
        self.barrier = threading.Barrier(together)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.requests.append(path)
        self.barrier.wait(60)
        if path == "gone":
            raise FileNotFoundError(path)
        return path.encode().ljust(LIMIT, b".")[start:end]


def files(server: Any, *names: str, size: int = LIMIT) -> list[SourceFile]:
    return [SourceFile(name, name, size, "stamp", server, "contents") for name in names]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_files, "_AHEAD", 3)


def test_files_are_fetched_together_and_yielded_in_order() -> None:
    server = Server(3)
    names = [f"file {number}" for number in range(9)]
    found = list(fetched_ahead(files(server, *names)))
    assert [each.name for each in found] == names and sorted(server.requests) == names
    for each in found:
        assert (each.size, each.stamp, each.filesystem, each.contents) == (LIMIT, "stamp", server, "contents")
        for _ in range(2):
            with each.open() as stream:
                assert stream.read() == each.name.encode().ljust(LIMIT, b".")
    assert len(server.requests) == len(names)
    assert list(fetched_ahead(found)) == found and len(server.requests) == len(names)


def test_a_file_that_is_gone_is_an_error_after_the_files_before_it() -> None:
    server = Server(1)
    fetched = fetched_ahead(files(server, "a", "gone", "b"))
    assert next(fetched).name == "a"
    with pytest.raises(RemoteError, match="gone: the file no longer exists"):
        next(fetched)


def test_files_that_nobody_asks_for_are_not_fetched() -> None:
    server = Server(1)
    fetched = fetched_ahead(files(server, *map(str, range(100))))
    assert next(fetched).name == "0"
    fetched.close()
    assert len(server.requests) <= 4


def test_large_and_local_files_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_files, "SMALL_BYTES", LIMIT)
    server = Server(1)
    given = [*files(server, "large", size=LIMIT + 1), *files(None, "local"), *files(server, "small", "other")]
    found = with_fetched(Location("place", tuple(given)), lambda name: name != "other")
    assert [file.name for file in found.files] == [file.name for file in given]
    assert server.requests == ["small"]
    assert [found.files[i] is given[i] for i in range(4)] == [True, True, False, True]

"""Puts with conditions, against an S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gear_data.common import retry
from gear_data.errors import InvalidArgumentError, RemoteError, UnwritableError
from gear_data.storage.remote import conditional_store
from gear_data.storage.remote.conditional_store import ConditionalStore
from tests.support.s3.server import CONDITIONS, S3Server, s3_server


@pytest.fixture(scope="module")
def module_server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def server(module_server: S3Server) -> Iterator[S3Server]:
    yield module_server
    module_server.reset()


@pytest.fixture
def store(server: S3Server, tmp_path: Path) -> ConditionalStore:
    return ConditionalStore(f"s3://bucket/{tmp_path.name}")


def test_puts_with_conditions(store: ConditionalStore) -> None:
    assert store.read("a/b") is None
    assert not store.put("a/b", b"zero", '"0"')  # there is no such file
    assert store.put("a/b", b"one", None)
    first = store.read("a/b")
    assert first is not None
    assert first.data == b"one"
    assert not store.put("a/b", b"two", None)
    assert store.put("a/b", b"two", first.etag)
    assert not store.put("a/b", b"three", first.etag)
    assert store.put("a/b", b"two", first.etag)  # as after a put whose answer was lost
    found = store.read("a/b")
    assert found is not None
    assert found.data == b"two"
    assert found.etag != first.etag


def test_conflicts_of_puts(store: ConditionalStore, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier attempt may be one of the two puts: it may succeed, or fail. So another attempt follows."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    faults = [(409, False), (409, True), (409, False)]
    server.fault = lambda method, path: faults.pop(0) if faults and method == "PUT" else None
    assert store.put("a", b"one", None)
    assert not faults
    assert not store.put("a", b"two", None)
    server.fault = lambda method, path: (409, False) if method == "PUT" else None
    with pytest.raises(RemoteError, match="another put of the file goes on"):
        store.put("b", b"one", None)


def test_only_one_of_several_writers_succeeds(store: ConditionalStore) -> None:
    """Threads count in one file: no count is lost."""
    store.put("count", b"0", None)

    def count() -> None:
        for _ in range(5):
            while True:
                found = store.read("count")
                assert found is not None
                # A name of the thread: texts of two threads never agree.
                number = int(found.data.split()[0]) + 1
                if store.put("count", f"{number} {threading.get_ident()}".encode(), found.etag):
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.read("count")
    assert found is not None
    assert int(found.data.split()[0]) == 20


def test_the_check_leaves_nothing(store: ConditionalStore, server: S3Server) -> None:
    store.check()
    removed = [path for method, path in server.requests if method == "DELETE"]
    assert removed[-1].rpartition("/")[0] == f"/{store.name.removeprefix('s3://')}/journals"
    assert store.read(removed[-1].partition(f"{store.name.removeprefix('s3://')}/")[2]) is None


@pytest.mark.parametrize("ignored", [CONDITIONS, CONDITIONS[:1], CONDITIONS[1:]])
def test_a_server_that_ignores_conditions_is_refused(
    store: ConditionalStore, server: S3Server, ignored: tuple[str, ...]
) -> None:
    server.ignored = ignored
    with pytest.raises(InvalidArgumentError, match="ignores the conditions of puts"):
        store.check()


@pytest.mark.parametrize("url", ["memory://folder", "gs://bucket/folder", "simplecache::s3://bucket/folder"])
def test_other_stores_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="has no conditional puts"):
        ConditionalStore(url)


def test_a_bucket_that_is_missing(server: S3Server) -> None:
    with pytest.raises(UnwritableError, match="no such bucket"):
        ConditionalStore("s3://nowhere/folder").check()


def test_a_file_that_is_too_large_is_not_read(
    server: S3Server, store: ConditionalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.put("large", b"0123456789", None)
    monkeypatch.setattr(conditional_store, "JSON_BYTES", 9)
    with pytest.raises(RemoteError, match="it has 10 bytes, more than the limit of 9"):
        store.read("large")

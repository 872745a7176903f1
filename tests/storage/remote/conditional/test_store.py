"""Puts with conditions, against a server of each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gear_data.errors import InvalidArgumentError, RemoteError, UnwritableError
from gear_data.storage.remote.conditional.store import KINDS, ConditionalStore
from gear_data.storage.remote.object_store import ObjectStore
from tests.support.buckets.invariants import check_conditions, check_count
from tests.support.buckets.kinds import SERVERS, bucket_server
from tests.support.buckets.server import CONDITIONS, BucketServer


@pytest.fixture(scope="module", params=list(SERVERS))
def module_server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    with bucket_server(request.param) as server:
        yield server


@pytest.fixture
def server(module_server: BucketServer) -> Iterator[BucketServer]:
    yield module_server
    module_server.reset()


@pytest.fixture
def store(server: BucketServer, tmp_path: Path) -> ConditionalStore:
    return ConditionalStore(f"{server.scheme}://bucket/{tmp_path.name}")


def test_puts_with_conditions(store: ConditionalStore, server: BucketServer) -> None:
    check_conditions(store, server.no_version)


def test_only_one_of_several_writers_succeeds(store: ConditionalStore) -> None:
    check_count(store)


def test_the_check_leaves_nothing(store: ConditionalStore, server: BucketServer) -> None:
    store.check()
    removed = [path for method, path in server.requests if method == "DELETE"]
    assert removed[-1].rpartition("/")[0] == f"/{store.name.partition('://')[2]}/journals"
    assert store.read(removed[-1].partition(f"{store.name.partition('://')[2]}/")[2]) is None


@pytest.mark.parametrize("ignored", [CONDITIONS, CONDITIONS[:1], CONDITIONS[1:]])
def test_a_server_that_ignores_conditions_is_refused(
    store: ConditionalStore, server: BucketServer, ignored: tuple[str, ...]
) -> None:
    server.ignored = ignored
    with pytest.raises(InvalidArgumentError, match="ignores the conditions of puts"):
        store.check()


@pytest.mark.parametrize("url", ["memory://folder", "http://bucket/folder", "simplecache::s3://bucket/folder"])
def test_other_stores_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="has no conditional puts"):
        ConditionalStore(url)


def test_a_bucket_that_is_missing(server: BucketServer) -> None:
    with pytest.raises(UnwritableError, match="no such bucket"):
        ConditionalStore(f"{server.scheme}://nowhere/folder").check()


@pytest.mark.parametrize("status", [401, 403])
def test_refused_rights(store: ConditionalStore, server: BucketServer, status: int) -> None:
    server.fault = lambda verb, path: (status, False) if verb == "PUT" else None
    with pytest.raises(UnwritableError):
        store.check()


def test_every_kind_has_a_server() -> None:
    assert {id(KINDS[scheme]) for scheme in SERVERS} == {id(kind) for kind in KINDS.values()}


def test_a_removal_that_is_refused(store: ConditionalStore, server: BucketServer) -> None:
    objects = ObjectStore(store.name)
    assert store.put("a", b"", None)
    server.fault = lambda verb, path: (403, False) if verb in ("DELETE", "POST") else None  # POST: S3's list of objects
    with pytest.raises(RemoteError, match="cannot be cleared"):
        objects.remove_all(["a"])
    server.reset()
    objects.remove_all(["a", "b"])
    assert store.read("a") is None

"""Conditional puts and Writers against Azurite."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import gear_data
from gear_data.errors import UnwritableError
from gear_data.storage.remote.conditional.store import ConditionalStore
from gear_data.storage.remote.object_store import ObjectStore
from tests.support.buckets.azure import AzureServer
from tests.support.buckets.azurite import azurite
from tests.support.buckets.invariants import check_conditions, check_count
from tests.support.buckets.recordings import add_episodes, check_dataset, objects


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with azurite(tmp_path_factory.mktemp("azurite")):
        yield


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "journals"))
    return f"abfs://bucket/{tmp_path.name}"


def test_puts_with_conditions(url: str) -> None:
    store = ConditionalStore(url)
    store.check()
    assert not objects(url)
    check_conditions(store, AzureServer.no_version)
    check_count(store)
    with pytest.raises(UnwritableError, match="no such bucket"):
        ConditionalStore("az://nowhere/folder").check()


def test_writers_that_publish_at_once(url: str, tmp_path: Path) -> None:
    failures = []

    def record(first: int) -> None:
        try:
            with gear_data.Writer(url, durability="os", shard_bytes=1024) as writer:
                for number in range(first, first + 6):
                    add_episodes(writer, [number])
                    if number % 2:
                        writer.seal()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=record, args=(100 * k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_dataset(url, [100 * k + i for k in range(2) for i in range(6)], tmp_path / "plain")
    newest = gear_data.open(url)
    left = {file for file in objects(url) if file.startswith(("shards/", "tables/"))}
    generations = [newest, *(newest.at_generation(number) for number in range(1, newest.generation))]
    assert left == {entry.file for each in generations for entry in each.manifest.files}


def test_a_file_of_several_blocks(url: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (70 << 12))  # more than one Put Blob of adlfs
    store = ObjectStore(url)
    store.upload(large, "shards/large")
    assert store.reader("shards/large", large.stat().st_size).read() == large.read_bytes()
    store.remove_all(["shards/large", "shards/missing"])
    assert not objects(url)

"""File stores at paths and URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsspec.registry import known_implementations

import gear_data
from gear_data.errors import (
    DatasetNotFoundError,
    DestinationExistsError,
    InvalidArgumentError,
    MissingExtraError,
    SourceNotFoundError,
    UnwritableError,
)
from gear_data.storage.remote.object_store import ObjectStore, open_file_store
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.storage.writing.file_store import LocalFileStore


@pytest.mark.parametrize("kind", ["memory", "s3", "local"])
def test_file_stores(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = str(tmp_path / "d") if kind == "local" else request.getfixturevalue(f"{kind}_url")
    store = open_file_store(place)
    assert isinstance(store, LocalFileStore if kind == "local" else ObjectStore)
    assert (store.files(), store.size("a/b")) == ([], None)
    with pytest.raises(FileNotFoundError):
        store.read("a/b")
    for name, data in (("a/b", b"one"), ("a/c/d", b""), ("ab", b"three"), (".progress/x", b"four")):
        with store.writing(name) as path:
            path.write_bytes(data)
    with pytest.raises(KeyError), store.writing("a/failed") as path:
        path.write_bytes(b"half")
        raise KeyError
    with store.writing("ab") as path, store.locked("held") as lock:
        path.write_bytes(b"five!")
        lock.check()
        assert store.files("held") == ["held/.lock"]
        with pytest.raises(DestinationExistsError, match=f"process {os.getpid()} on "), store.locked("held"):
            pass
        store.clear("held", keep="held/.lock")
        lock.check()
        store.remove("held/.lock")
        with pytest.raises((DestinationExistsError, UnwritableError)):
            lock.check()
    assert sorted(store.files()) == [".progress/x", "a/b", "a/c/d", "ab"]
    assert store.files("a") == ["a/b", "a/c/d"]
    assert (store.read("ab"), store.size("ab"), store.size("a/c/d"), store.size("a")) == (b"five!", 5, 0, None)
    store.remove("a")
    store.remove("a")
    store.remove("nothing")
    assert sorted(store.files()) == [".progress/x", "ab"]
    store.clear("", keep="ab")
    assert store.files() == ["ab"]


def test_a_partial_upload_is_repeated(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem, _ = filesystem_of(memory_url)
    put, sent = filesystem.put_file, []

    def short(local: str, remote: str) -> None:
        sent.append(remote)
        put(local, remote)
        if len(sent) < 3:
            filesystem.pipe_file(remote, b"on")

    monkeypatch.setattr(type(filesystem), "put_file", lambda self, local, remote: short(local, remote))
    with ObjectStore(memory_url).writing("x") as path:
        path.write_bytes(b"one")
    assert len(sent) == 3
    assert ObjectStore(memory_url).read("x") == b"one"


def test_missing_buckets_and_unknown_urls(endpoint: str) -> None:
    with pytest.raises(UnwritableError, match="no such bucket"), ObjectStore("s3://no-such/x").writing("y") as path:
        path.write_bytes(b"one")
    with pytest.raises(DatasetNotFoundError, match="s3://bucket/nothing: no such dataset"):
        gear_data.open("s3://bucket/nothing")
    with pytest.raises(SourceNotFoundError, match="s3://bucket/nothing"):
        gear_data.convert("s3://bucket/nothing", "memory://x")
    with pytest.raises(InvalidArgumentError, match="unheard://x"):
        gear_data.open("unheard://x")


def test_a_url_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "far", {"class": "not_there.Far", "err": "get not_there"})
    with pytest.raises(MissingExtraError, match="get not_there"):
        open_file_store("far://x")


def test_hub_urls_use_the_huggingface_hub() -> None:
    """The test makes no request."""
    filesystem, place = ObjectStore("hf://datasets/owner/name@main/data")._resolve("shards/0.arrow")
    assert type(filesystem).__name__ == "HfFileSystem"
    assert place == "datasets/owner/name@main/data/shards/0.arrow"


def test_a_name_with_a_second_url_is_one_file(memory_url: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with pytest.raises(FileNotFoundError):
        ObjectStore(memory_url).read(f"x::file://{secret}")


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_folder_whose_name_looks_like_a_pattern(kind: str, request: pytest.FixtureRequest) -> None:
    """Its files are removed, and not those of the folder that the pattern would match."""
    url = request.getfixturevalue(f"{kind}_url")
    named, other = ObjectStore(f"{url}/run[1]"), ObjectStore(f"{url}/run1")
    files = ["a/b", "a/c", "d", "e", "f"]
    for store in (named, other):
        for file in files:
            with store.writing(file) as path:
                path.write_bytes(b"data")
    assert named.files() == files
    named.remove("a")
    named.remove("d")
    named.remove("nothing")
    assert named.files() == ["e", "f"]
    named.remove_all(["e", "f", "nothing"])
    assert (named.files(), other.files()) == ([], files)

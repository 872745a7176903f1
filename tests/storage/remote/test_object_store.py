"""Sources, destinations and datasets behind URLs: fsspec's memory, and an S3 server on this machine."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import pickle
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.registry import known_implementations

import gear_data
from gear_data.common import retry
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    DestinationExistsError,
    InvalidArgumentError,
    ManifestError,
    MissingExtraError,
    RemoteError,
    SourceNotFoundError,
    UnwritableError,
)
from gear_data.storage.remote.files import filesystem_of, open_range_reader
from gear_data.storage.remote.object_store import ObjectStore, open_file_store
from gear_data.storage.writing.file_store import LocalFileStore


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "default-cache"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an S3 server with an empty bucket `bucket`."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            # What is tested are not the retries of botocore and s3fs, which wait for seconds.
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        s3fs.S3FileSystem().mkdir("bucket")
        yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(endpoint: str, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


class Proxy:
    """Passes connections on to a server, and cuts each of the first ones after so many bytes of its answers."""

    def __init__(self, endpoint: str, cuts: list[int]) -> None:
        host, port = endpoint.rsplit(":", 1)
        self._server = (host, int(port))
        self._cuts = cuts
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # it is closed
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`, which `close` does not
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            budget = self._cuts.pop(0) if self._cuts else None
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, budget), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, budget: int | None) -> None:
        try:
            while data := source.recv(1 << 14):
                if budget is not None and len(data) >= budget:
                    self.cut += 1
                    target.sendall(data[:budget])
                    break
                budget = None if budget is None else budget - len(data)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def through_proxy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[int]], Proxy]]:
    """Makes fsspec go through a proxy that cuts connections."""
    proxies = []

    def make(cuts: list[int]) -> Proxy:
        proxies.append(Proxy(endpoint, cuts))
        # fsspec makes another file system for another configuration.
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": proxies[-1].url})
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


def _equal_batches(first: Any, second: Any, **options: Any) -> int:
    arguments = {"batch_size": 8, "context": 5, "preset": "decision_transformer", "seed": 3, "steps": 12, **options}
    count = 0
    loaders = [gear_data.SequenceLoader(dataset, **arguments) for dataset in (first, second)]
    for mine, theirs in zip(*loaders, strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(np.asarray(mine[key]), np.asarray(theirs[key]), err_msg=key)
        count += 1
    return count


def _upload(folder: Path, url: str) -> Any:
    filesystem, place = filesystem_of(url)
    filesystem.put(f"{folder}/", place, recursive=True)
    return filesystem, place


@pytest.fixture
def remote(memory_url: str, rollouts_path: Path) -> str:
    """`rollouts` as a dataset at a URL, which a test may change."""
    _upload(rollouts_path, memory_url)
    return memory_url


# Stores


@pytest.mark.parametrize("kind", ["memory", "s3", "local"])
def test_a_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
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
    with store.writing("ab") as path, store.locked(".progress/.lock"):
        path.write_bytes(b"five!")
    assert sorted(set(store.files()) - {".progress/.lock"}) == [".progress/x", "a/b", "a/c/d", "ab"]
    assert store.files("a") == ["a/b", "a/c/d"]
    assert (store.read("ab"), store.size("ab"), store.size("a/c/d"), store.size("a")) == (b"five!", 5, 0, None)
    store.remove("a")
    store.remove("a")
    store.remove("nothing")
    assert sorted(set(store.files()) - {".progress/.lock"}) == [".progress/x", "ab"]


def test_an_upload_that_arrives_in_part_is_sent_again(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_places_that_are_none(endpoint: str) -> None:
    with pytest.raises(UnwritableError, match="no such bucket"), ObjectStore("s3://no-such/x").writing("y") as path:
        path.write_bytes(b"one")
    with pytest.raises(DatasetNotFoundError, match="s3://bucket/nothing: no such dataset"):
        gear_data.open("s3://bucket/nothing")
    with pytest.raises(SourceNotFoundError, match="s3://bucket/nothing"):
        gear_data.convert("s3://bucket/nothing", "memory://x")
    with pytest.raises(InvalidArgumentError, match="unheard://x"):
        gear_data.open("unheard://x")


def test_a_kind_of_url_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "far", {"class": "not_there.Far", "err": "get not_there"})
    with pytest.raises(MissingExtraError, match="get not_there"):
        open_file_store("far://x")


def test_hub_urls_are_huggingface_hubs() -> None:
    """No request is made for these."""
    filesystem, place = ObjectStore("hf://datasets/owner/name@main/data")._resolve("shards/0.arrow")
    assert type(filesystem).__name__ == "HfFileSystem"
    assert place == "datasets/owner/name@main/data/shards/0.arrow"


# Reading


class Flaky:
    """A file system of one file, of which every read fails in its turn."""

    def __init__(self, data: bytes, *answers: Any) -> None:
        self.data, self.answers, self.reads = data, list(answers), 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.reads += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return self.data[start:end] if answer is None else answer


def test_reads_at_any_place_survive_broken_connections() -> None:
    data = random.Random(0).randbytes(5 << 20)
    file = open_range_reader(Flaky(data, *[ConnectionResetError(), b"short", None] * 4), "x", len(data), "s3://b/x")
    model, steps = io.BytesIO(data), random.Random(1)
    for _ in range(60):
        place, count = steps.randrange(len(data) + 10), steps.choice([0, 1, 100, 1 << 16, 3 << 20])
        for each in (file, model):
            each.seek(place)
        assert file.read(count) == model.read(count)
        assert file.tell() == model.tell()
    file.seek(-10, io.SEEK_END)
    assert file.read() == data[-10:]


@pytest.mark.parametrize(
    ("answers", "reads", "message"),
    [
        (
            [ConnectionResetError("cut")] * 9,
            retry.MAX_ATTEMPTS,
            "cannot be read, tried 5 times: ConnectionResetError: cut",
        ),
        ([b"", b"", b"", b"", b""], retry.MAX_ATTEMPTS, "received 0 of 100 bytes"),
        ([PermissionError("no")], 1, "cannot be read: PermissionError: no"),
        ([FileNotFoundError("no")], 1, "the file no longer exists"),
        ([b"x" * 200], 1, "does not support range requests"),
    ],
)
def test_reads_that_fail_for_good(answers: list[Any], reads: int, message: str) -> None:
    filesystem = Flaky(b"x" * 100, *answers)
    with pytest.raises(RemoteError, match=f"s3://b/x: .*{message}"):
        open_range_reader(filesystem, "x", 100, "s3://b/x").read()
    assert filesystem.reads == reads


def _http_error(status: int) -> Exception:
    error = Exception("answered")
    error.status = status  # type: ignore[attr-defined]
    return error


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_answers_that_may_pass(status: int) -> None:
    assert retry.is_transient(_http_error(status))
    assert retry.is_transient(_caused(OSError("unknown"), _http_error(status)))


@pytest.mark.parametrize(
    "error",
    [
        _http_error(403),
        _http_error(404),
        FileNotFoundError(),
        PermissionError(),
        OSError(errno.ENOSPC, "full"),
        ValueError(),
        RemoteError("was tried already"),
    ],
)
def test_failures_that_stay(error: Exception) -> None:
    assert not retry.is_transient(error)


def test_the_libraries_failures_pass() -> None:
    aiohttp, exceptions = pytest.importorskip("aiohttp"), pytest.importorskip("botocore.exceptions")
    passing = [
        aiohttp.ClientPayloadError(),
        aiohttp.ServerDisconnectedError(),
        exceptions.EndpointConnectionError(endpoint_url="x"),
        exceptions.ReadTimeoutError(endpoint_url="x"),
        exceptions.ClientError({"ResponseMetadata": {"HTTPStatusCode": 503}, "Error": {}}, "GetObject"),
    ]
    denied = exceptions.ClientError({"ResponseMetadata": {"HTTPStatusCode": 403}, "Error": {}}, "GetObject")
    assert [retry.is_transient(error) for error in (*passing, denied)] == [True] * 5 + [False]
    with pytest.raises(RemoteError, match="Unable to locate credentials"):
        retry.with_retries(_raise(exceptions.NoCredentialsError()), "be read", "s3://b/x")


def _raise(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_mistakes_are_not_taken_for_the_network() -> None:
    with pytest.raises(TypeError):
        retry.with_retries(_raise(TypeError("a mistake")), "be read", "s3://b/x")


def test_no_new_try_begins_after_the_patience_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)
    with pytest.raises(RemoteError, match="tried once"):
        retry.with_retries(_raise(ConnectionResetError()), "be read", "s3://b/x")


# Conversion


def test_conversion_from_and_to_s3(
    sources: Any, rollouts: Any, rollouts_path: Path, s3_url: str, tmp_path: Path
) -> None:
    sources.write_d4rl(tmp_path / "h/source.hdf5", rollouts)
    sources.write_episodes(tmp_path / "p/data.parquet", rollouts, row_group=7)
    _upload(tmp_path / "p", f"{s3_url}/p")
    _upload(tmp_path / "h", f"{s3_url}/h")
    local = gear_data.convert(tmp_path / "p", tmp_path / "local", shard_bytes=4096)
    assert gear_data.convert(f"{s3_url}/h", tmp_path / "from").fingerprint == gear_data.open(rollouts_path).fingerprint
    report = gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", shard_bytes=4096)
    assert (report.fingerprint, report.shards) == (local.fingerprint, local.shards)
    files = open_file_store(f"{s3_url}/to").files()
    assert not [name for name in files if ".progress" in name]
    with pytest.raises(DestinationExistsError):
        gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", overwrite=True)
    assert _equal_batches(gear_data.open(f"{s3_url}/to"), gear_data.open(tmp_path / "local")) == 12


def test_a_broken_off_conversion_to_s3_is_resumed(
    sources: Any, rollouts: Any, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources.write_episodes(tmp_path / "data.parquet", rollouts, row_group=7)
    local = gear_data.convert(source, tmp_path / "local", shard_bytes=2048)
    upload, sent = ObjectStore._upload, []

    def fails(self: ObjectStore, path: Path, file: str) -> None:
        if file.startswith("shards/"):
            sent.append(file)
            if len(sent) == 3:
                raise RemoteError("the server is gone", file=file)
        upload(self, path, file)

    monkeypatch.setattr(ObjectStore, "_upload", fails)
    with pytest.raises(RemoteError, match="the server is gone"):
        gear_data.convert(source, s3_url, shard_bytes=2048)
    with pytest.raises(DatasetNotFoundError, match="did not finish"):
        gear_data.open(s3_url)
    with pytest.raises(DestinationExistsError, match="--resume"):
        gear_data.convert(source, s3_url, shard_bytes=2048)
    assert gear_data.convert(source, s3_url, shard_bytes=2048, resume=True).fingerprint == local.fingerprint
    assert local.shards > 3
    assert len(sent) == local.shards + 1
    assert gear_data.verify(s3_url).ok


@pytest.mark.parametrize("seed", [0, 1])
def test_connections_that_are_cut(
    sources: Any, s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], Proxy], seed: int
) -> None:
    rollouts = sources.make_rollouts(60, seed=seed)
    for kind, write in (("h", sources.write_d4rl), ("p", sources.write_episodes)):
        write(tmp_path / kind / f"data.{'hdf5' if kind == 'h' else 'parquet'}", rollouts)
        _upload(tmp_path / kind, f"{s3_url}/{kind}")
    local = gear_data.convert(tmp_path / "p", tmp_path / "local", shard_bytes=4096)
    numbers = random.Random(seed)
    cuts = [numbers.randrange(1, 30000) for _ in range(40)]
    proxy = through_proxy(cuts)
    assert gear_data.convert(f"{s3_url}/p", f"{s3_url}/to", shard_bytes=4096).fingerprint == local.fingerprint
    assert gear_data.convert(f"{s3_url}/h", tmp_path / "from").fingerprint
    assert _equal_batches(gear_data.open(f"{s3_url}/to"), gear_data.open(tmp_path / "local")) == 12
    assert proxy.cut > 2


def test_a_dead_server_is_an_error_soon(
    s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], Proxy]
) -> None:
    through_proxy([]).close()
    begin = time.monotonic()
    with pytest.raises(RemoteError, match="tried 5 times"):
        gear_data.open(s3_url)
    with pytest.raises(RemoteError, match="tried 5 times"):
        gear_data.convert(s3_url, tmp_path / "x")
    assert time.monotonic() - begin < 30
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["hdf5", "parquet"])
def test_a_server_that_dies_in_the_middle_is_not_a_damaged_file(
    kind: str, sources: Any, s3_url: str, tmp_path: Path, through_proxy: Callable[[list[int]], Proxy]
) -> None:
    rollouts = sources.make_rollouts(200, seed=1)
    write = sources.write_d4rl if kind == "hdf5" else sources.write_episodes
    path = write(tmp_path / f"source/data.{kind}", rollouts)
    assert path.stat().st_size > 8000
    _upload(path.parent, s3_url)
    through_proxy([4000] * 1000)
    with pytest.raises(RemoteError):
        gear_data.convert(s3_url, tmp_path / "x")


# Datasets


def test_a_remote_dataset_is_the_local_one(remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    mine, theirs = gear_data.open(remote, cache_dir=cache), gear_data.open(rollouts_path)
    assert (mine.path, mine.fingerprint, mine.episodes.equals(theirs.episodes)) == (remote, theirs.fingerprint, True)
    assert len(list((cache / "files").iterdir())) == 1  # the episode table
    np.testing.assert_array_equal(mine.episode(3)["observations"], theirs.episode(3)["observations"])
    np.testing.assert_array_equal(mine.final(3)["observations"], theirs.final(3)["observations"])
    assert len(list((cache / "files").iterdir())) == 3
    assert _equal_batches(mine, theirs) == 12
    again = pickle.loads(pickle.dumps(mine.filter("length > 3")))
    assert again.fingerprint == theirs.filter("length > 3").fingerprint
    assert not (tmp_path / "default-cache").exists()
    assert repr(remote) in repr(mine)
    assert gear_data.verify(remote).ok


@pytest.mark.parametrize("preset", ["decision_transformer", "raw"])
@pytest.mark.parametrize("limit", [0, 12000, None])
def test_feeding_in_a_small_cache(
    limit: int | None, preset: str, remote: str, rollouts_path: Path, tmp_path: Path
) -> None:
    sizes = [path.stat().st_size for path in (rollouts_path / "shards").iterdir()]
    assert len(sizes) * min(sizes) > 12000 > 2 * max(sizes)
    mine = gear_data.open(remote, cache_dir=tmp_path, cache_bytes=limit)
    assert _equal_batches(mine, gear_data.open(rollouts_path), preset=preset, prefetch=4, steps=40) == 40
    total = sum(path.stat().st_size for path in (tmp_path / "files").iterdir())
    assert limit is None or total <= limit


def test_readers_in_threads_never_see_a_shard_go(remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    """Two loaders of one dataset take each other's shards away, while both read."""
    mine, theirs = gear_data.open(remote, cache_dir=tmp_path, cache_bytes=6000), gear_data.open(rollouts_path)
    failed: list[BaseException] = []

    def feed(seed: int) -> None:
        try:
            _equal_batches(mine, theirs, seed=seed, steps=30, batch_size=3)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=feed, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(mine._store.shards._buffers) <= 4


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_discounts_and_host_memory(residency: str, remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    mine = gear_data.open(remote, residency, cache_dir=tmp_path, cache_bytes=6000)
    theirs = gear_data.open(rollouts_path)
    assert _equal_batches(mine, theirs) == 12
    assert _equal_batches(mine.with_discount(0.9), theirs.with_discount(0.9)) == 12
    assert list((tmp_path / "sidecars").rglob("sidecar.json"))


def _child(dataset: Any, local: Any) -> None:
    _equal_batches(dataset, local, steps=4)


def test_a_forked_process_reads_it_too(endpoint: str, s3_url: str, rollouts_path: Path, tmp_path: Path) -> None:
    """What fsspec has open does not work there."""
    _upload(rollouts_path, s3_url)
    mine, theirs = gear_data.open(s3_url, cache_dir=tmp_path), gear_data.open(rollouts_path)
    mine.episode(0)["observations"]
    process = multiprocessing.get_context("fork").Process(target=_child, args=(mine, theirs))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_damaged_shard(remote: str, tmp_path: Path) -> None:
    filesystem, place = filesystem_of(remote)
    name = f"{place}/shards/000001.arrow"
    data = bytearray(filesystem.cat_file(name))
    data[len(data) // 2] ^= 1
    filesystem.pipe_file(name, bytes(data))
    dataset = gear_data.open(remote, cache_dir=tmp_path)
    bad = dataset.episodes.filter(dataset.episodes["shard"] == 1)["episode_id"][0]
    dataset.episode(0)["rewards"]
    with pytest.raises(CorruptShardError, match=rf"{remote}/shards/000001.arrow: its checksum is"):
        dataset.episode(bad)["rewards"]
    report = gear_data.verify(remote)
    assert [check.file for check in report.shards if not check.ok] == ["shards/000001.arrow"]
    # Sizes are looked at when it is opened.
    filesystem.pipe_file(name, bytes(data[:100]))
    with pytest.raises(CorruptShardError, match=r"000001.arrow: the file has 100 bytes"):
        gear_data.open(remote)
    filesystem.rm_file(name)
    with pytest.raises(CorruptShardError, match=r"000001.arrow: the file is missing"):
        gear_data.open(remote)


def test_a_shard_that_cannot_be_fetched_is_not_called_damaged(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem, _ = filesystem_of(remote)
    cat = type(filesystem).cat_file

    def breaks(self: Any, path: str, **options: Any) -> Any:
        if path.endswith("000001.arrow"):
            raise ConnectionResetError("cut")
        return cat(self, path, **options)

    monkeypatch.setattr(type(filesystem), "cat_file", breaks)
    for read in (gear_data.verify, lambda url: gear_data.open(url, on_bad_shard="skip")):
        with pytest.raises(RemoteError, match="000001"):
            read(remote)


def test_a_dataset_that_changes_is_not_mixed_with_what_it_was(
    remote: str, rollouts_path: Path, sources: Any, tmp_path: Path
) -> None:
    old = gear_data.open(remote, cache_dir=tmp_path / "cache")
    before = old.episode(0)["observations"].copy()
    source = sources.write_d4rl(tmp_path / "s.hdf5", sources.make_rollouts(40, seed=8))
    gear_data.convert(source, tmp_path / "other", shard_bytes=2048)
    filesystem, place = filesystem_of(remote)
    filesystem.rm(place, recursive=True)
    _upload(tmp_path / "other", remote)
    new, other = gear_data.open(remote, cache_dir=tmp_path / "cache"), gear_data.open(tmp_path / "other")
    assert _equal_batches(new, other) == 12
    np.testing.assert_array_equal(old.episode(0)["observations"], before)
    last = gear_data.open(rollouts_path).num_episodes - 1
    with pytest.raises((CorruptShardError, RemoteError)):
        old.episode(last)["observations"]


@pytest.mark.parametrize("name", ["../other/x", "/etc/passwd", "x::file:///etc/passwd"])
def test_a_manifest_does_not_lead_out_of_its_folder(name: str, remote: str, tmp_path: Path) -> None:
    filesystem, place = filesystem_of(remote)
    manifest = json.loads(filesystem.cat_file(f"{place}/manifest.json"))
    manifest["shards"][0]["file"] = name
    filesystem.pipe_file(f"{place}/manifest.json", json.dumps(manifest).encode())
    with pytest.raises((ManifestError, CorruptShardError), match=r"outside the dataset's folder|the file is missing"):
        gear_data.open(remote)


def test_a_place_name_with_a_second_url_is_one_file(memory_url: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with pytest.raises(FileNotFoundError):
        ObjectStore(memory_url).read(f"x::file://{secret}")


def test_folders_that_are_no_dataset(memory_url: str) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.pipe_file(f"{place}/x", b"")
    with pytest.raises(DatasetNotFoundError, match="no gear dataset here"):
        gear_data.open(memory_url)
    filesystem.pipe_file(f"{place}/manifest.json", b"\xff")
    with pytest.raises(ManifestError, match=r"manifest\.json: cannot be read"):
        gear_data.open(memory_url)


def test_the_commands_take_urls(remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gear_data.cli import main

    assert main(["verify", remote, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["inspect", remote]) == 0
    assert remote in capsys.readouterr().out

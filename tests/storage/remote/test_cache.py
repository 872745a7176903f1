"""The cache of remote files, without a network."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import xxhash

from gear_data.errors import (
    CorruptShardError,
    GearError,
    InvalidArgumentError,
    ManifestError,
    StorageFullError,
    UnwritableError,
)
from gear_data.storage.manifest import FileEntry
from gear_data.storage.remote.cache import CachedFile, ShardCache, default_folder


def _entry(data: bytes) -> FileEntry:
    return FileEntry("shards/x.arrow", len(data), f"xxh3-128:{xxhash.xxh3_128(data).hexdigest()}")


def _fetch(data: bytes, calls: list[bytes] | None = None) -> Callable[[BinaryIO], None]:
    def fetch(file: BinaryIO) -> None:
        file.write(data)
        if calls is not None:
            calls.append(data)

    return fetch


def _kept(cache: ShardCache) -> set[bytes]:
    return {path.read_bytes() for path in (cache.folder / "files").iterdir()}


DATA = [bytes([i]) * 100 for i in range(6)]
#: A test replaces the one of `os`.
_set_times = os.utime


def _use(cache: ShardCache, data: bytes, calls: list[bytes] | None = None) -> None:
    with cache.use(_entry(data), _fetch(data, calls), "s3://b/x") as path:
        assert path.read_bytes() == data
    # Modification times tell which file was used last, and two uses may have one time of the clock.
    for file in (cache.folder / "files").iterdir():
        earlier = file.stat().st_mtime - 1
        _set_times(file, (earlier, earlier))


def test_the_least_recently_used_file_is_removed_first(tmp_path: Path) -> None:
    cache, calls = ShardCache(tmp_path / "new" / "cache", 300), []
    for data in (*DATA[:3], DATA[0]):
        _use(cache, data, calls)
    assert cache.mark_used(_entry(DATA[1]))
    _use(cache, DATA[3], calls)
    assert _kept(cache) == {DATA[0], DATA[1], DATA[3]}
    assert calls == DATA[:4]
    assert not cache.holds(_entry(DATA[2]))
    assert not cache.mark_used(_entry(DATA[2]))
    _use(cache, DATA[2], calls)
    assert calls == [*DATA[:4], DATA[2]]


@pytest.mark.parametrize(("limit", "kept"), [(0, 0), (99, 0), (100, 1), (250, 2)])
def test_every_limit_holds(limit: int, kept: int, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, limit)
    for data in DATA * 2:
        _use(cache, data)
        assert len(_kept(cache)) <= kept


def test_a_cache_of_many_files_is_listed_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds all the time, and files of several processes count."""
    monkeypatch.setattr("gear_data.storage.remote.cache._MANY_FILES", 20)
    monkeypatch.setattr("gear_data.storage.remote.cache._PARTS", 4)
    cache, other = ShardCache(tmp_path, 64_000), ShardCache(tmp_path, 64_000)
    listings = []
    listed = cache.files

    def count_and_list() -> list[CachedFile]:
        listings.append(1)
        return listed()

    monkeypatch.setattr(cache, "files", count_and_list)
    for number in range(300):
        for each, part in ((cache, b"mine"), (other, b"other")):
            data = b"%s %d" % (part, number)
            with each.use(_entry(data.ljust(200)), _fetch(data.ljust(200)), "s3://b/x"):
                pass
        assert sum(path.stat().st_size for path in (tmp_path / "files").iterdir()) <= 64_000
    assert len(listings) < 100
    # The last files are there.
    assert all(cache.holds(_entry((b"other %d" % number).ljust(200))) for number in range(240, 300))


def test_used_files_are_kept(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 150)
    with cache.use(_entry(DATA[0]), _fetch(DATA[0]), "x") as first:
        with ShardCache(tmp_path, 150).use(_entry(DATA[1]), _fetch(DATA[1]), "x") as second:
            assert first.exists() and second.exists()
        assert first.exists()
    _use(cache, DATA[2])
    assert _kept(cache) == {DATA[2]}


def test_files_that_only_others_can_write_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users share a cache, or it is mounted read-only. Root may set all times, so the system's answer is made here."""
    cache, calls = ShardCache(tmp_path, 1000), []
    _use(cache, DATA[0], calls)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    _use(cache, DATA[0], calls)
    assert cache.mark_used(_entry(DATA[0]))
    assert calls == [DATA[0]]


def test_files_that_only_another_user_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read all files, so the system's answer is made here."""
    cache = ShardCache(tmp_path, 1000)
    _use(cache, DATA[0])
    opened = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).parent == tmp_path / "files":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    failure = pytest.raises(UnwritableError, match=r"cannot be read: Permission denied\n.*cache_dir=")
    with failure, cache.use(_entry(DATA[0]), _fetch(DATA[0]), "s3://b/x"):
        pytest.fail("the block must not run")


def test_datasets_share_equal_files(tmp_path: Path) -> None:
    calls: list[bytes] = []
    _use(ShardCache(tmp_path, 1000), DATA[0], calls)
    _use(ShardCache(tmp_path, 1000), DATA[0], calls)
    assert len(calls) == 1


def test_a_corrupt_download_is_repeated_once(tmp_path: Path) -> None:
    cache, answers = ShardCache(tmp_path, 1000), [DATA[1], DATA[0]]

    def fetch(file: BinaryIO) -> None:
        file.write(answers.pop(0))

    with cache.use(_entry(DATA[0]), fetch, "s3://b/x") as path:
        assert path.read_bytes() == DATA[0]
    answers[:] = [DATA[1], DATA[2]]
    failure = pytest.raises(CorruptShardError, match=r"s3://b/x: its checksum is .*fetched twice")
    with failure, cache.use(_entry(DATA[3]), fetch, "s3://b/x"):
        pytest.fail("the block must not run")
    assert _kept(cache) == {DATA[0]}


def test_a_failed_download_leaves_no_file(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 1000)

    def fetch(file: BinaryIO) -> None:
        file.write(b"half")
        raise ConnectionError("cut")

    with pytest.raises(GearError), cache.use(_entry(DATA[0]), fetch, "x"):
        pytest.fail("the block must not run")
    assert _kept(cache) == set()

    def full(file: BinaryIO) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFullError), cache.use(_entry(DATA[0]), full, "x"):
        pytest.fail("the block must not run")


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 1000)
    _use(cache, DATA[0])
    dead, alive = tmp_path / "files" / "00.1-2.fetching", tmp_path / "files" / "00.3-4.fetching"
    dead.write_bytes(b"dead")
    alive.write_bytes(b"alive")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _use(cache, DATA[1])
    assert _kept(cache) == {DATA[0], DATA[1], b"alive"}


def _one_of_several(folder: Path, log: Path, data: bytes) -> None:
    def fetch(file: BinaryIO) -> None:
        with log.open("ab") as notes:
            notes.write(b"fetched\n")
        time.sleep(0.2)
        file.write(data)

    with ShardCache(folder, 1000).use(_entry(data), fetch, "x") as path:
        if path.read_bytes() != data:
            os._exit(1)


def test_one_of_several_processes_and_threads_fetches(tmp_path: Path) -> None:
    arguments = (tmp_path / "cache", tmp_path / "log", DATA[0])
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_one_of_several, args=arguments) for _ in range(3)]
    threads = [threading.Thread(target=_one_of_several, args=arguments) for _ in range(3)]
    for worker in (*processes, *threads):
        worker.start()
    for worker in (*processes, *threads):
        worker.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "fetched\n"


def test_many_threads_in_a_small_cache(tmp_path: Path) -> None:
    """Files are evicted while threads request them; each thread gets the right one."""
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        cache = ShardCache(tmp_path, 250)
        try:
            for i in range(40):
                data = DATA[(seed * 7 + i * (seed + 1)) % len(DATA)]
                with cache.use(_entry(data), _fetch(data), "x") as path:
                    time.sleep(0.001)
                    assert path.read_bytes() == data
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert sum(map(len, _kept(ShardCache(tmp_path, 250)))) <= 250


def test_the_default_limit_leaves_half_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, disk = ShardCache(tmp_path, None), 600

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=disk - sum(map(len, _kept(cache))))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    for data in DATA:
        _use(cache, data)
    assert _kept(cache) == set(DATA[3:])


def test_bad_arguments(tmp_path: Path) -> None:
    for limit in (-1, True, 1.5, "1G"):
        with pytest.raises(InvalidArgumentError, match="cache_bytes"):
            ShardCache(tmp_path, limit)  # type: ignore[arg-type]
    for checksum in ("", "xxh3-128:../../etc/passwd", "xxh3-128:" + "0" * 31, "md5:" + "0" * 32):
        with pytest.raises(ManifestError, match="checksum"):
            ShardCache(tmp_path, None).holds(FileEntry("x", 1, checksum))


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "own"))
    assert default_folder() == tmp_path / "own"
    monkeypatch.delenv("GEAR_DATA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "gear-data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "gear-data"

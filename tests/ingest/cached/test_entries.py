"""The conversions in the cache: lists, sizes, removal, what is in use."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import UnwritableError
from gear_data.ingest.cached import entries
from gear_data.ingest.cached.entries import cache_size, find_entries, list_entries, prune, read_header, remove_entry
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.storage.writing.folder_lock import folder_lock
from tests.support.rollouts import Rollout, write_d4rl


def test_entries_in_use_are_not_pruned(tmp_path: Path, rollouts: list[Rollout], cache: Path) -> None:
    paths = [write_d4rl(tmp_path / f"{number}.hdf5", rollouts[: 9 + number]) for number in range(3)]
    for number, path in enumerate(paths):
        folder = Path(gear_data.open(path).path)
        os.utime(folder.parent / "entry.json", (number, number))
    used = gear_data.open(paths[0])  # also marks it as used now
    assert [entry.source for entry in list_entries(cache)] == [str(paths[1]), str(paths[2]), str(paths[0])]
    sizes = [entry.bytes for entry in list_entries(cache)]
    assert cache_size(cache).bytes == sum(sizes)
    assert prune(cache, sum(sizes)) == 0
    assert prune(cache, sum(sizes) - 1) == sizes[0]
    assert [entry.source for entry in list_entries(cache)] == [str(paths[2]), str(paths[0])]
    assert prune(cache, 0) == sizes[1]
    (entry,) = list_entries(cache)
    assert entry.source == str(paths[0])
    assert not remove_entry(entry.folder)
    assert used[3]["actions"].shape[1] == 2
    view = used.filter("length > 3")
    del used
    assert not remove_entry(entry.folder)
    del view
    assert remove_entry(entry.folder)
    assert list_entries(cache) == []
    assert gear_data.open(paths[0]).num_episodes == 9


def test_an_entry_that_is_being_converted_is_kept(source: Path, cache: Path) -> None:
    folder = Path(gear_data.open(source).path).parent
    with folder_lock(folder, name="x", hint=""):
        assert not remove_entry(folder)
        assert prune(cache, 0) == 0
    assert find_entries(cache, str(source))[0].key == folder.name
    assert prune(cache, 0) > 0


def test_what_a_killed_removal_left_is_converted_again(
    source: Path, rollouts: list[Rollout], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(gear_data.open(source).path)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(entries.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(cache, 0)
    assert list((folder / "shards").iterdir()) and not (folder / "manifest.json").exists()
    assert read_header(folder.parent) is None
    dataset = gear_data.open(source)
    assert Path(dataset.path) == folder and dataset.num_episodes == len(rollouts)
    assert gear_data.verify(folder).ok
    assert len(list_entries(cache)) == 1


def test_a_folder_that_is_removed_meanwhile(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a conversion removes the folder of its progress."""
    folder = Path(gear_data.open(source).path)
    progress, size = folder / ".progress", cache_size(cache).conversions
    progress.mkdir()
    scandir = os.scandir

    def removed_before(path: Any) -> Any:
        if str(path) == str(progress):
            progress.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_before)
    (entry,) = list_entries(cache)
    assert not progress.exists() and entry.source == str(source)
    assert entry.bytes >= size


def test_entries_are_found_by_paths_with_links(tmp_path: Path, rollouts: list[Rollout], cache: Path) -> None:
    (tmp_path / "mnt").mkdir()
    write_d4rl(tmp_path / "mnt/v2.hdf5", rollouts)
    (tmp_path / "mnt/hopper.hdf5").symlink_to("v2.hdf5")
    (tmp_path / "data").symlink_to("mnt")
    key = Path(gear_data.open(tmp_path / "data/hopper.hdf5").path).parent.name
    for folder in ("data", "mnt"):
        assert [entry.key for entry in find_entries(cache, str(tmp_path / folder / "hopper.hdf5"))] == [key]


def test_fetched_files_are_of_the_same_cache(source: Path, rollouts_path: Path, memory_url: str, cache: Path) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.put(f"{rollouts_path}/", place, recursive=True)
    gear_data.open(memory_url)[0]["actions"].sum()
    gear_data.open(source)
    size = cache_size(cache)
    assert size.fetched == sum(path.stat().st_size for path in (cache / "files").iterdir()) > 0
    assert size.conversions == list_entries(cache)[0].bytes > 0
    # The file was used before the conversion.
    assert prune(cache, size.conversions) == size.fetched
    assert cache_size(cache).fetched == 0


def test_the_cache_of_another_user(
    rollouts_path: Path, memory_url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files can be read, and not removed."""
    filesystem, place = filesystem_of(memory_url)
    filesystem.put(f"{rollouts_path}/", place, recursive=True)
    gear_data.open(memory_url)[0]["actions"].sum()

    def refused(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(UnwritableError, match="Permission denied") as caught:
        prune(cache, 0)
    assert caught.value.file == str(cache)
    assert cache_size(cache).fetched > 0

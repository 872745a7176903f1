"""Datasets behind URLs."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    DatasetReplacedError,
    GearError,
    ManifestError,
    RemoteError,
    UnknownFormatError,
)
from gear_data.storage.remote.range_reader import filesystem_of
from tests.support.hangs import SPECIAL_FILES, no_hang
from tests.support.manifests import signed
from tests.support.remote import check_equal_batches, upload
from tests.support.replacement.datasets import NEW, OLD, convert


def test_a_remote_dataset_equals_the_local_one(remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    mine, theirs = gear_data.open(remote, cache_dir=cache), gear_data.open(rollouts_path)
    assert (mine.path, mine.fingerprint, mine.episodes.equals(theirs.episodes)) == (remote, theirs.fingerprint, True)
    assert len(list((cache / "files").iterdir())) == 1  # the episode table
    np.testing.assert_array_equal(mine.episode(3)["observations"], theirs.episode(3)["observations"])
    np.testing.assert_array_equal(mine.final(3)["observations"], theirs.final(3)["observations"])
    assert len(list((cache / "files").iterdir())) == 3
    assert check_equal_batches(mine, theirs) == 12
    again = pickle.loads(pickle.dumps(mine.filter("length > 3")))
    assert again.fingerprint == theirs.filter("length > 3").fingerprint
    assert not (tmp_path / "default-cache").exists()
    assert repr(remote) in repr(mine)
    assert gear_data.verify(remote).ok


@pytest.mark.parametrize("preset", ["decision_transformer", "raw"])
@pytest.mark.parametrize("limit", [0, 12000, None])
def test_feeding_from_a_small_cache(
    limit: int | None, preset: str, remote: str, rollouts_path: Path, tmp_path: Path
) -> None:
    sizes = [path.stat().st_size for path in (rollouts_path / "shards").iterdir()]
    assert len(sizes) * min(sizes) > 12000 > 2 * max(sizes)
    mine = gear_data.open(remote, cache_dir=tmp_path, cache_bytes=limit)
    assert check_equal_batches(mine, gear_data.open(rollouts_path), preset=preset, prefetch=4, steps=40) == 40
    total = sum(path.stat().st_size for path in (tmp_path / "files").iterdir())
    assert limit is None or total <= limit


def test_readers_in_threads_keep_their_shards(remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    """Loaders of one dataset evict each other's shards while all of them read."""
    mine, theirs = gear_data.open(remote, cache_dir=tmp_path, cache_bytes=6000), gear_data.open(rollouts_path)
    failed: list[BaseException] = []

    def feed(seed: int) -> None:
        try:
            check_equal_batches(mine, theirs, seed=seed, steps=30, batch_size=3)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=feed, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(mine.store.shards._buffers) <= 4


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_discounts_and_host_memory(residency: str, remote: str, rollouts_path: Path, tmp_path: Path) -> None:
    mine = gear_data.open(remote, residency, cache_dir=tmp_path, cache_bytes=6000)
    theirs = gear_data.open(rollouts_path)
    assert check_equal_batches(mine, theirs) == 12
    assert check_equal_batches(mine.with_discount(0.9), theirs.with_discount(0.9)) == 12
    assert list((tmp_path / "sidecars").rglob("sidecar.json"))


def _child(dataset: Any, local: Any) -> None:
    check_equal_batches(dataset, local, steps=4)


def test_a_forked_process_reads(endpoint: str, s3_url: str, rollouts_path: Path, tmp_path: Path) -> None:
    """fsspec's open connections do not work in a forked process."""
    upload(rollouts_path, s3_url)
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
    # Opening checks sizes.
    filesystem.pipe_file(name, bytes(data[:100]))
    with pytest.raises(CorruptShardError, match=r"000001.arrow: the file has 100 bytes"):
        gear_data.open(remote)
    filesystem.rm_file(name)
    with pytest.raises(CorruptShardError, match=r"000001.arrow: the file is missing"):
        gear_data.open(remote)


def test_an_unreachable_shard_is_not_reported_as_damaged(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_versions_of_a_changed_dataset_are_not_mixed(
    remote: str, rollouts_path: Path, sources: Any, tmp_path: Path
) -> None:
    old = gear_data.open(remote, cache_dir=tmp_path / "cache")
    before = old.episode(0)["observations"].copy()
    source = sources.write_d4rl(tmp_path / "s.hdf5", sources.make_rollouts(40, seed=8))
    gear_data.convert(source, tmp_path / "other", shard_bytes=2048)
    filesystem, place = filesystem_of(remote)
    filesystem.rm(place, recursive=True)
    upload(tmp_path / "other", remote)
    new, other = gear_data.open(remote, cache_dir=tmp_path / "cache"), gear_data.open(tmp_path / "other")
    assert check_equal_batches(new, other) == 12
    np.testing.assert_array_equal(old.episode(0)["observations"], before)
    last = gear_data.open(rollouts_path).num_episodes - 1
    with pytest.raises(DatasetReplacedError):
        old.episode(last)["observations"]


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_a_replaced_remote_dataset_is_named(residency: str, memory_url: str, tmp_path: Path) -> None:
    """The other dataset has files of the same names and sizes."""
    filesystem, place = upload(convert(tmp_path / "old", OLD), memory_url)
    new = convert(tmp_path / "new", NEW)
    ds = gear_data.open(memory_url, residency, cache_dir=tmp_path / "cache")
    pickled = pickle.dumps(ds)
    assert ds.episode(0)["rewards"][0] == OLD
    filesystem.rm(place, recursive=True)
    upload(new, memory_url)
    seen = set()
    with pytest.raises(DatasetReplacedError) if residency == "mmap" else nullcontext():
        for episode in ds:
            seen.add(float(episode["rewards"][0]))
    assert seen == {OLD}
    with pytest.raises(DatasetReplacedError):
        pickle.loads(pickled)
    filesystem.rm(place, recursive=True)
    if residency == "mmap":
        with pytest.raises(DatasetReplacedError):
            ds.episode(1)["rewards"].sum()


@pytest.mark.parametrize("name", ["../other/x", "/etc/passwd", "x::file:///etc/passwd"])
def test_a_manifest_cannot_name_files_outside_its_folder(name: str, remote: str, tmp_path: Path) -> None:
    filesystem, place = filesystem_of(remote)
    manifest = json.loads(filesystem.cat_file(f"{place}/manifest.json"))
    manifest["shards"][0]["file"] = name
    filesystem.pipe_file(f"{place}/manifest.json", signed(manifest).encode())
    with pytest.raises((ManifestError, CorruptShardError), match=r"outside the dataset's folder|the file is missing"):
        gear_data.open(remote)


def test_folders_without_a_dataset(memory_url: str) -> None:
    filesystem, place = filesystem_of(memory_url)
    filesystem.pipe_file(f"{place}/x", b"")
    with pytest.raises(UnknownFormatError, match="the format is not recognised"):
        gear_data.open(memory_url)
    filesystem.pipe_file(f"{place}/.progress/x", b"")
    with pytest.raises(DatasetNotFoundError, match="did not finish"):
        gear_data.open(memory_url)
    filesystem.pipe_file(f"{place}/manifest.json", b"\xff")
    with pytest.raises(ManifestError, match=r"manifest\.json: cannot be read"):
        gear_data.open(memory_url)


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder"])
def test_special_files_behind_a_url(kind: str, rollouts_path: Path, tmp_path: Path) -> None:
    shutil.copytree(rollouts_path, tmp_path / "d")
    (tmp_path / "d/manifest.json").unlink()
    SPECIAL_FILES[kind](tmp_path / "d/manifest.json")
    with no_hang(), pytest.raises(GearError, match=r"manifest\.json"):
        gear_data.open(f"file://{tmp_path}/d")


def test_a_manifest_of_a_terabyte_behind_a_url(rollouts_path: Path, tmp_path: Path) -> None:
    shutil.copytree(rollouts_path, tmp_path / "d")
    os.truncate(tmp_path / "d/manifest.json", 1 << 40)
    with no_hang(), pytest.raises(GearError, match="1099511627776 bytes, more than the limit"):
        gear_data.open(f"file://{tmp_path}/d")


def test_the_commands_take_urls(remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gear_data.cli import main

    assert main(["verify", remote, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["inspect", remote]) == 0
    assert remote in capsys.readouterr().out

"""Tests conversions whose shards cannot be written."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    DatasetNotFoundError,
    StorageFullError,
)
from gear_data.storage.writing.shard_writer import ShardWriter

# Failures of the thread that writes shards.


def test_a_shard_that_cannot_be_finished(
    source: Path, rollouts: list[Any], sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at any shard raises an error and leaves no dataset.

    It also leaves no part of that shard for a resumed run.
    """
    finish = ShardWriter._finish
    shards = gear_data.convert(source, tmp_path / "whole", shard_bytes=2048).shards
    for bad in range(shards):

        def fail(writer: ShardWriter, unfinished: Any, *rest: Any, bad: int = bad) -> Any:
            if writer.finished_shards == bad:
                with unfinished.stack:
                    raise StorageFullError("no space left on the device")
            return finish(writer, unfinished, *rest)

        folder = tmp_path / f"d{bad}"
        with monkeypatch.context() as patch:
            patch.setattr(ShardWriter, "_finish", fail)
            with pytest.raises(StorageFullError):
                gear_data.convert(source, folder, shard_bytes=2048)
        with pytest.raises(DatasetNotFoundError):
            gear_data.open(folder)
        assert len(list((folder / "shards").glob("*.arrow"))) == bad if bad else not folder.exists()
        assert not list(tmp_path.rglob("*.tmp"))
        gear_data.convert(source, folder, shard_bytes=2048, resume=True)
        sources.check_dataset(folder, rollouts)


@pytest.mark.usefixtures("small_reads")
def test_a_shard_being_written_is_kept_when_the_source_fails(
    source: Path, rollouts: list[Any], sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = sources.Rollout({name: values[:0] for name, values in rollouts[0].columns.items()}, rollouts[0].final)
    sources.write_episodes(source, [*rollouts[:-1], nothing], row_group=1)
    begun, finish = [], ShardWriter._finish

    def slow(writer: ShardWriter, unfinished: Any, *rest: Any) -> Any:
        begun.append(unfinished.name)
        time.sleep(0.1)
        return finish(writer, unfinished, *rest)

    monkeypatch.setattr(ShardWriter, "_finish", slow)
    with pytest.raises(BadEpisodeError):
        gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    assert len(begun) > 1
    assert sorted(str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*.arrow")) == sorted(begun)


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def large_source(sources: Any, tmp_path: Path) -> Path:
    """Writes about 300 KB of steps."""
    rollouts = sources.make_rollouts(200, seed=1, max_length=120)
    return sources.write_episodes(tmp_path / "large.parquet", rollouts, row_group=10)  # type: ignore[no-any-return]


@pytest.mark.processes
@pytest.mark.parametrize("free", [0, 40_000])
def test_disk_full_before_the_first_shard(free: int, small_disk: Path, large_source: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(256 * 1024 - free))
    with pytest.raises(StorageFullError, match="no space left") as error:
        gear_data.convert(large_source, small_disk / "d")
    assert isinstance(error.value, OSError)
    assert str(small_disk / "d") in str(error.value.file)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.processes
def test_disk_full_at_a_later_shard(small_disk: Path, large_source: Path, sources: Any, tmp_path: Path) -> None:
    options = {"shard_bytes": 16 << 10}
    gear_data.convert(large_source, tmp_path / "whole", **options)
    target = small_disk / "d"
    for space in (60_000, 130_000):  # full twice, the second time at a later shard
        (small_disk / "filler").write_bytes(bytes(256 * 1024 - space))
        with pytest.raises(StorageFullError, match=r"finished shards? (is|are) kept: --resume"):
            gear_data.convert(large_source, target, **options, resume=target.exists())
        assert not list(target.rglob("*.tmp"))
        with pytest.raises(DatasetNotFoundError, match="did not finish"):
            gear_data.open(target)
        (small_disk / "filler").unlink()
    finished = {path.name: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}
    assert len(finished) > 3
    # The dataset is larger than the disk, so the conversion continues in another folder.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(target, elsewhere)
    gear_data.convert(large_source, elsewhere, **options, resume=True)
    assert sources.folder_contents(elsewhere) == sources.folder_contents(tmp_path / "whole")
    assert {name: (elsewhere / "shards" / name).stat().st_mtime_ns for name in finished} == finished

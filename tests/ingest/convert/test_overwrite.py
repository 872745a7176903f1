"""Tests conversions that replace a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    DatasetNotFoundError,
    InvalidArgumentError,
    StorageFullError,
)
from gear_data.ingest import convert as convert_module


def test_overwrite_keeps_the_old_until_the_new_is_whole(
    source: Path, sources: Any, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gear_data.convert(source, tmp_path / "d")
    replace = convert_module.swap_folders
    seen = []

    def watched(folder: Path, target: Path) -> None:
        sources.check_dataset(tmp_path / "d", rollouts)
        seen.append(folder)
        replace(folder, target)

    monkeypatch.setattr(convert_module, "swap_folders", watched)
    sources.write_episodes(source, rollouts[:3])
    gear_data.convert(source, tmp_path / "d", overwrite=True)
    assert len(seen) == 1
    sources.check_dataset(tmp_path / "d", rollouts[:3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "s.parquet"]


@pytest.mark.parametrize("stop", [0, 2])
def test_overwrite_that_fails_leaves_the_old(
    stop: int, source: Path, sources: Any, rollouts: list[Any], stop_at: Any, tmp_path: Path
) -> None:
    gear_data.convert(source, tmp_path / "d")
    before = sources.folder_contents(tmp_path)
    stop_at(stop)
    with pytest.raises(StorageFullError) as error:
        gear_data.convert(source, tmp_path / "d", shard_bytes=2048, overwrite=True)
    assert "--resume" not in str(error.value)
    assert sources.folder_contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "s.parquet"]


def test_overwrite_with_a_source_that_cannot_be_read(source: Path, sources: Any, tmp_path: Path) -> None:
    gear_data.convert(source, tmp_path / "d")
    before = sources.folder_contents(tmp_path / "d")
    source.write_bytes(b"")
    with pytest.raises(CorruptSourceError):
        gear_data.convert(source, tmp_path / "d", overwrite=True)
    assert sources.folder_contents(tmp_path / "d") == before


@pytest.mark.parametrize(("place", "path"), [("", "."), ("shards", "..")])
def test_overwrite_of_the_current_folder(
    place: str, path: str, source: Path, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process would stay in the folder that is removed."""
    gear_data.convert(source, tmp_path / "d")
    before = sources.folder_contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "d" / place)
        advice = f"outside it, and give {(tmp_path / 'd').resolve()}"
        with pytest.raises(InvalidArgumentError, match=re.escape(advice)):
            gear_data.convert(source, path, overwrite=True)
    assert sources.folder_contents(tmp_path) == before
    gear_data.convert(source, tmp_path / "d", overwrite=True)


def test_overwrite_removes_files_of_a_killed_run(
    source: Path, sources: Any, rollouts: list[Any], half_done: Path, tmp_path: Path
) -> None:
    half_done.rename(tmp_path / ".e.gear-new")
    gear_data.convert(source, tmp_path / "e")
    gear_data.convert(source, tmp_path / "e", overwrite=True)
    sources.check_dataset(tmp_path / "e", rollouts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "s.parquet"]


@pytest.mark.usefixtures("small_reads")
def test_a_bad_episode_after_finished_shards_can_be_repaired(
    source: Path, sources: Any, rollouts: list[Any], tmp_path: Path
) -> None:
    """Resuming needs the same source by name and size. A repair in place keeps both."""
    table = sources.episode_table([r.columns for r in rollouts])
    sources.write_parquet(source, table, row_group=2)
    whole = source.read_bytes()
    nothing = sources.Rollout({name: values[:0] for name, values in rollouts[0].columns.items()}, rollouts[0].final)
    sources.write_episodes(source, [*rollouts[:-1], nothing], row_group=2)
    with pytest.raises(BadEpisodeError, match=r"finished shards? (is|are) kept") as error:
        gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    assert error.value.row == len(rollouts) - 1
    with pytest.raises(DatasetNotFoundError):
        gear_data.open(tmp_path / "d")
    source.write_bytes(whole)
    gear_data.convert(source, tmp_path / "d", shard_bytes=1024, overwrite=True)
    sources.check_dataset(tmp_path / "d", rollouts)

"""Mapped shards."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import CorruptShardError


def test_columns_are_read_only_views_of_the_mapping(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    shard = ds.episodes["shard"].to_list()
    for name in ds.schema.names:
        array = ds.episode(1)[name]
        assert not array.flags.writeable
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        assert np.shares_memory(ds.episode(1)[name], array)
        whole = ds.store.shards.column(shard[1], ds.schema.index(name))
        assert np.shares_memory(whole, array)
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    assert ds.episode(1)["terminated"].dtype == np.bool_


def test_many_shards_hold_no_file_descriptor(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(300, max_length=40)
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", rollouts), tmp_path / "d", shard_bytes=1024)
    before = len(os.listdir("/proc/self/fd"))
    ds = gear_data.open(tmp_path / "d")
    assert len(ds.manifest.shards) > 100
    arrays = [ds.episode(i)["observations"] for i in range(ds.num_episodes)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    np.testing.assert_array_equal(np.concatenate(arrays), np.concatenate([r.columns["observations"] for r in rollouts]))


def test_a_shard_truncated_after_opening(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """Reading a mapping past the end of its file would be a bus error."""
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", rollouts), tmp_path / "d", shard_bytes=2048)
    ds = gear_data.open(tmp_path / "d")
    shard = tmp_path / "d" / ds.manifest.shards[1].entry.file
    shard.write_bytes(shard.read_bytes()[:100])
    place = ds.episodes["shard"].to_list().index(1)
    np.testing.assert_array_equal(ds.episode(0)["rewards"], rollouts[0].columns["rewards"])
    with pytest.raises(CorruptShardError, match="000001"):
        ds.episode(place)["rewards"]
    shard.unlink()
    with pytest.raises(CorruptShardError, match="missing"):
        ds.episode(place)["rewards"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_shard_that_the_system_does_not_show_is_not_missing(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    shown = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.parent.name == "shards":
            raise OSError(code, os.strerror(code))
        return shown(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(CorruptShardError, match=rf"000000\.arrow: cannot be read: .*{os.strerror(code)}"):
        gear_data.open(rollouts_path)

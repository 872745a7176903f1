"""Damaged videos of an opened dataset."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.dataset.bad_shards import sound_episodes
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import CorruptShardError, DatasetReplacedError, EmptySourceError
from gear_data.storage.dataset_files import open_files
from gear_data.video.decoding.frame_cache import FrameCache
from gear_data.video.decoding.process_state import process_state
from tests.support.cameras.filmed import FPS, FRONT, WRIST, Filmed


@pytest.fixture
def copied(filmed: Filmed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Frames that other tests decoded are not read again.
    monkeypatch.setattr(process_state(), "cache", FrameCache())
    return Path(shutil.copytree(filmed.path, tmp_path / "dataset"))


def test_a_missing_video_is_an_error_when_it_is_read(copied: Path, filmed: Filmed) -> None:
    ds = gear_data.open(copied)
    (copied / "videos/wrist/1.mp4").unlink()
    with pytest.raises(CorruptShardError, match=r"wrist/1\.mp4: the file is missing"):
        _ = ds[1][WRIST][0]
    np.testing.assert_array_equal(ds[2][WRIST][0], filmed.frames[WRIST][2][0])


def test_a_damaged_packet_is_an_error(copied: Path) -> None:
    ds = gear_data.open(copied)
    path = copied / "videos/wrist/2.mp4"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptShardError):
        np.asarray(ds[2][WRIST])


def test_episodes_of_bad_videos_can_be_left_out(copied: Path) -> None:
    store = DatasetStore(open_files(copied), "mmap", frozenset({"videos/wrist/1.mp4", "videos/wrist/4.mp4"}))
    assert sound_episodes(store).tolist() == [0, 2, 3]
    store = DatasetStore(open_files(copied), "mmap", frozenset({"videos/front.mp4"}))
    with pytest.raises(EmptySourceError, match="every episode is in one of 1 damaged files"):
        sound_episodes(store)


def test_a_replaced_dataset_is_noticed(copied: Path) -> None:
    ds = gear_data.open(copied)
    frames = ds[0][FRONT]
    first = frames[0]
    (copied / "manifest.json").unlink()
    with pytest.raises(DatasetReplacedError):
        _ = ds[0][WRIST][0]
    # A file that was mapped goes on as it was.
    np.testing.assert_array_equal(frames[0], first)


@pytest.mark.processes
def test_bad_videos_are_skipped_at_opening(copied: Path, filmed: Filmed, tmp_path: Path) -> None:
    gear_data.export(gear_data.open(copied), tmp_path / "lerobot", "lerobot", fps=FPS)
    gear_data.convert(tmp_path / "lerobot", tmp_path / "converted", progress=False)
    (bad,) = (tmp_path / "converted").glob("videos/*wrist/*/file-002.mp4")
    bad.unlink()
    with pytest.warns(RuntimeWarning, match=r"file-002\.mp4 is left out"):
        ds = gear_data.open(tmp_path / "converted", on_bad_shard="skip")
    assert [episode.id for episode in ds] == [0, 1, 3, 4]
    np.testing.assert_array_equal(ds.with_discount(0.9)[2][WRIST], filmed.frames[WRIST][3])

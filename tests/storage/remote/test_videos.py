"""Cameras of datasets whose videos are at URLs."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.storage.videos import pages as pages_module
from gear_data.storage.videos.fetched import FetchedPackets
from gear_data.video.indexing.demux import index_file
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras
from tests.support.cameras.filmed import FRONT, WRIST, Filmed, decoded, film, moving_bar, write_video
from tests.support.remote import check_equal_batches, upload


@pytest.fixture(scope="module")
def plain(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    rollouts = sources.make_rollouts(2, seed=4)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset")
    return folder / "dataset"


def lengths_of(folder: Path) -> list[int]:
    return gear_data.open(folder).episodes["length"].to_list()


def test_a_dataset_on_s3(plain: Path, s3_url: str, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "d")
    filmed = Filmed(tmp_path / "d", film(tmp_path / "d", lengths_of(plain)))
    upload(filmed.path, s3_url)
    remote = gear_data.open(s3_url, cache_dir=tmp_path / "cache")
    for camera in (FRONT, WRIST):
        np.testing.assert_array_equal(remote[1][camera], filmed.frames[camera][1])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(remote))[0][WRIST][2:4], filmed.frames[WRIST][0][2:4])
    options = {"preset": "raw", "columns": [FRONT], "batch_size": 4, "context": 3, "framework": "numpy", "steps": 3}
    assert check_equal_batches(remote, gear_data.open(filmed.path), **options) == 3


def test_a_local_dataset_that_links_to_a_url(
    plain: Path, memory_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(plain, tmp_path / "d")
    lengths = lengths_of(plain)
    write_video(tmp_path / "videos" / "all.mp4", moving_bar(sum(lengths)), g="1")
    upload(tmp_path / "videos", memory_url)
    starts = np.cumsum([0, *lengths[:-1]])
    segments = VideoSegments(np.zeros(len(lengths), np.int64), starts)
    attach_cameras(
        tmp_path / "d", [index_file(tmp_path / "videos" / "all.mp4", f"{memory_url}/all.mp4")], {FRONT: segments}
    )
    frames = decoded(tmp_path / "videos" / "all.mp4")
    (tmp_path / "videos" / "all.mp4").unlink()
    episode = gear_data.open(tmp_path / "d")[1]
    np.testing.assert_array_equal(episode[FRONT], frames[starts[1] : starts[1] + lengths[1]])
    # What coming batches need is fetched ahead.
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    later: list[int] = []
    fetch_ahead = FetchedPackets._fetch_ahead

    def recording(self: Any, ahead: Any) -> None:
        later.append(sum(map(len, ahead())))
        fetch_ahead(self, ahead)

    monkeypatch.setattr(FetchedPackets, "_fetch_ahead", recording)
    options = {"preset": "raw", "columns": [FRONT], "batch_size": 2, "context": 1, "framework": "numpy", "steps": 6}
    for prefetch in (0, 2):
        monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / f"cache-{prefetch}"))
        loader = gear_data.SequenceLoader(
            gear_data.open(tmp_path / "d"),
            **options,
            batch=gear_data.BatchOptions(window_ids=True),
            seed=1,
            prefetch=prefetch,
            video=gear_data.VideoOptions(cache_bytes=0),
        )
        for batch in loader:
            rows = starts[batch["episode_id"]] + batch["start"]
            np.testing.assert_array_equal(batch[FRONT][:, 0], frames[rows])
        assert later and any(later) == bool(prefetch)
        later.clear()

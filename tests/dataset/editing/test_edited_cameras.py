"""Edits of datasets with cameras: video files are linked, and frames stay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data

pytest.importorskip("av")
from tests.support.cameras.filmed import FPS, FRONT, WRIST, Filmed, film

#: `save` samples frames in processes.
pytestmark = pytest.mark.processes


@pytest.fixture
def filmed(sources: Any, tmp_path: Path) -> Filmed:
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(tmp_path / "source.hdf5", rollouts), tmp_path / "dataset", shard_bytes=1024)
    return Filmed(tmp_path / "dataset", film(tmp_path / "dataset", [len(rollout) for rollout in rollouts]))


def test_cameras_are_renamed_and_dropped(filmed: Filmed, tmp_path: Path) -> None:
    ds = gear_data.open(filmed.path)
    renamed = ds.rename({FRONT: "observations.images.top", WRIST: "observations.images.a"})
    renamed.save(tmp_path / "renamed", progress=False)
    for found in (renamed, gear_data.open(tmp_path / "renamed")):
        for camera, name in ((FRONT, "observations.images.top"), (WRIST, "observations.images.a")):
            for index in range(len(ds)):
                np.testing.assert_array_equal(found[index][name][:], ds[index][camera][:])
    assert gear_data.verify(tmp_path / "renamed", deep=True).ok
    for video in (tmp_path / "renamed/videos").rglob("*.mp4"):
        assert os.stat(video).st_nlink > 1
    names = {"observations.images.top": FRONT, "observations.images.a": WRIST}
    # `film` does not hash the frames. An edit does.
    hashed = ds.with_column("a", np.zeros(ds.num_steps)).drop("a")
    assert gear_data.open(tmp_path / "renamed").rename(names).fingerprint == hashed.fingerprint

    swapped = ds.rename({FRONT: WRIST, WRIST: FRONT})
    np.testing.assert_array_equal(swapped[2][FRONT][:], ds[2][WRIST][:])
    np.testing.assert_array_equal(swapped[2][WRIST][:], ds[2][FRONT][:])

    one = ds.drop(WRIST)
    one.save(tmp_path / "one", progress=False)
    assert {path.name for path in (tmp_path / "one/videos").rglob("*.mp4")} == {"front.mp4"}
    assert gear_data.verify(tmp_path / "one", deep=True).ok
    none = gear_data.open(tmp_path / "one").drop(FRONT)
    none.save(tmp_path / "none", progress=False)
    saved = gear_data.open(tmp_path / "none")
    assert not saved.schema.videos and sorted(saved.manifest.tables) == ["episodes", "finals"]
    assert gear_data.verify(tmp_path / "none", deep=True).ok


def test_a_new_column_is_exported_to_lerobot(filmed: Filmed, tmp_path: Path) -> None:
    """The export has the column, its statistics, the tasks, and the video files unchanged."""
    ds = gear_data.open(filmed.path)
    edited = ds.with_column("advantages", lambda episode: episode["rewards"].astype(np.float32) - 1)
    edited = edited.with_column(
        "observations.embedding", lambda e: np.tile(np.arange(3, dtype=np.float32), (e.length, 1))
    )
    edited = edited.with_facts({"task": [f"task {index % 2}" for index in range(len(ds))]})
    edited.save(tmp_path / "edited", progress=False)
    saved = gear_data.open(tmp_path / "edited")
    gear_data.export(saved, tmp_path / "out", "lerobot", fps=FPS)
    gear_data.convert(tmp_path / "out", tmp_path / "back", progress=False)
    back = gear_data.open(tmp_path / "back")
    for index in range(len(ds)):
        np.testing.assert_array_equal(back[index]["advantages"], ds[index]["rewards"].astype(np.float32) - 1)
        np.testing.assert_array_equal(back[index]["observations.embedding"][0], [0, 1, 2])
        assert back[index].task == f"task {index % 2}"
        np.testing.assert_array_equal(back[index][FRONT][:], ds[index][FRONT][:])
    first = tmp_path / "out/videos/observation.images.front/chunk-000/file-000.mp4"
    assert first.read_bytes() == (filmed.path / "videos/front.mp4").read_bytes()


def test_batches_with_frames(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    edited = ds.with_column("advantages", lambda episode: episode["rewards"] - 1).rename({FRONT: "observations.top"})
    loaders = [
        gear_data.SequenceLoader(each, batch_size=4, context=3, seed=1, columns=[camera, "rewards"], prefetch=0)
        for each, camera in ((ds, FRONT), (edited, "observations.top"))
    ]
    before, after = (next(iter(loader)) for loader in loaders)
    np.testing.assert_array_equal(np.asarray(after["observations.top"]), np.asarray(before[FRONT]))

"""Several episodes in one video file whose rate is not the metadata's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import BadEpisodeError
from tests.support.rollouts import Rollout, make_rollouts, write_lerobot

pytest.importorskip("av")
from tests.support.cameras.filmed import FPS, decoded, moving_bar, write_video

pytestmark = pytest.mark.processes

CAMERA, COLUMN = "observation.images.cam", "observations.images.cam"
VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"


def write(folder: Path, rollouts: Sequence[Rollout], frames: int) -> Path:
    """Writes a dataset v3.0 of 30 frames per second, whose file has `FPS` and this number of frames."""
    camera = {"dtype": "video", "shape": [24, 32, 3], "names": ["height", "width", "channels"]}
    write_lerobot(folder, rollouts, info={"codebase_version": "v3.0", "features": {CAMERA: camera}})
    (folder / "meta/tasks.jsonl").unlink()
    lengths = [len(rollout) for rollout in rollouts]
    starts = np.cumsum([0, *lengths[:-1]])
    listed = [
        {
            "episode_index": i,
            "length": length,
            "tasks": ["pick"],
            f"videos/{CAMERA}/chunk_index": 0,
            f"videos/{CAMERA}/file_index": 0,
            f"videos/{CAMERA}/from_timestamp": start / 30,
            f"videos/{CAMERA}/to_timestamp": (start + length) / 30,
        }
        for i, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=True))
    ]
    (folder / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(listed), folder / "meta/episodes/chunk-000/file-000.parquet")
    write_video(folder / VIDEO, moving_bar(frames, 24, 32), g="5", bf="2")
    return folder


def test_episodes_that_fill_a_file_of_another_rate(tmp_path: Path) -> None:
    assert FPS != 30
    rollouts = make_rollouts(4, seed=2)
    total = sum(len(rollout) for rollout in rollouts)
    source = write(tmp_path / "source", rollouts, total)
    report = gear_data.convert(source, tmp_path / "out", progress=False)
    (found,) = (each for each in report.warnings if each.startswith("video-time-differs"))
    assert f"column '{CAMERA}'" in found and "(3x," in found
    pixels = decoded(source / VIDEO)
    first = 0
    for episode, rollout in zip(gear_data.open(tmp_path / "out"), rollouts, strict=True):
        np.testing.assert_array_equal(np.asarray(episode[COLUMN]), pixels[first : first + len(rollout)])
        first += len(rollout)


def test_times_that_fit_no_frames_are_refused(tmp_path: Path) -> None:
    """The file has more frames than its episodes, so they cannot be counted, and its times are of another rate."""
    rollouts = make_rollouts(4, seed=2)
    source = write(tmp_path / "source", rollouts, 2 + sum(len(rollout) for rollout in rollouts))
    with pytest.raises(BadEpisodeError, match=r"its first frame .* is unclear") as error:
        gear_data.convert(source, tmp_path / "out", progress=False)
    assert error.value.column == CAMERA
    report = gear_data.convert(source, tmp_path / "out", progress=False, on_bad_episode="skip")
    assert report.episodes == 1
    assert {"bad-episode", "video-frames-differ"} <= {each.split(":")[0] for each in report.warnings}


def test_an_episode_does_not_get_frames_of_the_next_one(tmp_path: Path) -> None:
    rollouts = make_rollouts(3, seed=2)
    source = write(tmp_path / "source", rollouts, sum(len(rollout) for rollout in rollouts))
    listing = source / "meta/episodes/chunk-000/file-000.parquet"
    entries = pq.read_table(listing).to_pylist()
    entries[0]["length"] -= 1
    entries[2]["length"] += 1
    pq.write_table(pa.Table.from_pylist(entries), listing)
    with pytest.raises(BadEpisodeError, match="frames before the next episode begins"):
        gear_data.convert(source, tmp_path / "out", progress=False)

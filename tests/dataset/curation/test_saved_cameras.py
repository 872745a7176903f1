"""Saved views of datasets with cameras."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from tests.support.rollouts import Rollout, make_rollouts

pytest.importorskip("av")
from tests.support.cameras.robots import FRONT, WRIST, check_frames, frames_of, write_robot

OPTIONS: dict[str, Any] = {"progress": False, "jobs": 1}
#: Without the numbers of tasks, which a source counts by itself.
COLUMNS = ["actions", "rewards", FRONT, WRIST]


def _golden(folder: Path, rollouts: list[Rollout], files: dict[str, list[Path]]) -> gear_data.Dataset:
    """Converts a source that has only the episodes 1, 2 and 5."""
    own = write_robot(folder / "few", [rollouts[i] for i in (1, 2, 5)])
    for camera, paths in own.items():
        for path, i in zip(paths, (1, 2, 5), strict=True):
            shutil.copyfile(files[camera][i], path)
    gear_data.convert(folder / "few", folder / "golden", columns=COLUMNS, **OPTIONS)
    return gear_data.open(folder / "golden")


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["keep", "link"])
def test_only_the_video_files_of_the_episodes_are_kept(mode: str, tmp_path: Path) -> None:
    rollouts = make_rollouts(6, seed=0)
    files = write_robot(tmp_path / "robot", rollouts)
    gear_data.convert(tmp_path / "robot", tmp_path / "whole", videos=mode, columns=COLUMNS, **OPTIONS)
    view = gear_data.open(tmp_path / "whole").select([1, 2, 5])
    view.save(tmp_path / "out", progress=False)
    frames = frames_of(files)
    check_frames(tmp_path / "out", {camera: [frames[camera][i] for i in (1, 2, 5)] for camera in (FRONT, WRIST)})
    kept = sorted((tmp_path / "out").rglob("*.mp4"))
    assert len(kept) == (6 if mode == "keep" else 0)
    assert all(os.stat(path).st_nlink > 1 for path in kept)
    saved = gear_data.open(tmp_path / "out")
    golden = _golden(tmp_path, rollouts, files)
    assert saved.fingerprint == view.fingerprint == golden.fingerprint
    for name, expected in golden.statistics.items():
        found = saved.statistics[name]
        for kind in ("count", "mean", "std", "min", "max", "quantiles"):
            np.testing.assert_array_equal(getattr(found, kind), getattr(expected, kind))
        assert found.sampled_frames == expected.sampled_frames
    assert saved.manifest.provenance["videos"]["mode"] == mode
    assert gear_data.verify(tmp_path / "out", deep=True, decode=True).ok


@pytest.mark.processes
def test_several_episodes_in_one_file(shared_data: Path, tmp_path: Path) -> None:
    """The sample of frames is that of a conversion of only these episodes, from files that hold six."""
    gear_data.convert(shared_data / "lerobot_v30_video", tmp_path / "whole", **OPTIONS)
    whole = gear_data.open(tmp_path / "whole")
    whole.select([1, 4]).save(tmp_path / "out", progress=False)
    saved = gear_data.open(tmp_path / "out")
    for camera in (column.name for column in whole.schema.videos):
        assert saved.statistics[camera].sampled_frames
        for new, old in ((0, 1), (1, 4)):
            np.testing.assert_array_equal(saved[new][camera][:], whole[old][camera][:])
    assert gear_data.verify(tmp_path / "out", deep=True).ok

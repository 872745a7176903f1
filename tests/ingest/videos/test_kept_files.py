"""Video files in a dataset's folder: placed, resumed, replaced, restored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, SourceChangedError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.videos import staged_index
from gear_data.ingest.videos.placing import kept_names, linked_name
from tests.support.checks import folder_contents
from tests.support.rollouts import make_rollouts

pytest.importorskip("av")
from tests.support.cameras.robots import FRONT, WRIST, check_frames, frames_of, write_robot

pytestmark = pytest.mark.processes

OPTIONS: dict[str, Any] = {"progress": False, "shard_bytes": 1024}
_KILLED = """
import os, signal, sys
from gear_data.ingest.convert import convert
from gear_data.ingest.engine import tasks
from gear_data.ingest.sources.tables import read_units
from gear_data.ingest.videos import staged_index

tasks.UNIT_BYTES = read_units.UNIT_BYTES = 1
staged_index._PART_FILES = 2
place, count = staged_index.place, 0

def killed(*arguments):
    global count
    count += 1
    if count == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    place(*arguments)

staged_index.place = killed
convert(*sys.argv[1:], progress=False, shard_bytes=1024, jobs=1)
"""


@pytest.fixture
def robot(tmp_path: Path) -> tuple[Path, dict[str, list[Path]]]:
    return tmp_path / "robot", write_robot(tmp_path / "robot", make_rollouts(4, seed=3))


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """One task for each episode, two files for each part of the index."""
    monkeypatch.setattr("gear_data.ingest.engine.tasks.UNIT_BYTES", 1)
    monkeypatch.setattr("gear_data.ingest.sources.tables.read_units.UNIT_BYTES", 1)
    monkeypatch.setattr(staged_index, "_PART_FILES", 2)


@pytest.mark.usefixtures("small_units")
def test_the_same_bytes_from_two_processes_and_after_a_kill(
    robot: tuple[Path, dict[str, list[Path]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, files = robot
    report = gear_data.convert(source, tmp_path / "one", jobs=1, **OPTIONS)
    check_frames(tmp_path / "one", frames_of(files))
    manifest = gear_data.open(tmp_path / "one").manifest
    assert len(manifest.provenance["tasks"]) == 4
    kept = sorted((tmp_path / "one/videos").rglob("*.mp4"))
    assert len(kept) == 8
    assert report.bytes == sum(path.stat().st_size for path in kept) + sum(entry.bytes for entry in manifest.files)
    expected = folder_contents(tmp_path / "one")

    killed = subprocess.run([sys.executable, "-c", _KILLED, str(source), str(tmp_path / "killed")], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    names: list[str] = []

    def place(store: Any, path: Path, name: str, video: Any) -> None:
        names.append(name)
        placed(store, path, name, video)

    placed = staged_index.place
    monkeypatch.setattr(staged_index, "place", place)
    gear_data.convert(source, tmp_path / "killed", jobs=2, resume=True, **OPTIONS)
    assert len(names) == 4  # two parts were finished
    assert folder_contents(tmp_path / "killed") == expected


def test_a_camera_that_is_left_out_is_not_read(robot: tuple[Path, dict[str, list[Path]]], tmp_path: Path) -> None:
    """And `overwrite` replaces a dataset with videos."""
    source, files = robot
    gear_data.convert(source, tmp_path / "out", jobs=1, **OPTIONS)
    for path in files[WRIST]:
        path.write_bytes(b"no video")
    gear_data.convert(source, tmp_path / "out", jobs=1, columns=["actions", FRONT], overwrite=True, **OPTIONS)
    check_frames(tmp_path / "out", frames_of({FRONT: files[FRONT]}))
    assert len(list((tmp_path / "out/videos").rglob("*.mp4"))) == 4
    assert [spec.name for spec in gear_data.open(tmp_path / "out").schema.videos] == [FRONT]


def test_a_bad_video_names_episode_and_file(robot: tuple[Path, dict[str, list[Path]]], tmp_path: Path) -> None:
    source, files = robot
    files[FRONT][1].write_bytes(files[FRONT][1].read_bytes()[:300])
    with pytest.raises(BadEpisodeError, match=r"its video videos/.*episode_000001.mp4") as caught:
        gear_data.convert(source, tmp_path / "out", jobs=1, **OPTIONS)
    assert caught.value.file == "data/chunk-000/episode_000001.parquet"
    assert not (tmp_path / "out").exists()
    gear_data.convert(source, tmp_path / "out", jobs=1, on_bad_episode="skip", **OPTIONS)
    dataset = gear_data.open(tmp_path / "out")
    expected = frames_of({FRONT: [path for i, path in enumerate(files[FRONT]) if i != 1]})[FRONT]
    for episode, frames in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(episode[FRONT]), frames)


def test_repair(robot: tuple[Path, dict[str, list[Path]]], tmp_path: Path) -> None:
    source, files = robot
    gear_data.convert(source, tmp_path / "out", jobs=1, **OPTIONS)
    expected = folder_contents(tmp_path / "out")
    (video,) = (tmp_path / "out/videos").rglob("*front/episode_000002.mp4")
    for path in (video, tmp_path / "out/shards/000000.arrow"):
        data = path.read_bytes()
        path.unlink()  # it may be a hard link to the source's file
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = gear_data.repair(tmp_path / "out", source, progress=False)
    assert report.videos == (str(video.relative_to(tmp_path / "out")),) and report.shards == ("shards/000000.arrow",)
    assert folder_contents(tmp_path / "out") == expected
    video.unlink()
    files[FRONT][2].write_bytes(files[FRONT][1].read_bytes())
    with pytest.raises(SourceChangedError, match="is not the file of which the dataset has"):
        gear_data.repair(tmp_path / "out", source, progress=False)
    assert not video.exists()


def test_names_of_files() -> None:
    files = [
        "videos/a/x.mp4", "video/a/x.mp4", "a/X.mp4", "2/a/x.mp4", "/root/a.mp4", "../../b.mp4", "videos", "c.mp4",
    ]  # fmt: skip
    names = kept_names([SourceFile(name, name, 1) for name in files])
    assert names == [
        "videos/a/x.mp4", "videos/2/a/x.mp4", "videos/3/a/X.mp4", "videos/2/2/a/x.mp4",
        "videos/root/a.mp4", "videos/b.mp4", "videos/videos", "videos/c.mp4",
    ]  # fmt: skip
    assert linked_name(SourceFile("a.mp4", "a.mp4", 1)) == os.path.abspath("a.mp4")

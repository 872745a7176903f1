"""Cameras of LeRobot datasets: their names, their files and the places of episodes in them.

No file is decoded here: the files hold a few bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnknownNameError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions, SourceVideos, source_videos
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from gear_data.video.segments import VideoTimes

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LENGTHS = (5, 7, 4)
V2_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
V3_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def write(
    folder: Path, version: str, files: Sequence[str], *, video_path: Any = None, places: Any = None, **feature: Any
) -> Path:
    """Writes a dataset of three episodes with two cameras, whose files have the given names.

    `places` gives an episode of v3 its columns `videos/CAMERA/...`, for both cameras.
    """
    numbers = np.repeat(np.arange(3), LENGTHS)
    table = pa.table(
        {
            "action": np.arange(len(numbers), dtype=np.float32),
            "episode_index": numbers,
            "frame_index": np.concatenate([np.arange(n) for n in LENGTHS]),
        }
    )
    (folder / "data/chunk-000").mkdir(parents=True)
    for i in range(3):
        pq.write_table(table.filter(pa.array(numbers == i)), folder / f"data/chunk-000/episode_{i:06d}.parquet")
    camera = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"], **feature}
    info = {
        "codebase_version": version,
        "fps": 30,
        "video_path": video_path,
        "features": {"action": {"dtype": "float32"}, FRONT: camera, WRIST: camera},
    }
    (folder / "meta").mkdir()
    (folder / "meta/info.json").write_text(json.dumps(info))
    listed = [{"episode_index": i, "length": n, "tasks": ["pick"]} for i, n in enumerate(LENGTHS)]
    if version == "v3.0":
        for i, entry in enumerate(listed):
            for key in (FRONT, WRIST):
                entry.update({f"videos/{key}/{name}": value for name, value in (places or {}).get(i, {}).items()})
        (folder / "meta/episodes/chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(listed), folder / "meta/episodes/chunk-000/file-000.parquet")
    else:
        (folder / "meta/episodes.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in listed))
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"video")
    return folder


def cameras_of(folder: Path, **options: Any) -> tuple[SourceVideos, dict[str, VideoTimes], Any]:
    """Opens a source; returns its cameras, the places of the three episodes, and the source."""
    source, _, _ = open_source(locate(str(folder), None), "auto", SourceOptions(**options))
    blocks = [block.video_times for block in source.blocks(BEGIN, END)]
    times = {
        name: VideoTimes(
            np.concatenate([block[name].file for block in blocks]),
            np.concatenate([block[name].start for block in blocks]),
            np.concatenate([block[name].place for block in blocks]),
            [each for block in blocks for each in block[name].names],
        )
        for name in (blocks[0] if blocks else ())
    }
    return source_videos(source), times, source


def v2_files(
    *episodes: int, folder: str = "videos/chunk-000/{}/", cameras: Sequence[str] = (FRONT, WRIST)
) -> list[str]:
    return [folder.format(camera) + f"episode_{i:06d}.mp4" for camera in cameras for i in episodes]


@pytest.mark.parametrize(
    "folder",
    [
        "videos/chunk-000/{}/",
        "video/chunk-000/{}/",
        "videos/{}/chunk-000/",
        "video/{}/",
        "videos/{}_",
        "clips/{}/part-",
    ],
)
def test_v2_has_one_file_an_episode(folder: str, tmp_path: Path) -> None:
    """The template says `videos/`. The files may be elsewhere, as in real datasets."""
    template = "clips/{video_key}/part-episode_{episode_index:06d}.mp4" if folder.startswith("clips") else V2_PATH
    source = write(tmp_path / "s", "v2.1", v2_files(0, 1, 2, folder=folder), video_path=template)
    videos, times, _ = cameras_of(source)
    assert [spec.name for spec in videos.columns] == ["observations.images.front", "observations.images.wrist"]
    assert [spec.shape for spec in videos.columns] == [(48, 64, 3)] * 2
    assert [file.name for file in videos.files] == v2_files(0, 1, 2, folder=folder)
    assert times["observations.images.wrist"].file.tolist() == [3, 4, 5]
    assert times["observations.images.wrist"].start.tolist() == [0.0] * 3
    assert times["observations.images.wrist"].place.tolist() == [0] * 3
    assert [each.frames for each in videos.declared] == [*LENGTHS, *LENGTHS]
    assert {(each.height, each.width, each.fps) for each in videos.declared} == {(48, 64, 30.0)}


def test_v3_has_several_episodes_a_file(tmp_path: Path) -> None:
    places = {
        0: {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0, "to_timestamp": 5 / 30},
        1: {"chunk_index": 0, "file_index": 0, "from_timestamp": 5 / 30, "to_timestamp": 12 / 30},
        2: {"chunk_index": 1, "file_index": 3, "from_timestamp": 0.1, "to_timestamp": 0.1 + 4 / 30},
    }
    names = [
        f"video/{key}/chunk-{c:03d}/file-{f:03d}.mp4" for key in (FRONT, WRIST) for c, f in ((0, 0), (1, 3), (7, 7))
    ]
    source = write(tmp_path / "s", "v3.0", names, video_path=V3_PATH, places=places)
    videos, times, _ = cameras_of(source)
    assert [file.name for file in videos.files] == [name for name in names if "chunk-007" not in name]
    front = times["observations.images.front"]
    assert front.file.tolist() == [0, 0, 1]
    assert front.start.tolist() == [0.0, 5 / 30, 0.1]
    assert front.place.tolist() == [0, 1, 0]
    assert [each.frames for each in videos.declared] == [12, 4, 12, 4]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "s", "v2.1", v2_files(0, 2), video_path=V2_PATH)
    _, times, _ = cameras_of(source)
    assert times["observations.images.front"].file.tolist() == [0, -1, 1]
    assert times["observations.images.front"].names[1] == f"videos/chunk-000/{FRONT}/episode_000001.mp4"


def test_columns_and_rename_choose_cameras(tmp_path: Path) -> None:
    source = write(tmp_path / "s", "v2.1", v2_files(0, 1, 2, cameras=[WRIST]), video_path=V2_PATH)
    for name in (WRIST, "observations.images.wrist"):
        videos, _, opened = cameras_of(source, columns=("actions", name))
        assert [spec.name for spec in videos.columns] == ["observations.images.wrist"]
        assert [spec.name for spec in opened.columns] == ["actions"]
    videos, times, _ = cameras_of(source, columns=("hand",), rename={WRIST: "hand", "action": "motor"})
    assert ([spec.name for spec in videos.columns], videos.columns[0].source) == (["hand"], WRIST)
    assert list(times) == ["hand"]
    videos, _, _ = cameras_of(source, columns=("actions",))
    assert (videos.columns, videos.files) == ((), ())
    with pytest.raises(UnknownNameError) as error:
        cameras_of(source, columns=("observations.images.wirst",))
    assert "observations.images.wrist" in str(error.value.hint)
    with pytest.raises(InvalidArgumentError, match="would both become 'actions'"):
        cameras_of(source, columns=("actions",), rename={WRIST: "actions"})


def test_a_camera_without_any_file_is_one_error(tmp_path: Path) -> None:
    source = write(tmp_path / "s", "v2.1", v2_files(0, 1, 2, cameras=[WRIST]), video_path=V2_PATH)
    with pytest.raises(CorruptSourceError, match=f"every video of the camera is missing \\({FRONT}\\)") as error:
        cameras_of(source, on_bad_episode="skip")
    assert str(error.value.hint).endswith("--columns actions,observations.images.wrist")
    for file in source.rglob("*.mp4"):
        file.unlink()
    with pytest.raises(CorruptSourceError, match="every video of 2 cameras is missing") as error:
        cameras_of(source)
    assert str(error.value.hint).endswith("--columns actions")
    assert f"videos/chunk-000/{FRONT}/episode_000000.mp4" in error.value.message


def test_v3_without_places_says_so(tmp_path: Path) -> None:
    names = [f"videos/{key}/chunk-000/file-000.mp4" for key in (FRONT, WRIST)]
    source = write(tmp_path / "s", "v3.0", names, places={})
    with pytest.raises(CorruptSourceError, match="meta/episodes does not say which file"):
        cameras_of(source)


@pytest.mark.parametrize(
    ("name", "value"), [("from_timestamp", float("nan")), ("from_timestamp", -1.0), ("chunk_index", 0.5)]
)
def test_a_wrong_place_is_refused(name: str, value: float, tmp_path: Path) -> None:
    place = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0, name: value}
    names = [f"videos/{key}/chunk-000/file-000.mp4" for key in (FRONT, WRIST)]
    source = write(tmp_path / "s", "v3.0", names, places={0: place})
    with pytest.raises(CorruptSourceError) as error:
        cameras_of(source)
    assert (error.value.column, error.value.row) == (f"videos/{FRONT}/{name}", 0)


@pytest.mark.parametrize(
    "template",
    [
        "{episode_index:0999999999d}.mp4",
        "{video_key.__class__}",
        "../{video_key}/{episode_index}.mp4",
        "{0}{",
        7,
        "x" * 5000,
    ],
)
def test_templates_are_not_formatted(template: Any, tmp_path: Path) -> None:
    """A hostile template is ignored, or matches no file."""
    source = write(tmp_path / "s", "v2.1", v2_files(0, 1), video_path=template)
    _, times, _ = cameras_of(source)
    assert times["observations.images.front"].file.tolist() == [0, 1, -1]
    assert len(times["observations.images.front"].names[2]) < 200


def test_two_files_of_one_episode_are_refused(tmp_path: Path) -> None:
    files = [*v2_files(0, 1, 2), f"videos/chunk-001/{FRONT}/episode_000001.mp4"]
    with pytest.raises(CorruptSourceError, match="has the name of the same video") as error:
        cameras_of(write(tmp_path / "s", "v2.1", files, video_path=V2_PATH))
    assert error.value.file == files[-1]


@pytest.mark.parametrize(
    "feature",
    [
        {"shape": [3, 48, 64], "names": ["channels", "height", "width"]},
        {"shape": [3, 48, 64], "names": None},
        {"shape": [48, 64, 3], "names": None},
        {"shape": None, "names": None, "info": {"video.height": 48, "video.width": 64}},
    ],
)
def test_declared_sizes(feature: dict[str, Any], tmp_path: Path) -> None:
    details = {"info": {"video.fps": 25, "video.codec": "h264", **feature.pop("info", {})}}
    videos, _, _ = cameras_of(write(tmp_path / "s", "v2.1", v2_files(0, 1, 2), **feature, **details))
    assert videos.columns[0].shape == (48, 64, 3)
    assert videos.columns[0].video is not None
    assert videos.columns[0].video.fps == 25
    assert videos.declared[0].codec == "h264"


def test_a_dataset_by_lerobot_itself(shared_data: Path) -> None:
    videos, times, _ = cameras_of(shared_data / "lerobot_v30_video")
    assert [file.name for file in videos.files] == [f"videos/{key}/chunk-000/file-000.mp4" for key in (FRONT, WRIST)]
    assert [spec.shape for spec in videos.columns] == [(240, 320, 3), (96, 96, 3)]
    front = times["observations.images.front"]
    assert np.round(front.start * 30).tolist() == [0, 120, 217, 367, 431, 564]
    assert front.place.tolist() == [0, 1, 2, 3, 4, 5]
    assert videos.declared[0].places is not None
    assert videos.declared[0].places.frames.tolist() == [120, 97, 150, 64, 133, 101]

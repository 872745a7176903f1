"""Cameras that the user names: which file belongs to which episode.

No file is decoded here: the files hold a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest

from gear_data.errors import CorruptSourceError, InvalidArgumentError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.pipeline.prepare import prepared_blocks
from gear_data.ingest.source import EpisodeSource, SourceOptions, source_videos
from gear_data.ingest.sources.tables import read_units
from gear_data.ingest.videos.storage_options import VideoStorage
from gear_data.storage.episode_block import BEGIN, END, Position

TOP = "observations.images.top"


def aloha(folder: Path, numbers: Sequence[int], lengths: Sequence[int] = (3, 4, 5)) -> Path:
    folder.mkdir(parents=True)
    for number, length in zip(numbers, lengths, strict=False):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.full((length, 2), number, np.float32)
            file["observations/qpos"] = np.zeros((length, 2), np.float32)
    return folder


def add_videos(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"video")
    return folder


def open_(source: Any, pattern: str) -> EpisodeSource:
    chosen = SourceOptions(videos=VideoStorage(cameras={TOP: pattern}))
    return ConversionSpec(source, None, "auto", chosen, keep_encoded=False).open()[0]


def videos_of(source: EpisodeSource, start: Position = BEGIN, stop: Position = END) -> list[str | None]:
    """The name of each episode's video; None if it is missing."""
    files = source_videos(source).files
    names = [
        (files[number].name if number >= 0 else None, name)
        for block, _ in prepared_blocks(source, start, stop, strict=False)
        for number, name in zip(block.video_times[TOP].file.tolist(), block.video_times[TOP].names, strict=True)
    ]
    assert all(name in (None, shown) for name, shown in names)
    return [name for name, _ in names]


def test_numbers_of_files_are_numbers_of_episodes(tmp_path: Path) -> None:
    """Aloha has a file for each episode. Names need no zeros, and need not start at 0."""
    folder = aloha(tmp_path / "s", [7, 9, 10])
    add_videos(folder, *(f"videos/top/{n:03d}.mp4" for n in (10, 7, 9)), "videos/side/7.mp4")
    source = open_(str(folder), "videos/top/*.mp4")
    assert videos_of(source) == ["videos/top/007.mp4", "videos/top/009.mp4", "videos/top/010.mp4"]
    assert [spec.name for spec in source_videos(source).columns] == [TOP]


def test_any_task_finds_its_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.ingest.sources.tree.source.UNIT_BYTES", 1)
    folder = aloha(tmp_path / "s", [0, 1, 2])
    add_videos(folder, *(f"videos/cam_{i}.mp4" for i in range(3)))
    source = open_(str(folder), "videos/cam_*.mp4")
    starts = [unit.position for unit in source.units()]
    assert len(starts) == 3
    found = [videos_of(source, start, stop) for start, stop in zip(starts, [*starts[1:], END], strict=True)]
    assert found == [["videos/cam_0.mp4"], ["videos/cam_1.mp4"], ["videos/cam_2.mp4"]]


def test_names_without_numbers_are_in_order(tmp_path: Path) -> None:
    folder = add_videos(aloha(tmp_path / "s", [0, 1]), "a.mp4", "b.mp4")
    assert videos_of(open_(str(folder), "*.mp4")) == ["a.mp4", "b.mp4"]


def table(sources: Any, folder: Path, rollouts: Any) -> Path:
    path: Path = sources.write_steps(folder / "steps.parquet", rollouts)
    return path.parent


@pytest.mark.parametrize("base", [0, 1])
def test_episodes_of_one_table_are_counted(base: int, sources: Any, rollouts: Any, tmp_path: Path) -> None:
    some = rollouts[:4]
    folder = table(sources, tmp_path / "s", some)
    add_videos(folder, *(f"cam/{n + base}.mp4" for n in range(4)))
    names = [f"cam/{n + base}.mp4" for n in range(4)]
    assert videos_of(open_(str(folder), "cam/*.mp4")) == names
    assert videos_of(open_(str(folder / "steps.parquet"), "cam/*.mp4")) == names
    assert videos_of(open_(str(folder), f"{folder}/c*/*.mp4"))[3] is not None


def test_episodes_that_are_numbered_from_1_have_the_videos_of_their_numbers(
    sources: Any, rollouts: Any, tmp_path: Path
) -> None:
    def numbered(name: str, ids: Sequence[int]) -> EpisodeSource:
        numbers = np.repeat(ids, [len(rollout) for rollout in rollouts[: len(ids)]])
        some = [rollout.columns for rollout in rollouts[: len(ids)]]
        sources.write_parquet(tmp_path / name / "steps.parquet", sources.step_table(some, episode_index=numbers))
        add_videos(tmp_path / name, *(f"cam/{n + 1}.mp4" for n in range(len(ids))))
        return open_(str(tmp_path / name), "cam/*.mp4")

    assert videos_of(numbered("same", [1, 2, 3])) == ["cam/1.mp4", "cam/2.mp4", "cam/3.mp4"]
    assert videos_of(numbered("from 0", [0, 1, 2])) == ["cam/1.mp4", "cam/2.mp4", "cam/3.mp4"]
    assert videos_of(numbered("any order", [2, 3, 1])) == ["cam/2.mp4", "cam/3.mp4", "cam/1.mp4"]
    with pytest.raises(CorruptSourceError, match="not clear whether the episodes are numbered from 0"):
        videos_of(numbered("unclear", [2, 0, 1]))


def test_counted_episodes_are_one_unit_and_resume(
    sources: Any, rollouts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_units, "UNIT_BYTES", 1, raising=False)
    some = rollouts[:9]
    sources.write_parquet(tmp_path / "s/a.parquet", sources.step_table([r.columns for r in some]), row_group=5)
    folder = add_videos(tmp_path / "s", *(f"{name}.mp4" for name in "abcdefghi"))
    source = open_(str(folder), "*.mp4")
    assert [unit.position for unit in source.units()] == [BEGIN]
    blocks = list(prepared_blocks(source, BEGIN, END, strict=False))
    whole = [name for block, _ in blocks for name in block.video_times[TOP].names]
    assert whole == [f"{name}.mp4" for name in "abcdefghi"]
    block, state = blocks[-1]
    again = open_(str(folder), "*.mp4")
    again.resume_state.update(state["notes"])
    assert videos_of(again, block.position) == whole[len(whole) - len(block) - block.first :]


def test_videos_beside_tables_of_several_splits(sources: Any, rollouts: Any, tmp_path: Path) -> None:
    for split in ("train", "test"):
        sources.write_steps(tmp_path / f"{split}.parquet", rollouts[:3])
    names = [f"cam/{number}.mp4" for number in range(3)]
    add_videos(tmp_path, *names)
    assert videos_of(open_(str(tmp_path / "train.parquet"), "cam/*.mp4")) == names
    chosen = SourceOptions(videos=VideoStorage(cameras={TOP: "cam/*.mp4"}))
    assert videos_of(ConversionSpec(str(tmp_path), "train", "auto", chosen, keep_encoded=False).open()[0]) == names


def test_a_gap_in_the_numbers_is_a_missing_video(sources: Any, rollouts: Any, tmp_path: Path) -> None:
    folder = table(sources, tmp_path / "s", rollouts[:4])
    add_videos(folder, "0.mp4", "1.mp4", "3.mp4")
    assert videos_of(open_(str(folder), "*.mp4")) == ["0.mp4", "1.mp4", None, "3.mp4"]


@pytest.mark.parametrize("count", [2, 5])
def test_another_number_of_videos_is_refused(count: int, sources: Any, rollouts: Any, tmp_path: Path) -> None:
    folder = table(sources, tmp_path / "s", rollouts[:4])
    add_videos(folder, *(f"{name}.mp4" for name in "abcde"[:count]))
    with pytest.raises(CorruptSourceError, match=f"and {count} videos") as error:
        videos_of(open_(str(folder), "*.mp4"))
    assert error.value.column == TOP


def test_wrong_arguments(tmp_path: Path) -> None:
    folder = add_videos(aloha(tmp_path / "s", [0]), "0.mp4")
    with pytest.raises(InvalidArgumentError, match="no file matches"):
        open_(str(folder), "videos/*.mp4")
    with pytest.raises(InvalidArgumentError, match="in memory"):
        open_([{"observations": np.zeros((2, 1)), "actions": np.zeros((2, 1))}], "*.mp4")
    for wrong in ("*.mp4", {"observation.images.top": "*.mp4"}, {TOP: ""}, {"": "a"}):
        with pytest.raises(InvalidArgumentError):
            VideoStorage(cameras=wrong)


def test_a_remote_folder(tmp_path: Path) -> None:
    folder = add_videos(aloha(tmp_path / "s", [0, 1]), "top/0.mp4", "top/1.mp4")
    fsspec.filesystem("memory").put(str(folder), "/video-columns", recursive=True)
    root = "memory://video-columns"
    for pattern in ("top/*.mp4", f"{root}/*/?.mp4", "**/*.mp4"):
        assert [name and name[-5:] for name in videos_of(open_(root, pattern))] == ["0.mp4", "1.mp4"]

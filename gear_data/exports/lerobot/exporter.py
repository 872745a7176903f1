"""Export to LeRobot v3.0.

Layout: https://github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `lerobot_dataset.py` (0.4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.tables.metadata import metadata_names
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.exports.destination import atomic_folder
from gear_data.exports.exporter import ExportOptions, ExportReport, episode_blocks, rename_hint, report_of
from gear_data.exports.lerobot.data_files import DataFilesWriter
from gear_data.exports.lerobot.features import CLOCK, TASK, features
from gear_data.exports.lerobot.meta import EPISODE_COLUMNS, DataFiles, write_meta
from gear_data.exports.lerobot.videos.kept import TOLERANCE
from gear_data.exports.lerobot.videos.video_writer import write_videos
from gear_data.exports.metadata import episode_id, source_metadata


def export_lerobot(dataset: Dataset, destination: Path, options: ExportOptions) -> ExportReport:
    """Writes a folder that `LeRobotDataset(repo_id, root=...)` reads.

    `timestamp` and `task_index` are the dataset's columns if it has them. Otherwise `timestamp` is the number of the
    step divided by `fps`, and `task_index` numbers the episodes' `task` texts in order of appearance. Episodes without
    a task get the empty text. If episodes with one `task_index` have several tasks, the later ones get new numbers.

    Videos of cameras are copied where it is possible (`kept_videos`). Other frames are encoded.

    Raises:
        InvalidArgumentError: `fps` is neither given nor known from the source; `task_index` has impossible values; the
            codec does not take frames of this size.
        UnsupportedColumnError: see `features`; `timestamp` has other times than the frames of a camera.
        CorruptShardError: a video is damaged.
        MissingExtraError: videos are encoded, and PyAV is not installed.
    """
    fps = _fps(dataset, options)
    columns, cameras = features(dataset, videos=options.videos)
    if cameras:
        _check_clock(dataset, fps)
    tasks = _tasks(dataset)
    if tasks.numbers is not None:
        columns = [feature for feature in columns if feature.name != TASK]
    bar = progress_bar(dataset.num_steps * (1 + len(cameras)), "export", "step", options.progress)
    with (
        atomic_folder(destination, options.overwrite) as folder,
        bar,
        DataFilesWriter(folder, dataset, columns, tasks.numbers, fps) as writer,
    ):
        for first, last in episode_blocks(dataset):
            writer.write(first, last)
            bar.update(int(dataset.offsets[last] - dataset.offsets[first]))
        videos = [write_videos(folder, dataset, camera, fps, options.video_codec, bar) for camera in cameras]
        data = DataFiles(columns, writer.generated, writer.statistics(), writer.files)
        write_meta(folder, dataset, data, cameras, videos, tasks.texts, fps)
    notes = [video.note for video in videos if video.note is not None]
    left_out = [name for name in metadata_names(dataset) if name in EPISODE_COLUMNS]
    return report_of(dataset, destination, left_out, notes)


def _fps(dataset: Dataset, options: ExportOptions) -> float:
    fps = options.fps if options.fps is not None else source_metadata(dataset).get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise InvalidArgumentError(
            "LeRobot needs the number of steps per second, which the dataset's source did not store",
            hint="give fps=30 (--fps 30)",
        )
    return int(fps) if float(fps).is_integer() else float(fps)


def _check_clock(dataset: Dataset, fps: float) -> None:
    """Checks that a column `timestamp` has the times of the frames of cameras.

    Frame t of an episode is at t / fps. LeRobot looks for the frame at the step's `timestamp`.
    """
    if CLOCK not in dataset.schema:
        return
    for first, last in episode_blocks(dataset):
        begins = np.repeat(dataset.offsets[first:last], dataset.lengths[first:last])
        index = np.arange(dataset.offsets[first], dataset.offsets[last])
        times, expected = dataset.steps(CLOCK, first, last).astype(np.float64), (index - begins) / fps
        # A clock of float32 is rounded more in long episodes.
        rounding = np.spacing(expected.astype(np.float32)).astype(np.float64)
        wrong = np.flatnonzero(~(np.abs(times - expected) < TOLERANCE + rounding))
        if len(wrong):
            row = int(wrong[0])
            episode = int(np.searchsorted(dataset.offsets, index[row], "right")) - 1
            step, rename = index[row] - begins[row], rename_hint(CLOCK, "infos.timestamp")
            raise UnsupportedColumnError(
                f"step {step} of episode {episode_id(dataset, episode)} is at {times[row]:.6g} s, and its frames at "
                f"{expected[row]:.6g} s with {fps:g} steps per second: LeRobot would not find them",
                column=CLOCK,
                hint=f"give the fps of these times; or {rename}: the export then has the times of the frames",
            )


@dataclass(frozen=True)
class _Tasks:
    """Tasks of the episodes.

    Attributes:
        texts: text of each `task_index`.
        numbers: int64 [episodes], `task_index` of each episode's first step; None if it is as in the dataset's column.
    """

    texts: list[str]
    numbers: npt.NDArray[np.int64] | None


def _tasks(dataset: Dataset) -> _Tasks:
    values = ["" if text is None else text for text in dataset.episode_table.column("task").to_pylist()]
    if TASK not in dataset.schema:
        indices = {text: i for i, text in enumerate(dict.fromkeys(values))}
        return _Tasks(list(indices), np.array([indices[text] for text in values], np.int64))
    firsts: list[int] = []
    count = 0
    for first, last in episode_blocks(dataset):
        numbers = dataset.steps(TASK, first, last)
        # LeRobot looks up texts by position, so every number up to the largest needs a text.
        if numbers.min() < 0 or numbers.max() >= max(dataset.num_steps, 1 << 20):
            raise InvalidArgumentError(
                f"'{TASK}' has values from {numbers.min()} to {numbers.max()}, which cannot be numbers of tasks",
                hint=rename_hint(TASK),
            )
        count = max(count, int(numbers.max()) + 1)
        firsts += map(int, numbers[dataset.offsets[first:last] - dataset.offsets[first]])
    texts: dict[int, str] = {}
    for number, text in zip(firsts, values, strict=True):
        texts[number] = texts.get(number) or text
    # In edited and merged datasets, episodes with one number may have several tasks.
    known = {text: number for number, text in texts.items()}
    listed = [texts.get(i, "") for i in range(count)]
    renumbered = list(firsts)
    for episode, (number, text) in enumerate(zip(firsts, values, strict=True)):
        if text and texts[number] != text:
            if text not in known:
                known[text] = len(listed)
                listed.append(text)
            renumbered[episode] = known[text]
    return _Tasks(listed, None if renumbered == firsts else np.array(renumbered, np.int64))

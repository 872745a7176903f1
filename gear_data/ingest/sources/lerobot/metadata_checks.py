"""Comparison of a LeRobot dataset's rows with its metadata.

Rows are kept as they are. Each difference makes a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.sources.lerobot.metadata import (
    PERSISTENT,
    SUBTASK,
    SUBTASKS,
    EpisodeList,
    LeRobotInfo,
    data_file_key,
)
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock

#: Tolerance in seconds for the time between two frames: LeRobot's own `tolerance_s`.
_TOLERANCE = 1e-4
_DISAGREES = "metadata-disagrees"


def check_features(
    info: LeRobotInfo, names: Sequence[str], columns: Sequence[ColumnSpec], findings: FindingLog
) -> None:
    """Compares the declared features with the columns of the Parquet files.

    Cameras that the Parquet files lack are videos: `episode_videos` looks for their files.

    Args:
        info: the metadata with the declared features.
        names: the names of all columns of the Parquet files.
        columns: the columns that are read.
        findings: receives the findings.
    """
    for name, feature in info.features.items():
        if name not in names and feature.get("dtype") != "video":
            dtype = feature.get("dtype", "column")
            message = f"{info.name} declares it as {dtype}, but the Parquet files lack it; left out"
            findings.add(Finding("declared-column-absent", message, file=info.name, column=name))
    for spec in columns:
        name = spec.source_name
        if info.features and name not in info.features:
            message = f"not declared in {info.name}; read as it is in the Parquet files"
            findings.add(Finding(_DISAGREES, message, file=info.name, column=name))
        elif (declared := _other_declaration(info.features.get(name, {}), spec)) is not None:
            message = (
                f"{info.name} declares {declared}, but the Parquet files hold {spec.dtype} {spec.shape}, which is used"
            )
            findings.add(Finding(_DISAGREES, message, file=info.name, column=name))


def _other_declaration(feature: Mapping[str, Any], spec: ColumnSpec) -> str | None:
    """Returns the declaration of a feature that differs from its column.

    Images and videos may be bytes, rows of language are text, and a shape of [1] may be a scalar; these count as equal.
    """
    dtype, shape = feature.get("dtype"), feature.get("shape")
    stored = {"image": "binary", "video": "binary", "language": "string"}.get(str(dtype))
    if dtype is not None and spec.dtype not in (str(dtype), stored):
        return f"{dtype}"
    if isinstance(shape, list) and not spec.variable_length and tuple(shape) not in (spec.shape, (*spec.shape, 1)):
        return f"{dtype} {tuple(shape)}"
    return None


def with_element_names(
    info: LeRobotInfo, columns: Sequence[ColumnSpec], findings: FindingLog
) -> tuple[ColumnSpec, ...]:
    """Returns the columns with the names that the metadata declares for the elements of scalars and vectors.

    Names of axes, such as `height`, name no elements. Nor does the one name of a vector.

    Args:
        info: the metadata with the declared features.
        columns: the columns that are kept.
        findings: receives a finding about each column with more or fewer names than elements.
    """
    named = []
    for spec in columns:
        name = spec.source_name
        names = _flat_names(info.features.get(name, {}).get("names"))
        vector = len(spec.shape) < 2 and not spec.variable_length
        if vector and len(names) == spec.size:
            spec = replace(spec, element_names=names)
        elif vector and len(names) > 1:
            message = f"{info.name} names {len(names)} elements, and the column has {spec.size}; the names are left out"
            findings.add(Finding(_DISAGREES, message, file=info.name, column=name))
        named.append(spec)
    return tuple(named)


def _flat_names(names: Any) -> tuple[str, ...]:
    """Returns the texts of a list, of a list of lists, or of a mapping.

    A mapping has lists (`{"motors": [...]}`), or the number of each name.
    """
    if isinstance(names, str):
        return (names,)
    if isinstance(names, dict):
        if names and all(type(number) is int for number in names.values()):
            return tuple(sorted((str(name) for name in names), key=names.__getitem__))
        names = list(names.values())
    return tuple(text for each in names for text in _flat_names(each)) if isinstance(names, list) else ()


def check_listing(info: LeRobotInfo, listed: EpisodeList | None, files: Sequence[str], findings: FindingLog) -> None:
    """Compares the list of episodes, the files and `meta/info.json`.

    Args:
        info: the metadata with the declared totals.
        listed: the list of episodes, if there is one.
        files: names of the Parquet files. Their rows are not read.
        findings: receives the findings.
    """
    if listed is None:
        if info.major == 2 and info.total_episodes not in (None, len(files)):
            message = (
                f"{info.name} declares {info.total_episodes} episodes, but there are {len(files)} files; all are read"
            )
            findings.add(Finding(_DISAGREES, message, file=info.name, column="total_episodes"))
        return
    _check_totals(info, listed, findings)
    if listed.repeated:
        message = f"{listed.name} lists an episode again; the first entry counts"
        findings.add(Finding(_DISAGREES, message, listed.repeated, file=listed.name, column="episode_index"))
    if listed.ranges is not None and len(listed.ids):
        expected = np.concatenate([[0], listed.ranges[:-1, 1]])
        if len(wrong := np.flatnonzero(listed.ranges[:, 0] != expected)):
            message = "an episode's frames do not begin where the previous episode's frames end"
            findings.add(
                Finding(_DISAGREES, message, len(wrong), listed.name, int(wrong[0]), column="dataset_from_index")
            )
    present = {data_file_key(name, info.major) for name in files}
    if listed.files is not None and None not in present:
        absent = [key for key in listed.files if key not in present]
        if absent:
            number = int(listed.ids[listed.files.index(absent[0])])
            message = f"{listed.name} lists episodes whose Parquet file is missing, first episode {number}; left out"
            findings.add(Finding("listed-episode-absent", message, len(absent), file=listed.name))


def _check_totals(info: LeRobotInfo, listed: EpisodeList, findings: FindingLog) -> None:
    """Compares the declared totals with the list of episodes."""
    if info.total_episodes not in (None, len(listed.ids)):
        message = f"{info.name} declares {info.total_episodes} episodes, but {listed.name} lists {len(listed.ids)}"
        findings.add(Finding(_DISAGREES, message, file=info.name, column="total_episodes"))
    frames = int(listed.lengths.sum())
    if (listed.lengths >= 0).all() and info.total_frames not in (None, frames):
        message = f"{info.name} declares {info.total_frames} frames, but {listed.name} lists {frames}"
        findings.add(Finding(_DISAGREES, message, file=info.name, column="total_frames"))


def check_block(block: EpisodeBlock, indices: npt.NDArray[np.int64], listed: EpisodeList, findings: FindingLog) -> None:
    """Compares episodes with their entries in the list.

    Args:
        block: the episodes.
        indices: int64 [episodes], as `EpisodeList.find` returns them.
        listed: the list.
        findings: receives the findings.
    """
    known = indices >= 0
    message = f"{listed.name} does not list the episode; kept"
    findings.add_episodes(block, _DISAGREES, message, ~known, "episode_index")
    listed_lengths = np.where(known, listed.lengths[indices], -1) if len(listed.ids) else indices
    message = f"an episode's length in {listed.name} differs from its number of rows; its rows are used"
    differ = (listed_lengths >= 0) & (listed_lengths != block.lengths)
    findings.add_episodes(block, _DISAGREES, message, differ, "length")
    if listed.ranges is not None and len(listed.ids):
        spans = (listed.ranges[:, 1] - listed.ranges[:, 0])[indices]
        message = f"an episode's range of frames in {listed.name} differs from its number of rows; its rows are used"
        findings.add_episodes(block, _DISAGREES, message, known & (spans != block.lengths), "dataset_to_index")


def check_timestamps(block: EpisodeBlock, stamps: npt.NDArray[Any], fps: float, findings: FindingLog) -> None:
    """Checks that the frames of an episode are 1/fps apart, as LeRobot does.

    The rounding of the timestamps is allowed for: in float32 it exceeds LeRobot's tolerance after 17 minutes.
    """
    if stamps.ndim != 1 or stamps.dtype.kind != "f":
        return
    distances = np.diff(stamps.astype(np.float64))
    tolerance = _TOLERANCE + np.spacing(np.abs(stamps[1:])).astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(distances - 1 / fps) <= tolerance)  # NaN is wrong
    offsets = block.offsets
    wrong[offsets[1:-1] - 1] = False  # between two episodes
    episodes = np.unique(np.searchsorted(offsets, np.flatnonzero(wrong), side="right") - 1)
    message = f"the distance of two frames of an episode differs from 1 / fps = {1 / fps:.6g} s; kept as they are"
    findings.add_episodes(block, "timestamps-irregular", message, episodes, "timestamp")


def task_texts(
    block: EpisodeBlock, tasks: npt.NDArray[Any], texts: Mapping[int, str], findings: FindingLog
) -> list[str | None]:
    """Returns the text of the task of each episode's first frame.

    The text is None if the list of tasks lacks it.

    Args:
        block: the episodes.
        tasks: [frames], the `task_index` of each frame.
        texts: `task_index` -> text.
        findings: receives the findings.
    """
    tasks = tasks.reshape(len(tasks), -1)[:, 0]
    starts = block.offsets[:-1]
    several = np.minimum.reduceat(tasks, starts) != np.maximum.reduceat(tasks, starts)
    message = "an episode has several tasks; the episode table has the task of its first frame"
    findings.add_episodes(block, "several-tasks", message, several, "task_index")
    found = [texts.get(task) for task in tasks[starts].tolist()]
    absent = np.array([text is None for text in found])
    message = "the list of tasks has no text for an episode's task_index"
    findings.add_episodes(block, "unknown-task", message, absent, "task_index")
    return found


def subtask_texts(
    block: EpisodeBlock, subtasks: npt.NDArray[Any], texts: Mapping[int, str], findings: FindingLog
) -> list[list[str] | None]:
    """Returns the texts of each episode's subtasks, in the order in which they begin.

    The list of an episode without any text is None.

    Args:
        block: the episodes.
        subtasks: [frames], the `subtask_index` of each frame.
        texts: `subtask_index` -> text.
        findings: receives the findings.
    """
    subtasks = subtasks.reshape(len(subtasks), -1)[:, 0]
    begins = np.union1d(np.flatnonzero(np.diff(subtasks)) + 1, block.offsets[:-1])
    episodes = np.searchsorted(block.offsets, begins, side="right") - 1
    found: list[dict[str, None]] = [{} for _ in range(len(block))]
    absent = np.zeros(len(block), np.bool_)
    for episode, number in zip(episodes.tolist(), subtasks[begins].tolist(), strict=True):
        if (text := texts.get(number)) is None:
            absent[episode] = True
        else:
            found[episode][text] = None
    message = f"{SUBTASKS} has no text for a frame's subtask_index"
    findings.add_episodes(block, "unknown-task", message, absent, SUBTASK)
    return [list(listed) or None for listed in found]


def persistent_rows(block: EpisodeBlock, name: str, findings: FindingLog) -> list[str | None]:
    """Returns the rows of language of each episode, as JSON; None if there are none.

    Args:
        block: the episodes.
        name: the column, in which every frame has all rows of its episode.
        findings: receives a finding if frames of an episode differ.
    """
    starts = block.offsets[:-1]
    rows: pa.Array = block.columns[name]
    numbers = rows.dictionary_encode().indices.to_numpy()
    several = np.minimum.reduceat(numbers, starts) != np.maximum.reduceat(numbers, starts)
    message = "the frames of an episode have different rows; the episode table has the rows of its first frame"
    findings.add_episodes(block, _DISAGREES, message, several, PERSISTENT)
    return [None if text == "[]" else text for text in rows.take(pa.array(starts)).to_pylist()]

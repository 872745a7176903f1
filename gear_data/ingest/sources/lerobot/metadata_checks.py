"""Where the rows of a LeRobot dataset and its metadata differ. The rows are kept; findings say what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.sources.lerobot.metadata import EpisodeList, LeRobotInfo, data_file
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock

#: Seconds that two frames may be further apart than 1/fps, or closer: LeRobot's own `tolerance_s`.
_TOLERANCE = 1e-4
_DISAGREES = "metadata-disagrees"


def check_features(
    info: LeRobotInfo, names: Sequence[str], columns: Sequence[ColumnSpec], findings: FindingLog
) -> None:
    """The columns declared in `features` against those of the Parquet files (`names`; `columns` are those read)."""
    for name, feature in info.features.items():
        if name not in names:
            kind = feature.get("dtype", "column")
            message = f"declared in {info.name} as {kind}, and not in the Parquet files; left out"
            findings.add(Finding("declared-column-absent", message, file=info.name, column=name))
    for spec in columns:
        name = spec.source or spec.name
        if info.features and name not in info.features:
            message = f"not declared in {info.name}; read as the Parquet files have it"
            findings.add(Finding(_DISAGREES, message, file=info.name, column=name))
        elif (declared := _declared(info.features.get(name, {}), spec)) is not None:
            message = f"{info.name} declares {declared}, the Parquet files hold {spec.dtype} {spec.shape}; read so"
            findings.add(Finding(_DISAGREES, message, file=info.name, column=name))


def _declared(feature: Mapping[str, Any], spec: ColumnSpec) -> str | None:
    """What a feature declares, if a column is something else. Pictures are bytes, and a shape of [1] is a scalar."""
    dtype, shape = feature.get("dtype"), feature.get("shape")
    if dtype is not None and str(dtype) != spec.dtype and not (dtype in ("image", "video") and spec.dtype == "binary"):
        return f"{dtype}"
    if isinstance(shape, list) and not spec.variable_length and tuple(shape) not in (spec.shape, (*spec.shape, 1)):
        return f"{dtype} {tuple(shape)}"
    return None


def check_listing(info: LeRobotInfo, listed: EpisodeList | None, files: Sequence[str], findings: FindingLog) -> None:
    """The list of episodes and the files found, against `meta/info.json` and each other. No row is looked at."""
    if listed is None:
        if info.major == 2 and info.total_episodes not in (None, len(files)):
            message = (
                f"{info.name} declares {info.total_episodes} episodes, there are {len(files)} files; those are read"
            )
            findings.add(Finding(_DISAGREES, message, file=info.name, column="total_episodes"))
        return
    if info.total_episodes not in (None, len(listed.ids)):
        message = f"{info.name} declares {info.total_episodes} episodes, {listed.name} lists {len(listed.ids)}"
        findings.add(Finding(_DISAGREES, message, file=info.name, column="total_episodes"))
    frames = int(listed.lengths.sum())
    if (listed.lengths >= 0).all() and info.total_frames not in (None, frames):
        message = f"{info.name} declares {info.total_frames} frames, {listed.name} lists {frames}"
        findings.add(Finding(_DISAGREES, message, file=info.name, column="total_frames"))
    if listed.repeated:
        message = f"{listed.name} lists an episode again; the first entry counts"
        findings.add(Finding(_DISAGREES, message, listed.repeated, file=listed.name, column="episode_index"))
    if listed.ranges is not None and len(listed.ids):
        expected = np.concatenate([[0], listed.ranges[:-1, 1]])
        if len(wrong := np.flatnonzero(listed.ranges[:, 0] != expected)):
            message = "an episode's frames do not begin where those of the one before end"
            findings.add(
                Finding(_DISAGREES, message, len(wrong), listed.name, int(wrong[0]), column="dataset_from_index")
            )
    present = {data_file(name, info.major) for name in files}
    if listed.files is not None and None not in present:
        absent = [place for place in listed.files if place not in present]
        if absent:
            number = int(listed.ids[listed.files.index(absent[0])])
            message = f"{listed.name} lists episodes whose Parquet file is not there, first episode {number}; left out"
            findings.add(Finding("listed-episode-absent", message, len(absent), file=listed.name))


def check_block(block: EpisodeBlock, places: npt.NDArray[np.int64], listed: EpisodeList, findings: FindingLog) -> None:
    """Episodes against their entries in the list; `places` are those of `EpisodeList.find`."""
    known = places >= 0
    _note(block, ~known, f"an episode that {listed.name} does not list; kept", "episode_index", findings)
    said = np.where(known, listed.lengths[places], -1) if len(listed.ids) else places
    message = f"{listed.name} gives an episode another length than it has rows; its rows count"
    _note(block, (said >= 0) & (said != block.lengths), message, "length", findings)
    if listed.ranges is not None and len(listed.ids):
        spans = (listed.ranges[:, 1] - listed.ranges[:, 0])[places]
        message = f"{listed.name} gives an episode another range of frames than it has rows; its rows count"
        _note(block, known & (spans != block.lengths), message, "dataset_to_index", findings)


def _note(
    block: EpisodeBlock,
    episodes: npt.NDArray[np.bool_],
    message: str,
    column: str,
    findings: FindingLog,
    code: str = _DISAGREES,
) -> None:
    if len(found := np.flatnonzero(episodes)):
        first = int(found[0])
        findings.add(Finding(code, message, len(found), block.sources[first], int(block.rows[first]), column))


def check_timestamps(block: EpisodeBlock, stamps: npt.NDArray[Any], fps: float, findings: FindingLog) -> None:
    """That frames of an episode are 1/fps apart, as LeRobot's own check has it.

    Rounding of the stamps themselves, which in float32 passes LeRobot's tolerance after 17 minutes, is allowed for.
    """
    if stamps.ndim != 1 or stamps.dtype.kind != "f":
        return
    steps = np.diff(stamps.astype(np.float64))
    slack = _TOLERANCE + np.spacing(np.abs(stamps[1:])).astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(steps - 1 / fps) <= slack)  # NaN is wrong
    offsets = block.offsets
    wrong[offsets[1:-1] - 1] = False  # from one episode to the next
    episodes = np.zeros(len(block), np.bool_)
    episodes[np.searchsorted(offsets, np.flatnonzero(wrong), side="right") - 1] = True
    message = f"frames of an episode are not {1 / fps:.6g} s apart, as fps says; kept as they are"
    _note(block, episodes, message, "timestamp", findings, "timestamps-irregular")


def task_texts(
    block: EpisodeBlock, tasks: npt.NDArray[Any], texts: Mapping[int, str], findings: FindingLog
) -> list[str | None]:
    """The text of the task of each episode's first frame; None where the list of tasks has none."""
    tasks = tasks.reshape(len(tasks), -1)[:, 0]
    starts = block.offsets[:-1]
    several = np.minimum.reduceat(tasks, starts) != np.maximum.reduceat(tasks, starts)
    message = "an episode has several tasks; the episode table has that of its first frame"
    _note(block, several, message, "task_index", findings, "several-tasks")
    found = [texts.get(task) for task in tasks[starts].tolist()]
    absent = np.array([text is None for text in found])
    message = "the list of tasks has no text for the task_index of an episode"
    _note(block, absent, message, "task_index", findings, "unknown-task")
    return found

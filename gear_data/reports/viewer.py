"""Data of the episode viewer: scalars over time, and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.reports.distributions import MAX_DIMENSIONS, dimension_labels
from gear_data.reports.numbers import rounded
from gear_data.reports.pictures import encode_steps, picture_columns
from gear_data.reports.step_sample import Int64Array, spread
from gear_data.schema import ColumnSpec, Role

#: Episodes of the viewer, and points of each curve.
_MAX_EPISODES = 40
_POINTS = 200
#: Numbers of all curves, and pictures of all episodes. They bound the size of a page.
_NUMBERS = 160_000
_PICTURES = 120
#: Frames of each episode without `frames`.
_STILLS = 3


def viewed_positions(
    dataset: Dataset, flags: Mapping[str, npt.NDArray[np.bool_]], read: Int64Array, frames: int
) -> Int64Array:
    """Returns the positions of the episodes that the viewer has, ascending.

    These are the best, the median and the worst return, outliers by each measure, and others in equal distances by
    return.

    Args:
        dataset: the dataset.
        flags: measure -> whether each episode is an outlier, bool [n].
        read: positions of the episodes of the sample.
        frames: frames of each episode to embed; 0: only the first, the middle and the last.
    """
    width = sum(_width(spec) for spec in series_columns(dataset))
    count = min(_MAX_EPISODES, max(3, _NUMBERS // max(1, width * _POINTS)))
    pictures = picture_columns(dataset)
    if pictures and not frames:
        count = min(count, max(3, _PICTURES // (_STILLS * len(pictures))))
    returns = np.nan_to_num(dataset.episode_table.column("return").to_numpy()[read])
    order = read[np.argsort(returns, kind="stable")]
    wanted = [order[spread(len(order), 3)]]
    wanted += [read[flag[read]][:3] for flag in flags.values()]
    wanted += [order[spread(len(order), count)]]
    unique = list(dict.fromkeys(np.concatenate(wanted).tolist()))
    return np.sort(np.array(unique[:count], np.int64))


def series_columns(dataset: Dataset) -> list[ColumnSpec]:
    """Returns the columns of scalars and vectors, without masks."""
    columns = dataset.schema.fixed_columns
    return [spec for spec in columns if len(spec.shape) < 2 and spec.size and not spec.name.startswith("masks.")]


def _width(spec: ColumnSpec) -> int:
    return min(spec.size, MAX_DIMENSIONS)


def viewer_data(dataset: Dataset, positions: Int64Array, frames: int) -> dict[str, Any]:
    """Returns the columns and the episodes of the viewer, JSON-able.

    Each curve has at most `_POINTS` points, in equal distances, with the first and the last step.
    """
    series, pictures = series_columns(dataset), picture_columns(dataset)
    overlays, overlaid = _overlays(series)
    episodes = []
    with progress_bar(len(positions), "report: episodes", "episode", None) as bar:
        for position in positions.tolist():
            episodes.append(_episode(dataset, position, series, pictures, frames))
            bar.update(1)
    return {
        "columns": [
            {"name": spec.name, "size": spec.size, "labels": dimension_labels(spec), "overlaid": i in overlaid}
            for i, spec in enumerate(series)
        ],
        "overlays": overlays,
        "pictures": [spec.name for spec in pictures],
        "scrub": frames > 0,
        "episodes": episodes,
    }


def _overlays(series: Sequence[ColumnSpec]) -> tuple[list[dict[str, Any]], set[int]]:
    """Returns the names that elements of observations and of actions share, each with its lines.

    A line is [number of the column, number of the element]. Also returns the columns all of whose elements are in them.
    """
    lines: dict[str, list[list[int]]] = {}
    roles: dict[str, set[Role]] = {}
    for column, spec in enumerate(series):
        if spec.role in (Role.OBSERVATION, Role.ACTION):
            for element, name in enumerate((spec.element_names or ())[:MAX_DIMENSIONS]):
                lines.setdefault(name, []).append([column, element])
                roles.setdefault(name, set()).add(spec.role)
    shared = {name: found for name, found in lines.items() if len(roles[name]) == 2}
    counts = Counter(column for found in shared.values() for column, _ in found)
    whole = {column for column, count in counts.items() if count == series[column].size}
    return [{"name": name, "lines": found} for name, found in shared.items()], whole


def _episode(
    dataset: Dataset, position: int, series: Sequence[ColumnSpec], pictures: Sequence[ColumnSpec], frames: int
) -> dict[str, Any]:
    episode = dataset[position]
    steps = spread(episode.length, _POINTS)
    shown = spread(episode.length, frames or _STILLS)
    images = [encode_steps(dataset, position, spec, shown) for spec in pictures]
    return {
        "id": episode.id,
        "length": episode.length,
        "steps": steps.tolist(),
        # One list a dimension.
        "values": [rounded(episode[spec.name][steps].reshape(len(steps), -1)[:, : _width(spec)].T) for spec in series],
        "frames": {"steps": shown.tolist(), "images": images} if pictures else None,
        "task": _task(dataset, position),
        "texts": _texts(dataset, position),
    }


def _task(dataset: Dataset, position: int) -> str | None:
    """Returns the task of an episode, at most 300 characters; None if it has none."""
    table = dataset.episode_table
    task = table.column("task")[position].as_py() if "task" in table.column_names else None
    return None if task is None else str(task)[:300]


def _texts(dataset: Dataset, position: int) -> list[dict[str, Any]]:
    """Returns the texts of an episode: the steps at which each one begins, at most 20 of them."""
    found = []
    for spec in dataset.schema:
        if spec.dtype == "string":
            values = dataset.values(spec.name, position, position + 1).to_pylist()
            changes = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]][:20]
            found.append({"name": spec.name, "texts": [[i, values[i][:300]] for i in changes]})
    return found

"""Data of the episode viewer: scalars over time, and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.step_rate import stated_rate
from gear_data.errors import InvalidArgumentError
from gear_data.reports.distributions import MAX_DIMENSIONS, dimension_labels
from gear_data.reports.numbers import number, rounded
from gear_data.reports.pictures import encode_steps, picture_columns
from gear_data.reports.step_sample import Int64Array, spread
from gear_data.schema import ColumnSpec, Role

#: Most and fewest points of a curve.
_POINTS, _FEWEST_POINTS = 200, 20
#: Frames of an episode and camera that pictures of usual sizes leave room for: fewer episodes are viewed.
_FRAMES = 40
#: Frames of an episode by which the sizes of its pictures are estimated, and which it has at least.
_STILLS = 3


@dataclass(frozen=True)
class ViewerSize:
    """Bounds of the size of a viewer.

    Attributes:
        episodes: most episodes.
        numbers: numbers of all curves.
        picture_bytes: bytes of all pictures as text.
    """

    episodes: int = 40
    numbers: int = 160_000
    picture_bytes: int = 2_400_000

    def shared(self, viewers: int) -> ViewerSize:
        """Returns the size of each of several viewers of one page."""
        parts = (self.episodes, self.numbers, self.picture_bytes)
        return ViewerSize(*(max(1, each // viewers) for each in parts))


def viewed_positions(
    dataset: Dataset, flags: Mapping[str, npt.NDArray[np.bool_]], read: Int64Array, frames: int, size: ViewerSize
) -> Int64Array:
    """Returns the positions of the episodes that the viewer has, ascending.

    These are the best, the median and the worst return, outliers by each measure, and others in equal distances by
    return.

    Args:
        dataset: the dataset.
        flags: measure -> whether each episode is an outlier, bool [n].
        read: positions of the episodes of the sample.
        frames: frames of each episode and camera to embed; 0: as many as the size allows.
        size: bounds of the viewer.
    """
    width = sum(_width(spec) for spec in series_columns(dataset))
    count = min(size.episodes, size.numbers // max(1, width * _POINTS))
    pictures = picture_columns(dataset)
    if pictures and not frames:
        each = min(_FRAMES, int(dataset.lengths.mean())) * _bytes_of_a_step(dataset, int(read[0]), pictures)
        count = min(count, size.picture_bytes // max(1, each))
    count = max(3, count)
    returns = np.nan_to_num(dataset.episode_table.column("return").to_numpy()[read])
    order = read[np.argsort(returns, kind="stable")]
    wanted = [order[spread(len(order), 3)]]
    wanted += [read[flag[read]][:3] for flag in flags.values()]
    wanted += [order[spread(len(order), count)]]
    unique = list(dict.fromkeys(np.concatenate(wanted).tolist()))
    return np.sort(np.array(unique[:count], np.int64))


def _bytes_of_a_step(dataset: Dataset, position: int, pictures: Sequence[ColumnSpec]) -> int:
    """Returns the bytes of the pictures of the middle step of an episode, as text."""
    step = np.array([int(dataset.lengths[position]) // 2])
    return sum(len(encode_steps(dataset, position, spec, step)[0] or "") for spec in pictures)


def series_columns(dataset: Dataset) -> list[ColumnSpec]:
    """Returns the columns of scalars and vectors, without masks."""
    columns = dataset.schema.fixed_columns
    return [spec for spec in columns if len(spec.shape) < 2 and spec.size and not spec.name.startswith("masks.")]


def _width(spec: ColumnSpec) -> int:
    return min(spec.size, MAX_DIMENSIONS)


def viewer_data(dataset: Dataset, positions: Int64Array, frames: int, size: ViewerSize) -> dict[str, Any]:
    """Returns the columns and the episodes of the viewer, JSON-able.

    Each curve has points in equal distances, with the first and the last step.

    Args:
        dataset: the dataset.
        positions: positions of the episodes.
        frames: see `viewed_positions`.
        size: bounds of the viewer.
    """
    series, pictures = series_columns(dataset), picture_columns(dataset)
    overlays, overlaid = _overlays(series)
    numbers = max(1, len(positions) * sum(_width(spec) for spec in series))
    points = min(_POINTS, max(_FEWEST_POINTS, size.numbers // numbers))
    picture_bytes = size.picture_bytes // max(1, len(positions))
    episodes = []
    with progress_bar(len(positions), "report: episodes", "episode", None) as bar:
        for position in positions.tolist():
            shown = _frames(dataset, position, pictures, frames, picture_bytes) if pictures else None
            episodes.append({**_episode(dataset, position, series, points), "frames": shown})
            bar.update(1)
    return {
        "of": len(dataset),
        "rate": _rate(dataset),
        "points": points,
        "columns": [
            {"name": spec.name, "size": spec.size, "labels": dimension_labels(spec), "overlaid": i in overlaid}
            for i, spec in enumerate(series)
        ],
        "overlays": overlays,
        "pictures": [spec.name for spec in pictures],
        "episodes": episodes,
    }


def _rate(dataset: Dataset) -> float | None:
    """Returns the steps per second that the source states, or those of a camera; None if they are unknown."""
    try:
        stated = stated_rate(dataset)
    except InvalidArgumentError:  # sources of several rates
        return None
    rates = (camera.video.fps for camera in dataset.schema.videos if camera.video is not None)
    return next((rate for rate in (stated, *rates) if rate), None)


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


def _episode(dataset: Dataset, position: int, series: Sequence[ColumnSpec], points: int) -> dict[str, Any]:
    episode = dataset[position]
    steps = spread(episode.length, points)
    return {
        "id": episode.id,
        "length": episode.length,
        "return": number(dataset.episode_table.column("return")[position].as_py(), 7),
        "steps": steps.tolist(),
        # One list a dimension.
        "values": [rounded(episode[spec.name][steps].reshape(len(steps), -1)[:, : _width(spec)].T) for spec in series],
        "task": _task(dataset, position),
        "texts": _texts(dataset, position),
    }


def _frames(
    dataset: Dataset, position: int, pictures: Sequence[ColumnSpec], frames: int, most_bytes: int
) -> dict[str, Any]:
    """Returns the steps of an episode that have pictures, and the pictures of each camera.

    Without `frames` the pictures have about `most_bytes` bytes.
    """
    length = dataset[position].length

    def encoded(count: int) -> tuple[Int64Array, list[list[str | None]], int]:
        steps = spread(length, count)
        images = [encode_steps(dataset, position, spec, steps) for spec in pictures]
        return steps, images, sum(len(image or "") for each in images for image in each)

    steps, images, used = encoded(frames or _STILLS)
    if not frames and len(steps) < length:
        steps, images, used = encoded(max(_STILLS, most_bytes * len(steps) // max(1, used)))
        # Other pictures were larger than the first ones.
        kept = spread(len(steps), max(_STILLS, min(len(steps), most_bytes * len(steps) // max(1, used))))
        steps, images = steps[kept], [[each[place] for place in kept.tolist()] for each in images]
    return {"steps": steps.tolist(), "images": images}


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

"""FrameItems: the items of LeRobot's dataset class, from a dataset that was converted from LeRobot's files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnsupportedColumnError, unknown_name
from gear_data.integrations.lerobot.collate import FrameItem
from gear_data.loaders.arguments.options import BatchOptions
from gear_data.loaders.batch_source import BatchSource
from gear_data.loaders.builders.batch import BatchBuilder, RankRows
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.passes.layout import PassLayout
from gear_data.loaders.sequence_loader import SequenceLoader
from gear_data.loaders.window_source import SingleSource
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Windows

Int64Array = npt.NDArray[np.int64]
Item = dict[str, Any]

#: Features that are numbers of the step, which a converted dataset does not store.
FRAME, EPISODE, INDEX = "frame_index", "episode_index", "index"
_NUMBERS = (FRAME, EPISODE, INDEX)
#: Features of rows of language: those of an episode, and those of a step.
_PERSISTENT, _EVENTS = "language_persistent", "language_events"
_PAD = "_is_pad"
_DEPTH = ("video.is_depth_map", "is_depth_map")


class FrameItems:
    """Makes items as `LeRobotDataset.__getitem__` does, many at a time.

    An item has every feature under LeRobot's key, and KEY_is_pad for keys with `deltas`. Steps before the episode's
    first one and after its last one are these steps, with KEY_is_pad True. Floats are float32 and integers int64.
    Cameras are float32 [C, H, W] from 0 to 1, and depth is float32 [1, H, W] in the unit of the dataset. Each group of
    pictures that a call needs is decoded once.

    Thread-safe, usable in a forked child, and picklable.

    Args:
        dataset: the dataset, with all its episodes.
        features: key -> its declaration in `meta/info.json`.
        deltas: key -> steps relative to an item's step. Their values are stacked along a new first axis.
        return_uint8: whether frames of videos are uint8, as in the file.
        others: key -> values of all steps, of features of numbers that the dataset lacks.
            Conversion leaves out what follows from other columns, and what `export` added.

    Raises:
        InvalidArgumentError: the dataset is a view.
        UnknownNameError: `deltas` has a key that is no feature.
        MissingColumnError: the dataset has no column of a feature.
        UnsupportedColumnError: a feature is depth that is not quantised video, images that stay encoded, or text with
            `deltas`.
    """

    def __init__(
        self,
        dataset: Dataset,
        features: Mapping[str, Mapping[str, Any]],
        deltas: Mapping[str, Sequence[int]],
        return_uint8: bool = False,
        others: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        if dataset.view.rows is not None or dataset.step_mask is not None:
            raise InvalidArgumentError(
                "LeRobot numbers the steps of all episodes, and this is a view of some", hint="give episodes=[...]"
            )
        for key in deltas:
            if key not in features:
                raise unknown_name("feature", key, features)
        self._dataset, self._features, self._deltas = dataset, features, deltas
        self._return_uint8, self._others = return_uint8, others or {}
        specs = source_columns(dataset)
        made = (*_NUMBERS, _PERSISTENT, *self._others)
        self._specs = {key: _spec(dataset, specs, key, each) for key, each in features.items() if key not in made}
        for key in deltas:
            if (key in self._specs and self._specs[key].variable_length) or key in (_PERSISTENT, _EVENTS):
                raise UnsupportedColumnError(
                    "text has no values to stack", column=key, hint="leave the key out of delta_timestamps"
                )
        videos = [key for key, feature in features.items() if feature["dtype"] == "video"]
        #: The keys in the order of LeRobot's items.
        self._keys = [*videos, *(key for key in features if key not in videos)]
        self._loader = self._make_loader(1)
        self._first = dataset.offsets[:-1]
        numbers = dataset.episode_table.column(EPISODE) if EPISODE in dataset.episode_table.column_names else None
        self._numbers = np.arange(len(dataset)) if numbers is None else numbers.to_numpy()
        self._lock = fork_safe_lock()
        # The builder, with the rows that it can build, and whether it is a worker's.
        self._builder: tuple[int, bool, _ListedWindows, BatchBuilder] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_builder": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=fork_safe_lock())

    @property
    def episode_numbers(self) -> Int64Array:
        """int64 [episodes]: LeRobot's number of each episode."""
        return self._numbers

    def __call__(self, positions: Int64Array) -> list[Item]:
        """Returns the items of some steps.

        positions: int64 [n], each the number of a step among the steps of all episodes.

        Raises:
            CorruptShardError, RemoteError, ClusterError: frames or rows cannot be read.
        """
        episodes = np.searchsorted(self._first, positions, side="right") - 1
        steps = positions - self._first[episodes]
        columns = self._columns(episodes, steps)
        arrays = self._build(Windows(episodes, steps, np.ones(len(positions), np.int64)))
        for key, spec in self._specs.items():
            columns[key] = self._converted(key, spec, arrays[key])
        pads = {f"{key}{_PAD}": self._padding(key, episodes, steps) for key in self._deltas}
        ordered = {**{key: columns[key] for key in self._keys}, **pads}
        return [FrameItem({key: values[row] for key, values in ordered.items()}) for row in range(len(positions))]

    def _columns(self, episodes: Int64Array, steps: Int64Array) -> dict[str, Any]:
        """Returns the features that are no columns of the dataset."""
        found: dict[str, Any] = {}
        for key in self._features:
            if key in _NUMBERS or key in self._others:
                at = self._at(key, episodes, steps)
                index = self._first[episodes, None] + at
                if key in self._others:
                    values = self._others[key][index]
                else:
                    number = np.broadcast_to(self._numbers[episodes, None], at.shape)
                    values = {FRAME: at, EPISODE: number, INDEX: index}[key]
                found[key] = self._numeric(
                    key, torch.from_numpy(np.array(values if key in self._deltas else values[:, 0]))
                )
            elif key == _PERSISTENT:
                table = self._dataset.episode_table
                texts = table.column(key).take(episodes).to_pylist() if key in table.column_names else []
                found[key] = [json.loads(text or "[]") for text in texts or ["[]"] * len(episodes)]
        return found

    def _at(self, key: str, episodes: Int64Array, steps: Int64Array) -> Int64Array:
        """Returns the steps whose values an item has, int64 [n, deltas], inside the episodes."""
        at: Int64Array = steps[:, None] + np.asarray(self._deltas.get(key, (0,)), np.int64)
        return np.clip(at, 0, self._dataset.lengths[episodes, None] - 1)

    def _padding(self, key: str, episodes: Int64Array, steps: Int64Array) -> torch.Tensor:
        at = steps[:, None] + np.asarray(self._deltas[key], np.int64)
        return torch.from_numpy((at < 0) | (at >= self._dataset.lengths[episodes, None]))

    def _converted(self, key: str, spec: ColumnSpec, values: Any) -> Any:
        """Returns a feature in LeRobot's dtype and shape."""
        if spec.variable_length:
            return [json.loads(text) for text in values] if key == _EVENTS else values
        kind = self._features[key]["dtype"]
        if kind == "video":
            # LeRobot drops the axis of one step, of videos only.
            return values[:, 0] if len(self._deltas.get(key, ())) == 1 else values
        if kind == "image":
            return values.movedim(-1, -3).contiguous().to(torch.float32).div(255)
        return self._numeric(key, values)

    def _numeric(self, key: str, values: torch.Tensor) -> torch.Tensor:
        """Returns a feature of numbers in LeRobot's dtype and shape."""
        shape, leading = tuple(self._features[key]["shape"]), 2 if key in self._deltas else 1
        if values.dtype != torch.bool:
            values = values.to(torch.float32 if values.is_floating_point() else torch.int64)
        return values.reshape(*values.shape[:leading], *(() if shape == (1,) else shape))

    def _make_loader(self, rows: int) -> SequenceLoader:
        """Returns a loader whose batches have the stored features."""
        names = {key: spec.name for key, spec in self._specs.items()}
        return SequenceLoader(
            self._dataset,
            rows,
            context=1,
            preset="lerobot",
            sampler="fifo",
            columns=list(names.values()),
            offsets={names[key]: list(steps) for key, steps in self._deltas.items() if key in names},
            batch=BatchOptions(
                preset_options={
                    "camera_frames": "uint8_chw" if self._return_uint8 else "float32",
                    "required_columns": (),
                    "sequences": (),
                }
            ),
            framework="torch",
            prefetch=0,
            rank=0,
            world_size=1,
        )

    def _build(self, windows: Windows) -> dict[str, Any]:
        rows, in_worker = len(windows), get_worker_info() is not None
        with self._lock:
            if self._builder is None or self._builder[0] < rows or self._builder[1] != in_worker:
                stage = self._loader._stages.newest
                layout = PassLayout(rows, None, None, False)
                listed = _ListedWindows(stage.components[0].selection, layout)
                batches = BatchSource(stage.config, stage.components, listed, stage.batches.builders)
                self._builder = rows, in_worker, listed, batches.builder(RankRows(layout, 0, 1), 1)
            _, _, listed, builder = self._builder
            listed.windows = windows
            (built,) = builder.build([0])
        return built.batch


class _ListedWindows(SingleSource):
    """The windows that a caller lists, for any step."""

    windows: Windows

    def sample(self, step: int, count: int) -> Windows:
        return self.windows


def is_numbers(key: str, feature: Mapping[str, Any]) -> bool:
    """Returns whether a feature has numbers that are read from a column."""
    return key not in (*_NUMBERS, _PERSISTENT, _EVENTS) and feature["dtype"] not in ("video", "image", "string")


def source_columns(dataset: Dataset) -> dict[str, ColumnSpec]:
    """Returns LeRobot's key -> the column of a converted dataset."""
    return {spec.source_name: spec for spec in (*dataset.schema.columns, *dataset.schema.videos)}


def _spec(dataset: Dataset, specs: Mapping[str, ColumnSpec], key: str, feature: Mapping[str, Any]) -> ColumnSpec:
    """Returns the column of a feature."""
    if key not in specs:
        raise MissingColumnError(
            "the converted dataset has no column of this feature",
            file=str(dataset.path),
            column=key,
            hint="convert LeRobot's folder without columns=",
        )
    details = [feature.get(name) or {} for name in ("info", "video_info")]
    if specs[key].depth is None and any(each.get(fact) for each in details for fact in _DEPTH):
        raise UnsupportedColumnError(
            "a depth camera that is not quantised video is not read as depth", column=key,
            hint="train on LeRobot's own class",
        )  # fmt: skip
    if feature["dtype"] == "image" and specs[key].variable_length:
        raise UnsupportedColumnError(
            "its images stay encoded: they differ in size, have more than 8 bits, or keep_encoded=True said so",
            column=key,
            hint="convert LeRobot's folder without keep_encoded=True, or train on LeRobot's own class",
        )
    return specs[key]

"""LeRobotDataset: LeRobot's dataset class, with frames and rows that gear-data reads."""

from __future__ import annotations

import importlib
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from gear_data.common.retry import MANY, answer_of
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.open import open_dataset
from gear_data.errors import (
    CorruptSourceError,
    DatasetNotFoundError,
    EpisodeIndexError,
    GearError,
    InvalidArgumentError,
    MissingExtraError,
    RemoteError,
    UnknownArgumentError,
    unknown_name,
)
from gear_data.hub.failures import typed_hub_errors
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.ingest.videos.storage_options import VideoStorage
from gear_data.integrations.lerobot.frame_items import FrameItems, Int64Array, Item, is_numbers, source_columns
from gear_data.storage.atomic import typed_write_errors
from gear_data.words import DepthUnit

#: Arguments of LeRobot's class that say how LeRobot reads.
_OF_LEROBOT = ("download_videos", "force_cache_sync", "video_backend")
#: Other arguments of LeRobot's class that concern reading, and what to do.
_INSTEAD = {
    "episode_filter": "give their numbers: episodes=LeRobotDatasetMetadata(...).filter_episodes(...), of LeRobot",
    "token": "log in with 'hf auth login', or set HF_TOKEN",
}
_TASK, _SUBTASK = "task_index", "subtask_index"
_END_FLAGS = ("terminated", "truncated")
_INFO = "meta/info.json"
#: What the hub's library notes about this file in a folder to which it downloads: the commit, the etag, the time.
_NOTE = f".cache/huggingface/download/{_INFO}.metadata"
_COMMIT = re.compile("[0-9a-f]{40}")


class LeRobotDataset(torch.utils.data.Dataset[Item]):
    """LeRobot's dataset class, with frames and rows that gear-data reads.

    Items equal those of `lerobot.datasets.LeRobotDataset`, bit for bit. A DataLoader asks for the items of a batch in
    one call: each group of pictures is decoded once, and kept for the next batches.

    LeRobot's files stay where they are. The first use converts rows and indexes videos, into the cache of
    `gear_data.open`. Rows that are not on this machine are downloaded by LeRobot. Videos that are not are read on the
    hub, where they stay, with the rows of the same commit: the commit of the folder's metadata.

    Args:
        repo_id: LeRobot's name of the dataset.
        root: its folder; None: where LeRobot keeps it.
        episodes: numbers of the episodes to read; None: all.
        image_transforms: applied to each camera of each item except depth, as by LeRobot.
        delta_timestamps: key -> seconds relative to an item's time. Their values are stacked.
        tolerance_s: by how much the product of `delta_timestamps` and frames per second may differ from an integer,
            in seconds.
        revision: of the repository on the hub.
        return_uint8: whether frames of videos are uint8; else float32 from 0 to 1.
        dataset: the converted dataset, opened; None opens `root`, or the repository, by `gear_data.open`.
        depth_output_unit: the unit of depth, `mm` or `m`; of the converted dataset, if that is given.
        repo_type: an argument of newer versions of LeRobot: only `dataset`.
        **options: `video_backend`, `download_videos` and `force_cache_sync` of LeRobot's class have no effect.

    Attributes:
        meta: LeRobot's own metadata.
        root: the folder of LeRobot's files.
        depth_output_unit: the unit of depth and its statistics.

    Raises:
        MissingExtraError: LeRobot is not installed.
        InvalidArgumentError: an argument out of its range.
        UnknownNameError: `delta_timestamps` names no feature.
        CorruptSourceError: a file is damaged, or the episodes differ from those of the metadata.
        UnsupportedColumnError: a depth camera is not quantised video, or images stay encoded.
        UnknownNameError: there is no such unit of depth.
        DatasetNotFoundError: a file is neither in the folder nor on the hub.
        RemoteError: the hub is asked for a file, and refuses or does not answer.
        GearError: see `gear_data.open`.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        *,
        return_uint8: bool = False,
        dataset: Dataset | None = None,
        depth_output_unit: DepthUnit = "mm",
        repo_type: str = "dataset",
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options:
            if name not in _OF_LEROBOT:
                hint = _INSTEAD.get(name, "record and edit with LeRobot's own class")
                raise UnknownArgumentError(f"this class has no argument '{name}'", hint=hint)
        if repo_type != "dataset":
            raise InvalidArgumentError(
                f"repo_type is {repo_type!r}, and only 'dataset' is read", hint="train on LeRobot's own class"
            )
        self.repo_id, self.tolerance_s, self.delta_timestamps = repo_id, tolerance_s, delta_timestamps
        self.meta = _metadata(repo_id, root, revision)
        self.root, self.revision = Path(self.meta.root), self.meta.revision
        self.set_image_transforms(image_transforms)
        deltas = _delta_steps(delta_timestamps or {}, self.meta.fps, tolerance_s)
        self._dataset = self._open(VideoStorage(depth_unit=depth_output_unit)) if dataset is None else dataset
        depths = {key: spec.depth for key, spec in source_columns(self._dataset).items() if spec.depth is not None}
        #: Cameras of depth. LeRobot 0.4 does not know them.
        self._depth_keys = frozenset(depths)
        self.depth_output_unit = next(iter(depths.values())).unit if depths else depth_output_unit
        if depths and hasattr(self.meta, "rescale_depth_stats"):
            # As LeRobot's class does: the statistics get the unit of the frames.
            self.meta.rescale_depth_stats(self.depth_output_unit)
        self._items = FrameItems(self._dataset, self.meta.features, deltas, return_uint8, self._left_out())
        self._check_episodes()
        self.episodes = None if episodes is None else list(episodes)
        self._positions = None if episodes is None else self._selected(episodes)
        self._tasks = self.meta.tasks.index.tolist()
        subtasks = getattr(self.meta, "subtasks", None) if _SUBTASK in self.meta.features else None
        self._subtasks = None if subtasks is None else subtasks.index.tolist()

    def __len__(self) -> int:
        """Returns the number of frames of the episodes."""
        return self.num_frames

    def __getitem__(self, index: Any) -> Any:
        """Returns the item of a frame: key -> tensor, and the text `task`; of a slice, a list of items.

        Raises:
            EpisodeIndexError: there is no such frame. It is an `IndexError` too.
            InvalidArgumentError: the index is neither an integer nor a slice of integers.
        """
        if isinstance(index, slice):
            numbers = self._sliced(index)
            return self.__getitems__(numbers) if numbers else []
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Item]:
        """Returns the items of several frames, as a DataLoader asks for them.

        Raises:
            EpisodeIndexError: there is no such frame.
        """
        positions = np.array([self._checked(index) for index in indices], np.int64)
        if self._positions is not None:
            positions = self._positions[positions]
        items = self._items(positions)
        for item, position in zip(items, positions.tolist(), strict=True):
            if self.image_transforms is not None:
                for key in self.meta.camera_keys:
                    if key not in self._depth_keys:
                        item[key] = self.image_transforms(item[key])
            item["task"] = self._text(item, _TASK, self._tasks, position)
            if self._subtasks is not None:
                item["subtask"] = self._text(item, _SUBTASK, self._subtasks, position)
        return items

    @property
    def num_frames(self) -> int:
        """The number of frames of the episodes."""
        return self._dataset.num_steps if self._positions is None else len(self._positions)

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return len(self._dataset) if self.episodes is None else len(self.episodes)

    @property
    def fps(self) -> int:
        """Frames per second."""
        return int(self.meta.fps)

    @property
    def features(self) -> Mapping[str, Any]:
        """Key -> its declaration in `meta/info.json`."""
        return self.meta.features  # type: ignore[no-any-return]

    @cached_property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """Number of a frame in the whole dataset -> its number here; None if all episodes are here."""
        if self._positions is None:
            return None
        return {position: number for number, position in enumerate(self._positions.tolist())}

    @cached_property
    def hf_dataset(self) -> Any:
        """The rows of the episodes, as LeRobot's class has them: a `datasets.Dataset`. Made at the first use."""
        reader = importlib.import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset
        revision = _commit(self.root) or self.revision  # it may download rows again
        options = {"root": self.root, "episodes": self.episodes, "revision": revision, "download_videos": False}
        with _typed_lerobot_errors(self.repo_id, str(self.root)):
            return reader(self.repo_id, **options).hf_dataset

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Sets what is applied to each camera; None: nothing.

        Raises:
            InvalidArgumentError: it is not callable.
        """
        if image_transforms is not None and not callable(image_transforms):
            raise InvalidArgumentError(f"image_transforms must be callable, not {image_transforms!r}")
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Leaves cameras as they are."""
        self.image_transforms = None

    def __repr__(self) -> str:
        return f"LeRobotDataset({self.repo_id!r}, {self.num_episodes} episodes, {self.num_frames} frames)"

    def _sliced(self, index: slice) -> range:
        try:
            return range(len(self))[index]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{index!r} is no slice of frames: {error}") from None

    def _checked(self, index: Any) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise InvalidArgumentError(f"a frame is numbered by an integer, not {index!r}") from None
        if not -len(self) <= number < len(self):
            raise EpisodeIndexError(f"there is no frame {number}", hint=f"frames are 0 to {len(self) - 1}")
        return number % len(self)

    def _text(self, item: Item, key: str, texts: Sequence[str], position: int) -> str:
        number = int(item[key])
        if not 0 <= number < len(texts):
            name = key.removesuffix("_index")
            raise CorruptSourceError(
                f"the frame has {name} {number}, and meta/{name}s.parquet has {len(texts)} {name}s",
                file=str(self.root),
                column=key,
                row=position,
                hint=f"repair meta/{name}s.parquet with LeRobot's tools",
            )
        return texts[number]

    def _open(self, videos: VideoStorage) -> Dataset:
        """Opens the files: those of the folder, or those on the hub if the folder lacks a video."""
        options = ConvertOptions(videos=videos)
        cameras = [key for key, feature in self.meta.features.items() if feature["dtype"] == "video"]
        absent = next((file for key in cameras for file in _absent_files(self.meta, key)), None)
        if absent is None:
            return open_dataset(str(self.root), convert=options)
        # A tag may have moved since: rows, tasks and statistics must be of one commit.
        commit = _commit(self.root)
        revision = quote(str(commit or self.revision), safe="")
        try:
            return open_dataset(f"hf://datasets/{self.repo_id}@{revision}", convert=options)
        except GearError as error:
            asked = f"the hub is asked because {absent} is not in {self.root}"
            if commit is not None:
                asked += f"; if it no longer has the commit of the folder's metadata, remove {self.root / 'meta'}"
            error.hint = "; ".join([asked, *filter(None, [error.hint])])
            raise

    def _left_out(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the features of numbers that LeRobot's files have, and the converted dataset lacks.

        Or has with other values: conversion completes end flags, and makes them bool.
        """
        known = {key for key, spec in source_columns(self._dataset).items() if spec.name not in _END_FLAGS}
        numbers = [key for key, feature in self.meta.features.items() if is_numbers(key, feature) and key not in known]
        files = sorted(Path(self.root, "data").glob("*/*.parquet")) if numbers else []
        stored = set(numbers).intersection(*(pq.read_schema(file).names for file in files))
        missing = [key for key in numbers if key in stored and files]
        tables = [pq.read_table(file, columns=missing) for file in files]
        return {key: np.concatenate([_values(table.column(key)) for table in tables]) for key in missing}

    def _check_episodes(self) -> None:
        """Checks that the rows of each episode are where the metadata says."""
        listed = self.meta.episodes
        first, last = (np.array(listed[name], np.int64) for name in ("dataset_from_index", "dataset_to_index"))
        own, numbers = self._dataset.offsets, self._items.episode_numbers
        if (
            np.array_equal(first, own[:-1])
            and np.array_equal(last, own[1:])
            and np.array_equal(numbers, np.arange(len(own) - 1))
        ):
            return
        raise CorruptSourceError(
            f"the rows are {len(own) - 1} episodes of {own[-1]} frames, and meta/episodes lists {len(first)} episodes "
            f"at other rows",
            file=str(self.root),
            hint="compare them: gear-data lint FOLDER; for some episodes only, give episodes=[...] and all files",
        )

    def _selected(self, episodes: Sequence[int]) -> Int64Array:
        """Returns the numbers of the frames of some episodes, in the order of the dataset."""
        known = range(len(self._dataset))
        for episode in episodes:
            if episode not in known:
                raise unknown_name("episode", episode, map(str, known))
        offsets = self._dataset.offsets
        rows = [np.arange(offsets[each], offsets[each + 1]) for each in sorted({*episodes})]
        if not rows:
            raise InvalidArgumentError("episodes is empty", hint="leave it out for all episodes")
        return np.concatenate(rows)


def use_gear_data() -> None:
    """Lets LeRobot's training make datasets of gear-data, in this process and its DataLoader workers.

    Call it before `make_dataset` or `lerobot_train.main`. Streaming datasets stay LeRobot's own.

    Raises:
        MissingExtraError: LeRobot is not installed.
    """
    _import("lerobot.datasets.factory").LeRobotDataset = LeRobotDataset


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"LeRobot is not installed, or lacks a part: {error}", hint="pip install 'lerobot[dataset]>=0.4.4'"
        ) from error


def _metadata(repo_id: str, root: str | os.PathLike[str] | None, revision: str | None) -> Any:
    """Returns LeRobot's metadata of a dataset, whose rows are on this machine.

    Raises:
        DatasetNotFoundError, RemoteError: LeRobot asked the hub for files that its folder lacks, and cannot have them.
        GearError: see `_typed_lerobot_errors`.
    """
    lerobot = _import("lerobot.datasets.lerobot_dataset")
    folder = f"the folder of {repo_id}" if root is None else str(root)
    try:
        with _typed_lerobot_errors(repo_id, folder):
            meta = answer_of(lambda: lerobot.LeRobotDatasetMetadata(repo_id, root=root, revision=revision), MANY)
            if absent := _absent_files(meta):
                # LeRobot's own class downloads them to its folder. A file has up to 100 MB.
                options = {"root": root, "revision": revision, "download_videos": False}
                whole = answer_of(lambda: lerobot.LeRobotDataset(repo_id, **options), MANY * (1 + len(absent))).meta
                # They are of the commit that the tag has now, as meta/ is since. `whole` has rescaled statistics.
                meta = lerobot.LeRobotDatasetMetadata(repo_id, root=whole.root, revision=whole.revision)
            return meta
    except (DatasetNotFoundError, RemoteError) as error:
        asked = f"LeRobot asks the hub for files that are not in {folder}"
        error.hint = "; ".join([asked, *filter(None, [error.hint])])
        raise


@contextmanager
def _typed_lerobot_errors(repo_id: str, folder: str) -> Iterator[None]:
    """Turns errors of a block in which LeRobot reads files, and downloads those that are missing.

    Raises:
        DatasetNotFoundError: the hub has no such repository or revision, or something else in it.
        RemoteError: the hub refused the request, or cannot be reached.
        CorruptSourceError: a file is damaged.
        StorageFullError, UnwritableError: the folder cannot be written to.
        Exception: LeRobot's own errors, such as the one of a folder of v2.1.
    """
    again = "make the dataset again: files that are here are not downloaded again"
    with typed_write_errors(Path(folder)):
        try:
            with typed_hub_errors(repo_id, again):
                yield
        except GearError:
            raise
        except FileNotFoundError as error:
            place = f"hf://datasets/{repo_id}"
            hint = "check that it has meta/info.json, which LeRobot v3.0 writes"
            raise DatasetNotFoundError(f"is no LeRobot dataset: {error}", file=place, hint=hint) from error
        except (OSError, ValueError, KeyError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise CorruptSourceError(
                f"LeRobot cannot read it: {type(error).__name__}: {error}",
                file=folder,
                hint="download the damaged file again, or repair it with LeRobot's tools",
            ) from error


def _absent_files(meta: Any, camera: str | None = None) -> list[str]:
    """Returns the files of a camera, or those of rows, that LeRobot's metadata names and the folder lacks."""
    kind, template = ("data", meta.data_path) if camera is None else (f"videos/{camera}", meta.video_path)
    listed = meta.episodes
    if listed is None:
        return []
    places = sorted({*zip(listed[f"{kind}/chunk_index"][:], listed[f"{kind}/file_index"][:], strict=True)})
    names = [template.format(video_key=camera, chunk_index=chunk, file_index=file) for chunk, file in places]
    return [name for name in names if not Path(meta.root, name).exists()]


def _commit(root: Path) -> str | None:
    """Returns the commit of the hub of a folder's metadata; None: it was written or changed on this machine.

    A folder in the cache of the hub's library has the commit as its name.
    """
    found = root.name
    if root.parent.name != "snapshots":
        try:
            found, _, time = (root / _NOTE).read_text().split()
            if (root / _INFO).stat().st_mtime - 1 > float(time):  # as the library compares them
                return None
        except (OSError, ValueError):
            return None
    return found if _COMMIT.fullmatch(found) else None


def _values(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Returns a column of Parquet as an array [rows, ...] of numbers; lists as one axis."""
    values, rows = column.combine_chunks(), len(column)
    while hasattr(values, "flatten") and pa.types.is_nested(values.type):
        values = values.flatten()
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(rows, *(() if len(values) == rows else (-1,)))


def _delta_steps(delta_timestamps: Mapping[str, Sequence[float]], fps: float, tolerance: float) -> dict[str, list[int]]:
    """Returns key -> steps, of times that are multiples of the time of a step.

    Raises:
        InvalidArgumentError: a time is none, or a key has no times.
    """
    if _TASK in delta_timestamps:
        raise InvalidArgumentError("an item has one task", column=_TASK, hint="leave it out of delta_timestamps")
    steps: dict[str, list[int]] = {}
    for key, times in delta_timestamps.items():
        if not times:
            raise InvalidArgumentError("delta_timestamps has no times", column=key, hint="leave the key out")
        steps[key] = [round(time * fps) for time in times]
        for time, step in zip(times, steps[key], strict=True):
            if abs(time * fps - step) / fps > tolerance:
                raise InvalidArgumentError(
                    f"delta_timestamps has {time} s, which is no multiple of 1/{fps:g} s within {tolerance:g} s",
                    column=key,
                    hint=f"the nearest is {step / fps:.6g}",
                )
    return steps

"""RLDS: episodes in a TFDS dataset folder, read by `tensorflow_datasets`.

The extra `rlds` installs the reader. Layout: https://github.com/google-research/rlds. A dataset folder has one or more
splits of episodes. An episode has facts and a nested dataset of steps: `observation`, `action`, `reward`, `discount`,
`is_first`, `is_last`, `is_terminal` and further values. The step with `is_last` holds the observation after the last
action; its action and reward are invalid. The episode terminated if that step has `is_terminal`; otherwise it was
truncated. Without `is_terminal`, it terminated if the discount of the last action is 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    UnknownFormatError,
    errors_as,
)
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, SourceFile, holds_several, placed
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.pipeline.episode_values import flatten, is_scalar
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.splits import several_splits
from gear_data.storage.episode_block import Position

_INFO, _FEATURES = "dataset_info.json", "features.json"
_STEPS = "steps"
#: TFDS imports the module of any class that a dataset names. Only classes of TFDS are allowed.
_TRUSTED = "tensorflow_datasets."
#: Bytes of a record of a TFRecord file beside its data.
_RECORD_OVERHEAD = 16
_FACTS = ("name", "version", "description", "citation", "license")


def probe(location: Location) -> str | None:
    """Returns the reason if the location has a TFDS folder of RLDS; otherwise None."""
    for folder in _folders(location):
        with suppress(GearError):
            if _STEPS in _features(location, folder)["featuresDict"]["features"]:
                return f"RLDS: {folder}{_FEATURES} has nested {_STEPS}"
    return None


def open_(location: Location, options: SourceOptions) -> EpisodeStream:
    """Opens a TFDS folder.

    Raises:
        UnknownFormatError: there is no such folder, or there are several, such as versions of a dataset.
        InvalidArgumentError: the split does not exist, or is missing where there are several.
        CorruptSourceError: the features name a class that is not of TFDS.
    """
    folders = _folders(location)
    if not folders:
        raise UnknownFormatError(f"holds no {_INFO} with a {_FEATURES} next to it", hint="leave --format out")
    if len(folders) > 1:
        hint = f"give the folder of one of them: {PurePosixPath(location.name) / folders[-1]}"
        raise holds_several("datasets, or versions of one", (name.rstrip("/") for name in folders), hint)
    folder = folders[0]
    file = location.file(folder + _INFO)
    if file is None or file.filesystem is not None:
        raise UnknownFormatError("RLDS can be read only from a local folder", hint="copy the folder to a local disk")
    for name in _class_names(_features(location, folder)):
        if not name.startswith(_TRUSTED):
            raise CorruptSourceError(
                f"names the Python class {name}, which TFDS would import",
                file=folder + _FEATURES,
                hint="only classes of tensorflow_datasets are allowed",
            )
    return _RldsDataset(file, folder, location.split).stream(location.name, options)


def _folders(location: Location) -> list[str]:
    """Returns the folders of datasets: "", or paths with a trailing slash."""
    named = {file.name: file.name.rpartition("/")[2] for file in location.files}
    folders = [path.removesuffix(_INFO) for path, name in named.items() if name == _INFO]
    return [folder for folder in folders if folder + _FEATURES in named]


def _features(location: Location, folder: str) -> dict[str, Any]:
    """Reads `features.json`.

    Raises CorruptSourceError if it does not describe features.
    """
    file = location.file(folder + _FEATURES)
    if file is None:
        raise CorruptSourceError("is missing", file=folder + _FEATURES, hint="download the folder again")
    features = read_json_object(file)
    inner: Any = features
    for key in ("featuresDict", "features"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise CorruptSourceError("does not describe features", file=file.name, hint="restore the file")
    return features


def _class_names(features: Any) -> Iterator[str]:
    """Yields the names of all Python classes in the features."""
    if isinstance(features, Mapping):
        for key, value in features.items():
            if key == "pythonClassName":
                yield str(value)
            else:
                yield from _class_names(value)
    elif isinstance(features, list):
        for value in features:
            yield from _class_names(value)


@dataclass(frozen=True)
class _SplitRange:
    """The episodes [first, first + count) of a split.

    Attributes:
        split: the `SplitInfo` of TFDS.
        first: the index of the first episode in its split.
        count: the number of episodes.
        start: the number of episodes in the ranges before this one. Reading counts episodes over all ranges.
    """

    split: Any
    first: int
    count: int
    start: int

    def shard_ends(self) -> list[int]:
        """Returns the number of episodes read at the end of each shard."""
        lengths = self.split.shard_lengths or [self.split.num_examples]
        ends = np.clip(np.cumsum(lengths) - self.first, 0, self.count)
        return [self.start + int(end) for end in np.unique(ends) if end]


class _RldsDataset:
    """An open dataset folder, and the episodes that `split` selects."""

    def __init__(self, info: SourceFile, folder: str, split: str | None) -> None:
        # TensorFlow prints a line for each end of a file, unless the user has asked for other lines.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        self._tf = import_extra("tensorflow", "rlds")
        # Hides the GPUs: TensorFlow would allocate all their memory at its first operation.
        with suppress(RuntimeError):  # the application has initialised the GPUs already
            self._tf.config.set_visible_devices([], "GPU")
        self._tfds = import_extra("tensorflow_datasets", "rlds")
        self._name = folder + _INFO
        with self._reading():
            self._builder = self._tfds.builder_from_directory(info.path.removesuffix(_INFO))
            splits = {name: item for name, item in self._builder.info.splits.items() if item.num_examples}
        with placed(self._name):
            self._ranges = self._select(splits, split)
        self._count = sum(item.count for item in self._ranges)
        #: Whether the steps are read one by one, which takes longer: a value, such as a Sequence, has several shapes.
        self._ragged = False

    def _select(self, splits: Mapping[str, Any], split: str | None) -> list[_SplitRange]:
        """Returns the ranges of a split in TFDS's notation.

        Examples are `train`, `train[:10%]` and `train+val`. TFDS itself parses the notation and rounds per cent, as it
        does for `tfds.load`.
        """
        names = ", ".join(sorted(splits))
        if not splits:
            raise EmptySourceError("holds no episode")
        if split is None and len(splits) > 1:
            raise several_splits(self._name, splits, "; train[:10%] takes a part, train+val takes both as one")
        if (whole := splits.get(names if split is None else split)) is not None:
            return [_SplitRange(whole, 0, whole.num_examples, 0)]
        try:
            selected = self._tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
        except Exception as error:  # TFDS raises several kinds of errors for a wrong notation
            raise InvalidArgumentError(
                f"the source has no split '{split}': {' '.join(str(error).split())}",
                hint=f"its splits: {names}; parts of them: train[:10%], train[100:200], train+val",
            ) from error
        ranges: list[_SplitRange] = []
        start = 0
        for item in selected:
            info = splits[item.splitname]
            first, stop = item.from_ or 0, info.num_examples if item.to is None else item.to
            if first < stop:
                ranges.append(_SplitRange(info, first, stop - first, start))
                start += stop - first
        if not ranges:
            raise EmptySourceError(
                f"the split '{split}' has no episode",
                hint=f"its splits: {', '.join(f'{name} ({item.num_examples})' for name, item in splits.items())}",
            )
        return ranges

    def stream(self, name: str, options: SourceOptions) -> EpisodeStream:
        info = self._builder.info
        facts = {key: str(value) for key in _FACTS if (value := getattr(info, key, None))}
        left_out: set[str] = set()
        stream = EpisodeStream(
            name,
            self._read,
            options,
            prepare=lambda episode: _episode(episode, left_out),
            units=self._units(),
            num_rows=self._count,
            metadata=facts,
        )
        for fact in sorted(left_out):
            message = "a fact about an episode is an array; left out"
            stream.findings.add(Finding("fact-left-out", message, file=name, column=fact))
        return stream

    def _units(self) -> list[Unit]:
        """Returns runs of shards of about `UNIT_BYTES`. An episode lies in one shard."""
        units: list[Unit] = []
        first, size = 0, 0
        for item in self._ranges:
            begin = item.start
            for stop in item.shard_ends():
                size += item.split.num_bytes * (stop - begin) // item.split.num_examples
                begin = stop
                if size >= UNIT_BYTES or stop >= self._count:
                    units.append(Unit(Position(0, first), size))
                    first, size = stop, 0
        return units

    def _read(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the episodes [start, stop) as NumPy values."""
        end = self._count if stop is None else stop
        for item in self._ranges:
            first, last = max(start, item.start), min(end, item.start + item.count)
            if first < last:
                shift = item.first - item.start
                yield from self._read_split(item.split.name, first + shift, last + shift)

    def _read_split(self, name: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the episodes [start, stop) of one split."""
        first = start
        if not self._ragged:
            try:
                for episode in self._read_batched(name, start, stop):
                    yield episode
                    first += 1
                return
            except CorruptSourceError as error:
                if not isinstance(error.__cause__, self._tf.errors.InvalidArgumentError):
                    raise
            self._ragged = True
        yield from self._read_batched(name, first, stop)

    def _read_batched(self, name: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
        tf, tfds = self._tf, self._tfds
        instruction = tfds.core.ReadInstruction(name, from_=start, to=stop, unit="abs")

        def with_steps(episode: dict[str, Any]) -> dict[str, Any]:
            # One batch of all steps: iterating over a nested dataset costs a millisecond per step.
            steps = episode[_STEPS].batch(tf.int64.max, drop_remainder=False)
            return {**episode, _STEPS: tf.data.experimental.get_single_element(steps)}

        with self._reading():
            split = self._builder.info.splits[name]
            ends = np.cumsum(split.shard_lengths or [split.num_examples])
            for path, begin, end in zip(split.filepaths, [0, *ends], ends, strict=False):
                if begin < stop and start < end:
                    _check_record_lengths(str(path))
            config = tfds.ReadConfig(interleave_cycle_length=1, skip_prefetch=True)
            episodes = self._builder.as_dataset(split=instruction, shuffle_files=False, read_config=config)
            if not self._ragged:
                episodes = episodes.map(with_steps, num_parallel_calls=2)
            iterator = iter(tfds.as_numpy(episodes.prefetch(2)))
        while True:
            with self._reading():
                episode = next(iterator, None)
                if episode is not None and self._ragged:
                    episode[_STEPS] = _stacked([flatten(step) for step in episode[_STEPS]])
            if episode is None:
                return
            yield episode

    def _reading(self) -> AbstractContextManager[None]:
        """Raises CorruptSourceError in place of the errors of TensorFlow and TFDS."""
        return errors_as(
            Exception,  # errors of TensorFlow, protobuf and TFDS have no common base
            lambda error: CorruptSourceError(
                f"tensorflow_datasets cannot read it: {type(error).__name__}: {error}",
                file=self._name,
                hint="download it again, or inspect it with tfds.builder_from_directory",
            ),
        )


def _check_record_lengths(path: str) -> None:
    """Checks that the records of a TFRecord file end inside the file.

    TensorFlow crashes if a record claims too many bytes. Layout of a record: length (8 bytes), checksum (4), data,
    checksum (4). Raises CorruptSourceError. Files of other kinds, and missing ones, are left to TFDS.
    """
    if ".tfrecord" not in os.path.basename(path) or not os.path.isfile(path):
        return
    size, at = os.path.getsize(path), 0
    with open(path, "rb", buffering=0) as file:
        while at < size:
            file.seek(at)
            length = int.from_bytes(file.read(8), "little")
            if length > size - at - _RECORD_OVERHEAD:
                raise CorruptSourceError(
                    f"a record at byte {at} claims {length} bytes, in a file of {size} bytes",
                    file=os.path.basename(path),
                    hint="the file may have been truncated: download it again",
                )
            at += length + _RECORD_OVERHEAD


def _episode(episode: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Converts an episode of n rows to canonical values.

    A complete episode has T = n - 1 steps and a final observation. A cut-off episode, without `is_last`, has n steps.
    The names of facts that are arrays are added to `left_out`.

    Raises:
        BadEpisodeError: the steps have no names, or `is_last` is set before the last row.
    """
    if not isinstance(episode[_STEPS], Mapping):
        raise BadEpisodeError("a step has no named values", column=_STEPS)
    steps = {name: _decode_text(values) for name, values in flatten(episode[_STEPS]).items()}
    flags = {name: np.asarray(steps.pop(name, ())) for name in ("is_first", "is_last", "is_terminal")}
    rows = min((len(values) for values in steps.values()), default=0)
    last, terminal = flags["is_last"], flags["is_terminal"]
    if last[:-1].any():
        raise BadEpisodeError(
            f"is set at step {int(np.argmax(last))}, before the last of {rows} steps", column="is_last"
        )
    is_complete = not len(last) or bool(last[-1])
    values: dict[str, Any] = {}
    for name, column in steps.items():
        is_observation = name.split(".", 1)[0] == "observation"
        values[name] = column if is_observation or not is_complete else column[:-1]
    if is_complete:
        if len(terminal):
            values["terminated"] = terminal[1:]
            values["truncated"] = np.zeros(rows - 1, np.bool_)
            values["truncated"][-1:] = not terminal[-1]
        elif len(last):
            values["is_last"] = last[1:]  # the pipeline tells the ends apart by `discount`, or reports them
    else:
        # The pipeline makes the last step truncated, and reports it.
        values["terminated"], values["truncated"] = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    for name, value in flatten({key: value for key, value in episode.items() if key != _STEPS}).items():
        if is_scalar(value):
            fact = value.item() if hasattr(value, "item") else value
            values[name] = fact.decode("utf-8", "replace") if isinstance(fact, bytes) else fact
        else:
            left_out.add(name)
    return values


def _stacked(steps: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Returns the values of steps by name; arrays of several shapes as objects."""
    values: dict[str, npt.NDArray[Any]] = {}
    for name in steps[0] if steps else ():
        rows = [step[name] for step in steps]
        if isinstance(rows[0], bytes) or len(set(map(np.shape, rows))) > 1:
            values[name] = np.empty(len(rows), object)
            for i, row in enumerate(rows):
                values[name][i] = row
        else:
            values[name] = np.stack(rows)
    return values


def _decode_text(values: Any) -> npt.NDArray[Any]:
    """Decodes bytes to text if they are UTF-8 in the whole episode.

    TensorFlow has one type for text and bytes.
    """
    array: npt.NDArray[Any] = values if isinstance(values, np.ndarray) else values.numpy()  # of several shapes
    if array.dtype != np.dtype(object) or array.ndim != 1 or not all(isinstance(value, bytes) for value in array):
        return array
    try:
        texts = np.empty(len(array), object)
        texts[:] = [value.decode("utf-8") for value in array]
    except UnicodeDecodeError:
        return array
    return texts


FORMAT = Format(
    "rlds", probe, open_, uses=frozenset({"split"}), beside=r"(.*/)?(dataset_info|features|metadata.*)\.json"
)

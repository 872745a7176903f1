"""RLDS: episodes in a TFDS dataset folder, read by `tensorflow_datasets`.

The extra `rlds` installs the reader. Layout: https://github.com/google-research/rlds. An episode has facts and a nested
dataset of steps: `observation`, `action`, `reward`, `discount`, `is_first`, `is_last`, `is_terminal` and further
values. The step with `is_last` holds the observation after the last action; its action and reward are invalid. The
episode terminated if that step has `is_terminal`; otherwise it was truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.pipeline.episode_values import flatten, is_scalar
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.storage.episode_block import Position

_INFO, _FEATURES = "dataset_info.json", "features.json"
_STEPS = "steps"
#: TFDS imports the module of any class that a dataset names. Only classes of TFDS are allowed.
_TRUSTED = "tensorflow_datasets."
_FACTS = ("name", "version", "description", "citation", "license")


def probe(location: Location) -> str | None:
    """Returns the reason if the location is one TFDS folder of RLDS; otherwise None."""
    folder = _folder(location)
    if folder is None:
        return None
    try:
        features = _features(location, folder)
    except GearError:
        return None
    return f"RLDS: {folder}{_FEATURES} has nested {_STEPS}" if _STEPS in features["featuresDict"]["features"] else None


def open_(location: Location, options: SourceOptions) -> EpisodeStream:
    """Opens a TFDS folder. Raises CorruptSourceError for classes that are not of TFDS."""
    folder = _folder(location)
    if folder is None:
        raise UnknownFormatError(
            f"holds no {_INFO} with a {_FEATURES} next to it", file=location.name, hint="leave --format out"
        )
    file = location.file(folder + _INFO)
    if file is None or file.filesystem is not None:
        raise UnknownFormatError(
            "RLDS can be read only from a local folder", file=location.name, hint="copy the folder to a local disk"
        )
    for name in _class_names(_features(location, folder)):
        if not name.startswith(_TRUSTED):
            raise CorruptSourceError(
                f"names the Python class {name}, which TFDS would import",
                file=folder + _FEATURES,
                hint="only classes of tensorflow_datasets are allowed",
            )
    return _RldsDataset(file, folder).stream(location.name, options)


def _folder(location: Location) -> str | None:
    """Returns the folder of the dataset: "", or a path with a trailing slash.

    Returns None unless there is exactly one such folder.
    """
    folders = [
        file.name.removesuffix(_INFO)
        for file in location.files
        if PurePosixPath(file.name).name == _INFO and location.file(file.name.removesuffix(_INFO) + _FEATURES)
    ]
    return folders[0] if len(folders) == 1 else None


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
        raise CorruptSourceError("does not describe features", file=file.name, hint="download it again")
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


class _RldsDataset:
    """An open dataset folder."""

    def __init__(self, info: SourceFile, folder: str) -> None:
        # Hides the GPUs: TensorFlow would allocate all their memory at its first operation.
        self._tf = import_extra("tensorflow", "rlds")
        with suppress(RuntimeError):  # the application has initialised the GPUs already
            self._tf.config.set_visible_devices([], "GPU")
        self._tfds = import_extra("tensorflow_datasets", "rlds")
        self._name = folder + _INFO
        with self._reading():
            self._builder = self._tfds.builder_from_directory(info.path.removesuffix(_INFO))
            splits = {name: split for name, split in self._builder.info.splits.items() if split.num_examples}
        if len(splits) != 1:
            raise UnknownFormatError(
                f"has the splits {', '.join(sorted(splits)) or '(none)'}, but only one split can be read",
                file=self._name,
                hint="copy the files of one split, dataset_info.json and features.json to a folder",
            )
        self._split = next(iter(splits.values()))

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
            num_rows=self._split.num_examples,
            metadata=facts,
        )
        for fact in sorted(left_out):
            message = "a fact about an episode is an array; left out"
            stream.findings.add(Finding("fact-left-out", message, file=name, column=fact))
        return stream

    def _units(self) -> list[Unit]:
        """Returns runs of shards of about `UNIT_BYTES`. An episode lies in one shard."""
        lengths = self._split.shard_lengths or [self._split.num_examples]
        shard_bytes = self._split.num_bytes // max(1, len(lengths))
        units: list[Unit] = []
        first, stop, size = 0, 0, 0
        for length in lengths:
            stop, size = stop + length, size + shard_bytes
            if size >= UNIT_BYTES or stop >= self._split.num_examples:
                units.append(Unit(Position(0, first), size))
                first, size = stop, 0
        return units

    def _read(self, start: int, stop: int | None) -> Iterator[dict[str, Any]]:
        """Yields the episodes [start, stop) as NumPy values."""
        tf, tfds = self._tf, self._tfds
        end = min(self._split.num_examples, self._split.num_examples if stop is None else stop)
        if start >= end:
            return
        instruction = tfds.core.ReadInstruction(self._split.name, from_=start, to=end, unit="abs")

        def with_steps(episode: dict[str, Any]) -> dict[str, Any]:
            # One batch of all steps: iterating over a nested dataset costs a millisecond per step.
            steps = episode[_STEPS].batch(tf.int64.max, drop_remainder=False)
            return {**episode, _STEPS: tf.data.experimental.get_single_element(steps)}

        with self._reading():
            config = tfds.ReadConfig(interleave_cycle_length=1, skip_prefetch=True)
            episodes = self._builder.as_dataset(split=instruction, shuffle_files=False, read_config=config)
            iterator = iter(tfds.as_numpy(episodes.map(with_steps, num_parallel_calls=2).prefetch(2)))
        while True:
            with self._reading():
                episode = next(iterator, None)
            if episode is None:
                return
            yield episode

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises CorruptSourceError in place of the errors of TensorFlow and TFDS."""
        try:
            yield
        except GearError:
            raise
        except Exception as error:  # errors of TensorFlow, protobuf and TFDS have no common base
            raise CorruptSourceError(
                f"tensorflow_datasets cannot read it: {type(error).__name__}: {error}",
                file=self._name,
                hint="download it again, or inspect it with tfds.builder_from_directory",
            ) from error


def _episode(episode: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Converts an episode of n rows to canonical values.

    A complete episode has T = n - 1 steps and a final observation. A cut-off episode, without `is_last`, has n steps.
    The names of facts that are arrays are added to `left_out`.

    Raises:
        BadEpisodeError: the steps have no names, or `is_last` is set before the last row.
    """
    if not isinstance(episode[_STEPS], Mapping):
        raise BadEpisodeError("a step has no named values", column=_STEPS)
    steps = {name: _decode_text(values, name) for name, values in flatten(episode[_STEPS]).items()}
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
    else:
        values["terminated"] = np.zeros(rows, np.bool_)
        values["truncated"] = np.arange(rows) == rows - 1
    for name, value in flatten({key: value for key, value in episode.items() if key != _STEPS}).items():
        if is_scalar(value):
            fact = value.item() if hasattr(value, "item") else value
            values[name] = fact.decode("utf-8", "replace") if isinstance(fact, bytes) else fact
        else:
            left_out.add(name)
    return values


def _decode_text(values: Any, name: str) -> npt.NDArray[Any]:
    """Decodes bytes to text if they are UTF-8 in the whole episode.

    TensorFlow has one type for text and bytes.
    """
    if not isinstance(values, np.ndarray):
        raise UnsupportedColumnError(
            "has steps of different shapes (a Sequence in a step)", column=name, hint="convert a copy without it"
        )
    if values.dtype != np.dtype(object) or values.ndim != 1:
        return values
    try:
        texts = np.empty(len(values), object)
        texts[:] = [value.decode("utf-8") for value in values]
    except UnicodeDecodeError:
        return values
    return texts


FORMAT = Format(
    name="rlds",
    probe=probe,
    open=open_,
    priority=46,
)

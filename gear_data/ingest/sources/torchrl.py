"""TorchRL: memory maps of a TensorDict or of a replay buffer's storage.

They are written by `TensorDict.memmap` and by a replay buffer's `dumps`.

Layout: https://github.com/pytorch/tensordict. A folder has a `meta.json` and one `.memmap` file of raw values per
tensor; a nested TensorDict is a subfolder. TorchRL stores the outcome of a step under `next`: its reward, its flags,
and the observation after it (https://docs.pytorch.org/rl/stable/reference/data.html, "TED"). Flags at the root belong
to the previous step. Values that are not tensors are pickles and are never loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gear_data.errors import CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError, unknown_name
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, placed
from gear_data.ingest.pipeline.columns import END_FLAGS, SCALAR_COLUMNS, choose_columns, leave_out
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.pipeline.names import DONES, canonical_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import array_lengths
from gear_data.ingest.sources.arrays.classify import values_at
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.schema import DTYPES
from gear_data.storage.episode_block import offsets_of

_META = "meta.json"
#: Folders in which a TensorDict may be: saved on its own, or as the storage of a replay buffer.
_ROOTS = ("", "storage/")
_MAX_DEPTH = 16
_SAVE_AGAIN = "the folder may be incomplete: download it again, or save it again with TensorDict.memmap(folder)"
_TRAJECTORIES = ("collector.traj_ids", "traj_ids", "episode")
#: True at the steps of trajectories that `split_trajectories` padded to [trajectories, steps].
_MASKS = ("collector.mask", "mask")
#: The row of a step in the replay buffer.
_INDEX = "index"
_NEXT = "next."
#: Rows that show which axis of the batch is the steps.
_COMPARED_ROWS = 256


@dataclass
class _TensorTree:
    """The contents of the `meta.json` files, by dotted key.

    Attributes:
        tensors: key -> file (None if it is missing), dtype and shape.
        facts: key -> text or number.
        unreadable: key -> kind of a value that cannot be read.
    """

    tensors: dict[str, tuple[SourceFile | None, str, tuple[int, ...]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def probe(location: Location) -> str | None:
    """Returns the reason if the location holds a TensorDict; otherwise None."""
    for root in _ROOTS:
        if (file := location.file(root + _META)) is None:
            continue
        try:
            meta = read_json_object(file)
        except GearError:
            continue
        if "tensordict" in str(meta.get("_type")):
            return f"TorchRL: {file.name} describes a TensorDict's memory maps"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens the memory maps. Raises UnknownFormatError if there is no `meta.json`."""
    root, meta_file = next(((root, file) for root in _ROOTS if (file := location.file(root + _META))), ("", None))
    if meta_file is None:
        raise UnknownFormatError(f"holds no {_META}", hint="save it with TensorDict.memmap(folder)")
    with placed(meta_file.name):
        batch_shape, tree = _read_tree(location, root, meta_file)
    runs = _filled_runs(location, root, batch_shape)
    findings = _findings(location, root, tree, runs)
    columns = _choose_columns(tree, options, batch_shape)
    with placed(meta_file.name):
        stored = {key: _stored_array(tree, key, batch_shape) for key in columns.keys}
    size = sum(file.size for file in location.with_suffix(".memmap"))
    filled = max(1, sum(last - first for first, last in runs))
    sizes = [size * (last - first) // filled for first, last in runs]
    trajectory_steps = batch_shape[1] if len(batch_shape) == 2 else None

    def open_run(i: int) -> StepArrays:
        first, last = runs[i]
        arrays = {
            key: replace(array, shape=(last - first, *array.row_shape), start=array.start + first * array.row_bytes)
            for key, array in stored.items()
        }
        return _step_arrays(location.name, columns, arrays, trajectory_steps)

    return ArraySource([location.name] * len(runs), sizes, open_run, findings, tree.facts)


def _findings(location: Location, root: str, tree: _TensorTree, runs: Sequence[tuple[int, int]]) -> FindingLog:
    """Returns the findings about left-out values and a full ring buffer."""
    findings = FindingLog()
    for name, kind in tree.unreadable.items():
        message = f"is {kind}, not a tensor; left out"
        findings.add(Finding("non-tensor-left-out", message, file=root + _META, column=name))
    if len(runs) > 1:
        message = (
            "the ring buffer is full; it is read from its oldest step, and the episode that crosses the end of the "
            "buffer is read as two"
        )
        findings.add(Finding("ring-buffer", message, file=location.name, row=runs[0][0]))
    return findings


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _read_tree(location: Location, root: str, meta_file: SourceFile) -> tuple[tuple[int, ...], _TensorTree]:
    """Returns the batch size, and all values below it."""
    tree = _TensorTree()
    meta = read_json_object(meta_file)
    batch_shape = meta.get("shape")
    if not _is_shape(batch_shape) or not isinstance(batch_shape, list):
        raise UnknownFormatError(
            f"is a {meta.get('_type')}, where a plain TensorDict is expected",
            hint="save a contiguous one: data.contiguous().memmap(folder)",
        )
    if len(batch_shape) not in (1, 2):
        raise UnknownFormatError(
            f"its batch size is {batch_shape}, where [steps] or [trajectories, steps] is expected",
            hint="flatten it before saving: data.reshape(-1)",
        )
    _add_entries(location, root, meta, "", tree, 0)
    return tuple(batch_shape), tree


def _add_entries(
    location: Location, folder: str, meta: Mapping[str, Any], prefix: str, tree: _TensorTree, depth: int
) -> None:
    """Adds the entries of a folder's `meta.json` and of its subfolders to the tree."""
    for key, entry in meta.items():
        if not isinstance(entry, dict):
            continue  # of the TensorDict itself: `shape`, `device`, `_type`
        name, subfolder = prefix + key, f"{folder}{key}/"
        if "dtype" in entry:
            if entry.get("is_nested"):
                tree.unreadable[name] = "a nested tensor"
                continue
            if not _is_shape(entry.get("shape")):
                message = f"has the shape {entry.get('shape')}, not a list of sizes"
                raise CorruptSourceError(message, file=folder + _META, column=name, hint=_SAVE_AGAIN)
            dtype = str(entry["dtype"]).removeprefix("torch.")
            tree.tensors[name] = (location.file(f"{folder}{key}.memmap"), dtype, tuple(entry["shape"]))
            continue
        inner_file = location.file(subfolder + _META)
        if inner_file is None or depth > _MAX_DEPTH:
            message = f"is missing, or nested over {_MAX_DEPTH} levels deep"
            raise CorruptSourceError(message, file=subfolder + _META, column=name, hint=_SAVE_AGAIN)
        inner = read_json_object(inner_file)
        if entry.get("type") == "TensorDict":
            _add_entries(location, subfolder, inner, f"{name}.", tree, depth + 1)
        elif isinstance(inner.get("data"), str | int | float):
            tree.facts[name] = inner["data"]
        elif str(entry.get("type")).startswith("NonTensor"):
            tree.unreadable[name] = str(entry.get("type"))
        else:
            raise UnsupportedColumnError(
                f"is a {entry.get('type')}, where a tensor or a TensorDict is expected",
                file=folder + _META,
                column=name,
                hint="save a plain one: data.to_tensordict().contiguous().memmap(folder)",
            )


@dataclass(frozen=True)
class _TensorColumns:
    """The tensors to read.

    Attributes:
        steps: key -> canonical name of a step column.
        next_keys: canonical name -> key of the observation after a step.
        trajectory: key of the tensor that numbers trajectories, or None.
        mask: key of the tensor that is false in the padding of trajectories, or None.
    """

    steps: Mapping[str, str]
    next_keys: Mapping[str, str]
    trajectory: str | None
    mask: str | None

    @property
    def keys(self) -> set[str]:
        """The keys of all these tensors."""
        return {*self.steps, *self.next_keys.values(), *filter(None, (self.trajectory, self.mask))}


def _choose_columns(tree: _TensorTree, options: SourceOptions, batch_shape: tuple[int, ...]) -> _TensorColumns:
    """Chooses the tensors to read.

    Raises UnknownNameError if the episode column does not exist.
    """
    keys = tree.tensors
    named = options.episodes.one_episode_column()
    if named is not None and named not in keys:
        raise unknown_name("column", named, keys)
    trajectory = named or next((name for name in _TRAJECTORIES if name in keys), None)
    mask = next((name for name in _MASKS if _is_mask(keys, name, batch_shape)), None)
    rename = {options.episodes.end_column: DONES} if options.episodes.end_column is not None else {}
    # Root keys that have a value under `next` too.
    with_next = {key.removeprefix(_NEXT) for key in keys if key.startswith(_NEXT)}
    has_flags = any(canonical_name(key) in END_FLAGS for key in with_next)
    names = []
    for key in keys:
        root_key = key.removeprefix(_NEXT)
        name = canonical_name(root_key)
        is_outcome = name in {*SCALAR_COLUMNS, "actions"}
        if key in (trajectory, mask, _INDEX):
            continue
        if key.startswith(_NEXT):
            if is_outcome or root_key not in keys:
                names.append(key)
            continue  # otherwise it gives final observations
        if is_outcome and (key in with_next or (name in END_FLAGS and has_flags)):
            continue  # belongs to the previous step
        if key in with_next:  # a value that a step changes is part of the observation
            rename.setdefault(key, name if name.startswith("observations") else f"observations.{name}")
        names.append(key)
    rename |= dict(options.rename or {})
    structure = {_INDEX, *filter(None, (trajectory, mask))} & keys.keys()
    steps = choose_columns(names, replace(options, rename=rename), structure=structure)
    next_keys = {name: _NEXT + key for key, name in steps.items() if not key.startswith(_NEXT) and _NEXT + key in keys}
    return _TensorColumns(steps, next_keys, trajectory, mask)


def _is_mask(tensors: Mapping[str, tuple[Any, str, tuple[int, ...]]], key: str, batch_shape: tuple[int, ...]) -> bool:
    """Returns whether a key has one flag for each step of a batch of [trajectories, steps], and is no observation."""
    if len(batch_shape) != 2 or key not in tensors or _NEXT + key in tensors:
        return False
    _, dtype, shape = tensors[key]
    return dtype == "bool" and shape in (batch_shape, (*batch_shape, 1))


def _stored_array(tree: _TensorTree, key: str, batch_shape: tuple[int, ...]) -> StoredArray:
    """Returns a tensor as [steps, ...].

    Raises CorruptSourceError if its file has another size.
    """
    file, name, shape = tree.tensors[key]
    if name not in DTYPES:
        raise UnsupportedColumnError(f"holds {name}, which is not a dtype of a column", column=key, hint=leave_out(key))
    dtype = np.dtype(name)
    if file is None or shape[: len(batch_shape)] != batch_shape or math.prod(shape) * dtype.itemsize != file.size:
        actual = "its file is missing" if file is None else f"its file has {file.size} bytes"
        raise CorruptSourceError(
            f"is declared as {name} {shape} in a batch of {batch_shape}, but {actual}",
            file=file.name if file else None,
            column=key,
            hint=_SAVE_AGAIN,
        )
    return StoredArray(file, dtype, (math.prod(batch_shape), *shape[len(batch_shape) :]))


def _filled_runs(location: Location, root: str, batch_shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns the filled rows as runs [first, last), oldest first.

    In a replay buffer, only part of the rows may be filled.
    """
    rows = math.prod(batch_shape)
    file = location.file(root + "storage_metadata.json")
    if file is None:
        return [(0, rows)]
    filled = read_json_object(file).get("len")
    if type(filled) is not int or not 0 <= filled <= rows:
        raise CorruptSourceError(
            f"declares {filled} of {rows} steps as filled",
            file=file.name,
            hint="download it again, or save the buffer again with buffer.dumps(folder)",
        )
    if len(batch_shape) > 1:
        raise UnknownFormatError(
            f"is a buffer of [steps, environments], {batch_shape}: the steps of one environment are not consecutive",
            hint="save buffer[:].transpose(0, 1).contiguous().memmap(folder) instead",
        )
    writer = location.file("writer/metadata.json") if root else None
    cursor = read_json_object(writer).get("cursor") if writer is not None else 0
    if filled < rows or not isinstance(cursor, int) or not 0 < cursor < rows:
        return [(0, filled)]
    return [(cursor, rows), (0, cursor)]


def _step_arrays(
    name: str, columns: _TensorColumns, arrays: Mapping[str, StoredArray], trajectory_steps: int | None
) -> StepArrays:
    """Builds the step arrays of one run of rows.

    Args:
        name: the name of the source.
        columns: the tensors to read.
        arrays: key -> array.
        trajectory_steps: steps of each trajectory, for a batch size of [trajectories, steps].

    Raises:
        UnknownFormatError: nothing says where episodes end.
    """
    chosen = {column: arrays[key] for key, column in columns.steps.items()}
    next_arrays = {
        column: arrays[key]
        for column, key in columns.next_keys.items()
        if (arrays[key].dtype, arrays[key].row_shape) == (chosen[column].dtype, chosen[column].row_shape)
    }
    if trajectory_steps is not None:
        for column, next_array in next_arrays.items():
            _refuse_steps_first(columns.steps, column, chosen[column], next_array, trajectory_steps)
    flags = [array for column, array in chosen.items() if column in END_FLAGS]
    ids = [arrays[key] for key in (columns.trajectory, columns.mask) if key is not None]
    rows = len(next(iter(chosen.values())))
    next_pairs = [(chosen[column], after) for column, after in next_arrays.items() if columns.trajectory is None]
    if not (flags or ids or next_pairs or trajectory_steps):
        raise UnknownFormatError(
            "nothing says where episodes end: there is no ('next', 'done'), no trajectory number, no next observation",
            hint="name a key with --episode-column or --end-column (episodes=EpisodeBoundaries(...))",
        )

    def locate() -> EpisodeRanges:
        lengths = array_lengths(rows, flags, ids=ids, next_pairs=next_pairs)
        if trajectory_steps:
            edges = np.arange(trajectory_steps, rows + 1, trajectory_steps, dtype=np.int64)
            lengths = np.diff(np.union1d(np.cumsum(lengths), edges), prepend=0).astype(np.int64)
        starts = offsets_of(lengths)[:-1]
        facts = {}
        findings: tuple[Finding, ...] = ()
        if columns.mask is not None:
            is_step = values_at(arrays[columns.mask], starts).reshape(-1)
            starts, lengths = starts[is_step], lengths[is_step]
        if padding := rows - int(lengths.sum()):
            message = "rows that pad trajectories to one length; left out"
            findings = (Finding("padding-left-out", message, padding, name, column=columns.mask),)
        if columns.trajectory:
            facts[columns.trajectory] = values_at(ids[0], starts).reshape(-1).tolist()
        return EpisodeRanges(lengths, starts, facts=facts, findings=findings)

    sources = {column: key for key, column in columns.steps.items()}
    return StepArrays(name, rows, chosen, sources, locate, next_arrays=next_arrays, seekable=True)


def _refuse_steps_first(
    keys: Mapping[str, str], column: str, array: StoredArray, next_array: StoredArray, trajectory_steps: int
) -> None:
    """Refuses a batch of [steps, environments]: `next` is in the row below.

    Only the first rows are read. Raises UnknownFormatError.
    """
    count = min(_COMPARED_ROWS, len(array) - trajectory_steps)
    if count < 1:
        return
    with ArrayReader() as reader:
        following = reader.read(next_array, 0, count)
        beside = ~rows_differ(following, reader.read(array, 1, count + 1))
        below = ~rows_differ(following, reader.read(array, trajectory_steps, trajectory_steps + count))
    inner = np.arange(1, count + 1) % trajectory_steps != 0  # steps that are not the last of their trajectory
    if below.mean() > 0.5 and not beside[inner].any():
        key = next(key for key, named in keys.items() if named == column)
        raise UnknownFormatError(
            f"has a batch size of two axes, which must be [trajectories, steps], but ('next', '{key}') is the "
            f"observation {trajectory_steps} rows later, as in [steps, environments]",
            column=key,
            hint="save data.transpose(0, 1).contiguous().memmap(folder) instead",
        )


FORMAT = Format(
    "torchrl",
    probe,
    open_,
    uses=frozenset({"episode_column", "end_column"}),
    suffixes=(".memmap",),
    beside=r".*\.json",
    in_time_order=True,
)

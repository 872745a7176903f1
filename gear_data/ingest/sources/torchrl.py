"""TorchRL: a TensorDict's memory maps (`memmap`), or a replay buffer's storage saved as such (`dumps`).

Layout: https://github.com/pytorch/tensordict (`meta.json` beside a `.memmap` file of raw values a tensor, a folder a
nested TensorDict). TorchRL keeps what a step led to under `next`: its reward, its flags, and the observation after it
(https://docs.pytorch.org/rl/stable/reference/data.html, "TED"). Root flags are those of the step before. What is no
tensor is pickled, and never loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gear_data.errors import CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError, unknown_name
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import END_FLAGS, SCALAR_COLUMNS, choose_columns
from gear_data.ingest.pipeline.names import DONES, canonical_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.classify import values_at
from gear_data.ingest.sources.arrays.layouts import scan_lengths
from gear_data.ingest.sources.arrays.numpy_files import StoredArray
from gear_data.ingest.sources.arrays.source import ArraySource, EpisodeRanges, StepArrays
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.schema import DTYPES
from gear_data.storage.block import offsets_of

_META = "meta.json"
#: Where a TensorDict is: saved by itself, or as a replay buffer's storage.
_ROOTS = ("", "storage/")
_MAX_DEPTH = 16
_PICKLES = (".pickle", ".pkl", ".pt", ".pth")
_TRAJECTORIES = ("collector.traj_ids", "traj_ids", "episode")
#: A step's place in the buffer.
_INDEX = "index"
_NEXT = "next."


@dataclass
class _TensorTree:
    """What the `meta.json` files say: dotted key -> (file, dtype, shape); texts and numbers; what cannot be read."""

    tensors: dict[str, tuple[SourceFile | None, str, tuple[int, ...]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def probe(location: Location) -> str | None:
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
    root = next((root for root in _ROOTS if location.file(root + _META) is not None), None)
    if root is None:
        raise UnknownFormatError(f"holds no {_META}", file=location.name, hint="save it with TensorDict.memmap(folder)")
    batch, tree = _read_tree(location, root)
    findings = FindingLog()
    for file in location.files:
        if file.name.lower().endswith(_PICKLES):
            findings.add(Finding("pickle-left-out", "a pickle; never loaded, left out", file=file.name))
    for name, kind in tree.unreadable.items():
        message = f"is {kind}, and not a tensor; left out"
        findings.add(Finding("non-tensor-left-out", message, file=root + _META, column=name))
    runs = _runs(location, root, batch)
    if len(runs) > 1:
        message = "the buffer is full and was written round; read from its oldest step, the episode at the seam as two"
        findings.add(Finding("ring-buffer", message, file=location.name, row=runs[0][0]))
    columns = _choose(tree, options)
    stored = {key: _stored(tree, key, batch, root) for key in columns.needed}
    size = sum(file.size for file in location.with_suffix(".memmap")) // len(runs)

    def part(i: int) -> StepArrays:
        arrays = {key: _some_rows(array, *runs[i]) for key, array in stored.items()}
        return _part(location.name, size, columns, arrays, batch[1] if len(batch) == 2 else None)

    return ArraySource([location.name] * len(runs), [size] * len(runs), part, findings, tree.facts)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _read_tree(location: Location, root: str) -> tuple[tuple[int, ...], _TensorTree]:
    """The batch size, and all keys below."""
    tree = _TensorTree()
    meta_file = location.file(root + _META)
    if meta_file is None:
        raise CorruptSourceError("is missing", file=root + _META)
    meta = read_json_object(meta_file)
    batch = meta.get("shape")
    if not _is_shape(batch) or not isinstance(batch, list):
        raise UnknownFormatError(
            f"is no plain TensorDict but {meta.get('_type')}",
            file=meta_file.name,
            hint="save a contiguous one: data.contiguous().memmap(folder)",
        )
    if len(batch) not in (1, 2):
        raise UnknownFormatError(
            f"its batch size is {batch}, where [steps] or [trajectories, steps] is needed",
            file=meta_file.name,
            hint="flatten it before saving: data.reshape(-1)",
        )
    _walk(location, root, meta, "", tree, 0)
    return tuple(batch), tree


def _walk(location: Location, folder: str, meta: Mapping[str, Any], prefix: str, tree: _TensorTree, depth: int) -> None:
    for key, entry in meta.items():
        if not isinstance(entry, dict):
            continue  # of the TensorDict itself: `shape`, `device`, `_type`
        name, below = prefix + key, f"{folder}{key}/"
        if "dtype" in entry:
            if entry.get("is_nested"):
                tree.unreadable[name] = "a nested tensor"
                continue
            if not _is_shape(entry.get("shape")):
                raise CorruptSourceError(f"has the shape {entry.get('shape')}", file=folder + _META, column=name)
            dtype = str(entry["dtype"]).removeprefix("torch.")
            tree.tensors[name] = (location.file(f"{folder}{key}.memmap"), dtype, tuple(entry["shape"]))
            continue
        inner_file = location.file(below + _META)
        if inner_file is None or depth > _MAX_DEPTH:
            raise CorruptSourceError("is missing, or nested too deep", file=below + _META, column=name)
        inner = read_json_object(inner_file)
        if entry.get("type") == "TensorDict":
            _walk(location, below, inner, f"{name}.", tree, depth + 1)
        elif isinstance(inner.get("data"), str | int | float):
            tree.facts[name] = inner["data"]
        elif str(entry.get("type")).startswith("NonTensor"):
            tree.unreadable[name] = str(entry.get("type"))
        else:
            raise UnsupportedColumnError(
                f"is a {entry.get('type')}, where a tensor or a TensorDict is needed",
                file=folder + _META,
                column=name,
                hint="save a plain one: data.to_tensordict().contiguous().memmap(folder)",
            )


@dataclass(frozen=True)
class _TensorColumns:
    """Which tensors are read: key -> canonical name of step columns, canonical name -> key of the observation after
    it, and the key that numbers trajectories."""

    steps: Mapping[str, str]
    following: Mapping[str, str]
    trajectory: str | None

    @property
    def needed(self) -> set[str]:
        return {*self.steps, *self.following.values(), *([self.trajectory] if self.trajectory else [])}


def _choose(tree: _TensorTree, options: SourceOptions) -> _TensorColumns:
    keys = tree.tensors
    if options.episode_column is not None and options.episode_column not in keys:
        raise unknown_name("column", options.episode_column, keys)
    trajectory = options.episode_column or next((name for name in _TRAJECTORIES if name in keys), None)
    rename = {options.end_column: DONES} if options.end_column is not None else {}
    led_to = {key.removeprefix(_NEXT) for key in keys if key.startswith(_NEXT)}
    has_flags = any(canonical_name(key) in END_FLAGS for key in led_to)
    names = []
    for key in keys:
        before = key.removeprefix(_NEXT)
        name = canonical_name(before)
        is_outcome = name in {*SCALAR_COLUMNS, "actions"}
        if key in (trajectory, _INDEX):
            continue
        if key.startswith(_NEXT):
            if is_outcome or before not in keys:
                names.append(key)
            continue  # else it gives final observations
        if is_outcome and (key in led_to or (name in END_FLAGS and has_flags)):
            continue  # of the step before
        if key in led_to:  # what a step changes is observed
            rename.setdefault(key, name if name.startswith("observations") else f"observations.{name}")
        names.append(key)
    rename |= dict(options.rename or {})
    steps = choose_columns(names, replace(options, rename=rename))
    following = {name: _NEXT + key for key, name in steps.items() if not key.startswith(_NEXT) and _NEXT + key in keys}
    return _TensorColumns(steps, following, trajectory)


def _stored(tree: _TensorTree, key: str, batch: tuple[int, ...], root: str) -> StoredArray:
    """A tensor as rows of steps, its size that of its file."""
    file, name, shape = tree.tensors[key]
    if name not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {name}, which no column can",
            file=root + _META,
            column=key,
            hint="name the columns to keep with --columns (columns=[...]), leaving this one out",
        )
    dtype = np.dtype(name)
    if file is None or shape[: len(batch)] != batch or math.prod(shape) * dtype.itemsize != file.size:
        found = "there is no file of it" if file is None else f"its file has {file.size} bytes"
        raise CorruptSourceError(
            f"is said to be {name} {shape} in a batch of {batch}, and {found}",
            file=file.name if file else root + _META,
            column=key,
        )
    return StoredArray(file, dtype, (math.prod(batch), *shape[len(batch) :]))


def _runs(location: Location, root: str, batch: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of rows, oldest first: all, or those that a replay buffer has filled."""
    rows = math.prod(batch)
    file = location.file(root + "storage_metadata.json")
    if file is None:
        return [(0, rows)]
    filled = read_json_object(file).get("len")
    if type(filled) is not int or not 0 <= filled <= rows:
        raise CorruptSourceError(f"says that {filled} of {rows} steps are filled", file=file.name)
    if len(batch) > 1:
        raise UnknownFormatError(
            f"is a buffer of [steps, environments], {batch}: steps of one environment do not stand together",
            file=location.name,
            hint="save buffer[:].transpose(0, 1).contiguous().memmap(folder) instead",
        )
    writer = location.file("writer/metadata.json") if root else None
    cursor = read_json_object(writer).get("cursor") if writer is not None else 0
    if filled < rows or not isinstance(cursor, int) or not 0 < cursor < rows:
        return [(0, filled)]
    return [(cursor, rows), (0, cursor)]


def _some_rows(array: StoredArray, start: int, stop: int) -> StoredArray:
    begin = array.start + start * array.row_bytes
    return replace(array, shape=(stop - start, *array.row_shape), start=begin)


def _part(
    name: str, size: int, columns: _TensorColumns, arrays: Mapping[str, StoredArray], steps: int | None
) -> StepArrays:
    """`steps`: of each trajectory, where they stand one below the other."""
    chosen = {column: arrays[key] for key, column in columns.steps.items()}
    following = {
        column: arrays[key]
        for column, key in columns.following.items()
        if (arrays[key].dtype, arrays[key].row_shape) == (chosen[column].dtype, chosen[column].row_shape)
    }
    flags = [array for column, array in chosen.items() if column in END_FLAGS]
    trajectory = [arrays[columns.trajectory]] if columns.trajectory else []
    rows = len(next(iter(chosen.values())))
    by_jumps = [] if trajectory else [(chosen[column], then) for column, then in following.items()]
    if not (flags or trajectory or by_jumps or steps):
        raise UnknownFormatError(
            "nothing says where episodes end: there is no ('next', 'done'), no trajectory number, no next observation",
            file=name,
            hint="name a key with --episode-column or --end-column",
        )

    def locate() -> EpisodeRanges:
        lengths = scan_lengths(rows, flags, ids=trajectory, following=by_jumps)
        if steps:
            edges = np.arange(steps, rows + 1, steps, dtype=np.int64)
            lengths = np.diff(np.union1d(np.cumsum(lengths), edges), prepend=0).astype(np.int64)
        starts = offsets_of(lengths)[:-1]
        facts = {}
        if columns.trajectory:
            ids = values_at(trajectory[0], starts)
            facts[columns.trajectory] = ids.reshape(-1).tolist()
        return EpisodeRanges(lengths, starts, facts=facts)

    sources = {column: key for key, column in columns.steps.items()}
    return StepArrays(name, size, chosen, sources, locate, following=following, seekable=True)


FORMAT = Format(
    name="torchrl",
    probe=probe,
    open=open_,
    priority=44,
    suffixes=(".memmap",),
)

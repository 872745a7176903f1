"""Ranges of steps of some episodes, from a mapping or a JSON file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.paths import plain_path
from gear_data.common.progress import pluralize
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.steps.runs import flags_in_runs
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import StepRule
from gear_data.error_text import shown
from gear_data.errors import EmptySourceError, EpisodeIndexError, InvalidArgumentError, errors_as
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import episode_metadata_names
from gear_data.storage.remote.object_store import open_file_store

#: Facts of DROID that name an episode in openpi's file of ranges, with this text between them
#: (openpi, commit 15a9616, `src/openpi/training/droid_rlds_dataset.py`).
_DROID_FACTS = ("recording_folderpath", "file_path")
_DROID_SEPARATOR = "--"
#: A text that may be an id.
_ID = re.compile(r"0|[1-9][0-9]{0,17}")
_FORM = 'give each episode a list of [start, stop), such as {"0": [[0, 100], [200, 300]]}'


@dataclass(frozen=True, eq=False)
class KeptRanges(StepRule):
    """The steps in half-open ranges. A `StepRule`.

    Attributes:
        name: of the ranges, for messages.
        file: the path or URL that they were read from; None: from a mapping.
        ids: int64 [k], ascending: the id of each range's episode.
        starts, stops: int64 [k], the steps of the episode.
    """

    name: str
    file: str | None
    ids: Int64Array
    starts: Int64Array
    stops: Int64Array

    def __str__(self) -> str:
        return self.name

    def flags(self, store: DatasetStore, ids: Int64Array) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Yields runs of steps: see `StepRule`."""
        lengths, first_steps = store.lengths[ids], store.offsets[ids]
        known = ids if store.ids is None else store.ids[ids]
        for first, last in block_ranges(lengths, 1, BLOCK_BYTES):
            block = known[first:last]
            begin, end = np.searchsorted(self.ids, [block[0], block[-1] + 1])
            place = np.searchsorted(block, self.ids[begin:end])
            here = block[place] == self.ids[begin:end]
            offsets = offsets_of(lengths[first:last])
            begins = offsets[place[here]]
            edges = np.zeros(int(offsets[-1]) + 1, np.int8)
            np.add.at(edges, begins + self.starts[begin:end][here], 1)
            np.add.at(edges, begins + self.stops[begin:end][here], -1)
            flags = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
            yield from flags_in_runs(first_steps[first:last], lengths[first:last], flags)

    def to_json(self) -> dict[int, list[list[int]]]:
        """Returns the mapping id -> ranges that `kept_ranges` reads."""
        found: dict[int, list[list[int]]] = {}
        for number, start, stop in zip(self.ids.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True):
            found.setdefault(number, []).append([start, stop])
        return found

    def nothing_left(self, store: DatasetStore) -> EmptySourceError:
        """Returns the error for episodes without a range."""
        ids = np.unique(self.ids).tolist()
        hint = f"they are of {pluralize(len(ids), 'other episode')}: {shown(ids)}" if ids else _FORM
        return EmptySourceError(f"{self.name} keep no step of these episodes", hint=hint)


def kept_ranges(store: DatasetStore, ranges: Mapping[Any, Any] | str | os.PathLike[str]) -> KeptRanges:
    """Returns the steps that a mapping or a file names.

    Args:
        store: store of the dataset, whose episodes the keys name.
        ranges: see `Dataset.keep_ranges`.

    Raises:
        GearError: see `Dataset.keep_ranges`.
    """
    file = None if isinstance(ranges, Mapping) else plain_path(ranges)
    mapping = ranges if isinstance(ranges, Mapping) else _read(plain_path(ranges))
    keys = [_checked_key(key, file) for key in mapping]
    rows = _rows_of(keys, store, file)
    parts = [
        _checked(key, value, int(store.lengths[row]), file)
        for (key, value), row in zip(mapping.items(), rows.tolist(), strict=True)
    ]
    ids = rows if store.ids is None else store.ids[rows]
    order = np.argsort(ids, kind="stable").tolist()
    counts = [len(parts[each]) for each in order]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(parts[each] for each in order)])
    name = f"the ranges of {pluralize(len(keys), 'episode')}" + ("" if file is None else f" in {file}")
    return KeptRanges(name, file, np.repeat(ids[order], counts), pairs[:, 0], pairs[:, 1])


def _read(path: str) -> dict[str, Any]:
    """Returns the object of a JSON file at a path or URL."""
    folder, name = os.path.split(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InvalidArgumentError(f"has the key {key!r} twice", file=path, hint="join its ranges")
            found[key] = value
        return found

    def unreadable(error: Exception) -> InvalidArgumentError:
        return InvalidArgumentError(f"cannot be read as JSON: {error}", file=path, hint=_FORM)

    with errors_as((OSError, ValueError, RecursionError), unreadable):
        data = json.loads(open_file_store(folder or ".").read(name), object_pairs_hook=unique)
    if not isinstance(data, dict):
        raise InvalidArgumentError(f"is {shown(data)}, not an object of episodes", file=path, hint=_FORM)
    return data


def _checked_key(key: Any, file: str | None) -> int | str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or not isinstance(key, int | np.integer):
        raise InvalidArgumentError(
            f"an episode is named by its id or a text, not by {shown(key)}", file=file, hint=_FORM
        )
    return int(key)


def _checked(key: int | str, value: Any, length: int, file: str | None) -> Int64Array:
    """Returns the ranges of an episode as int64 [k, 2], ascending."""
    try:
        pairs = np.asarray(None if isinstance(value, str) else value)
    except ValueError:
        pairs = np.asarray(None)
    if pairs.shape == (0,):
        return np.empty((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise InvalidArgumentError(f"the ranges of episode {key!r} are {shown(value)}", file=file, hint=_FORM)
    wrong = (pairs[:, 0] < 0) | (pairs[:, 1] > length)
    if wrong.any():
        start, stop = pairs[np.argmax(wrong)].tolist()
        raise InvalidArgumentError(
            f"the range [{start}, {stop}) of episode {key!r} lies beyond its steps 0 to {length - 1}",
            file=file, hint=f"a range begins at 0 or later, and stops at {length} or earlier",
        )  # fmt: skip
    ordered: Int64Array = pairs[np.argsort(pairs[:, 0], kind="stable")].astype(np.int64)
    empty = ordered[:, 0] >= ordered[:, 1]
    if empty.any():
        start, stop = ordered[np.argmax(empty)].tolist()
        raise InvalidArgumentError(
            f"the range [{start}, {stop}) of episode {key!r} has no step", file=file, hint="remove it, or correct it"
        )
    overlaps = ordered[1:, 0] < ordered[:-1, 1]
    if overlaps.any():
        (a, b), (c, d) = ordered[np.argmax(overlaps) :][:2].tolist()
        raise InvalidArgumentError(
            f"the ranges [{a}, {b}) and [{c}, {d}) of episode {key!r} overlap", file=file, hint="join them"
        )
    return ordered


def _rows_of(keys: Sequence[int | str], store: DatasetStore, file: str | None) -> Int64Array:
    """Returns the row of the episode that each key names.

    Raises:
        EpisodeIndexError: a key names no episode.
        InvalidArgumentError: a key names several episodes, or two keys name one.
    """
    readings = list(_readings(keys, store))
    found = np.full(len(keys), -1, np.int64)
    for _, numbers, rows in readings:
        other = (found[numbers] >= 0) & (found[numbers] != rows)
        found[numbers] = rows
        # Of equal numbers, the last row was stored.
        other |= found[numbers] != rows
        if other.any():
            raise _ambiguous(keys, int(numbers[np.argmax(other)]), readings, store, file)
    if (found < 0).any():
        missing = np.flatnonzero(found < 0)
        raise _unknown(keys[missing[0]], len(missing), len(keys), store, file)
    order = np.argsort(found, kind="stable")
    twice = np.flatnonzero(found[order[1:]] == found[order[:-1]])
    if len(twice):
        first, second = (keys[each] for each in order[twice[0] : twice[0] + 2])
        raise InvalidArgumentError(
            f"the keys {first!r} and {second!r} name one episode, {_id(store, int(found[order[twice[0]]]))}",
            file=file, hint="join their ranges under one key",
        )  # fmt: skip
    return found


def _readings(keys: Sequence[int | str], store: DatasetStore) -> Iterator[tuple[str, Int64Array, Int64Array]]:
    """Yields (what a key is, numbers of keys, rows of the episodes that they name)."""
    import pyarrow.compute as pc

    numbers = [number for number, key in enumerate(keys) if isinstance(key, int) or _ID.fullmatch(key)]
    ids = np.array([min(max(int(keys[number]), -1), np.iinfo(np.int64).max) for number in numbers], np.int64)
    known = np.arange(store.manifest.episodes) if store.ids is None else store.ids
    rows = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    valid = known[rows] == ids
    yield "id", np.array(numbers, np.int64)[valid], rows[valid]
    texts = [number for number, key in enumerate(keys) if isinstance(key, str)]
    wanted = pa.array([keys[number] for number in texts], pa.large_string())
    for name, values in _names_of_episodes(store):
        places = pc.index_in(values, wanted)
        rows = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
        chosen = places.drop_null().to_numpy(zero_copy_only=False)
        yield name, np.array(texts, np.int64)[chosen], rows


def _names_of_episodes(store: DatasetStore) -> Iterator[tuple[str, pa.Array]]:
    """Yields the texts that may name an episode: the facts, and the key of DROID."""
    import pyarrow.compute as pc

    table = store.episode_table
    texts = {}
    for name in ("source", *episode_metadata_names(table.column_names, store.manifest.schema)):
        column = table.column(name).combine_chunks()
        type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(type_) or pa.types.is_large_string(type_):
            texts[name] = column.cast(pa.large_string())
    yield from texts.items()
    parts = [[name for name in texts if name.split(".")[-1] == fact] for fact in _DROID_FACTS]
    if all(parts):
        names = [each[0] for each in parts]
        # Not a constant of this module: PyArrow imports pandas to make it.
        separator = pa.scalar(_DROID_SEPARATOR, pa.large_string())
        joined = pc.binary_join_element_wise(*(texts[name] for name in names), separator)
        yield "--".join(names), joined


def _ambiguous(
    keys: Sequence[int | str], number: int, readings: Sequence[tuple[str, Int64Array, Int64Array]],
    store: DatasetStore, file: str | None,
) -> InvalidArgumentError:  # fmt: skip
    """Returns the error for a key that names several episodes: it names every reading."""
    meant, first = [], None
    for name, numbers, rows in readings:
        ids = [_id(store, row) for row in rows[numbers == number].tolist()]
        if ids:
            first = ids[0] if first is None else first
            noun = "episode" if len(ids) == 1 else f"{len(ids)} episodes:"
            meant.append(f"the {name} of {noun} {', '.join(map(str, ids[:5]))}{', ...' if len(ids) > 5 else ''}")
    return InvalidArgumentError(
        f"the key {keys[number]!r} names several episodes: it is {', and '.join(meant)}",
        file=file, hint=f"name the episode by its id, an integer, in a mapping: {{{first}: [[start, stop]]}}",
    )  # fmt: skip


def _unknown(key: int | str, missing: int, count: int, store: DatasetStore, file: str | None) -> EpisodeIndexError:
    names = {name: values[0].as_py() for name, values in _names_of_episodes(store)}
    last = store.manifest.episodes - 1 if store.ids is None else int(store.ids[-1])
    examples = ", ".join(f"{name} is {value!r}" for name, value in names.items() if value is not None)
    others = f", and so do {missing - 1:,} more of {count:,} keys" if missing > 1 else ""
    return EpisodeIndexError(
        f"{shown(key)} names no episode{others}",
        file=file,
        hint=f"leave such keys out. Ids are 0 to {last}. Of the first episode, {examples}",
    )


def _id(store: DatasetStore, row: int) -> int:
    return row if store.ids is None else int(store.ids[row])

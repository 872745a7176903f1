"""Facts of episodes in a batch: columns of the episode table, with one value a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError, closest_name
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import EPISODE_SCHEMA, episode_metadata_names

#: `facts.NAME` is the fact NAME, also if a column has this name.
_PREFIX = "facts."
#: Dtypes of text and bytes -> their type in Arrow.
_TEXT = {"string": pa.large_string(), "binary": pa.large_binary()}
#: Columns of every episode table that say where an episode is stored.
_STORAGE = ("shard", "start", "content")
#: Keys that batches may have for each window.
_WINDOW_KEYS = (
    "valid_count", "episode_id", "start", "probability", "importance_weights", "weights_version", "source",
    "embodiment",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A fact in a batch.

    Attributes:
        key: key of the batch.
        names: columns of the episode table; none: the dataset lacks the fact, and its windows have 0 or an empty text.
        dtype: NumPy name of the numbers' dtype; `string` or `binary`, whose values are a list.
        drawn: whether each window has one of the values of the columns, and of their lists. Otherwise there is one
            column.
    """

    key: str
    names: tuple[str, ...]
    dtype: str
    drawn: bool = False

    @property
    def variable_length(self) -> bool:
        """Whether the values are text or bytes."""
        return self.dtype in _TEXT

    def as_absent(self) -> Fact:
        """Returns the fact of a dataset that lacks it."""
        return Fact(self.key, (), self.dtype)


class FactValues:
    """The values of a fact for all episodes of a dataset's store.

    Args:
        dataset: the dataset or view.
        fact: the fact.

    Attributes:
        drawn: see `Fact`.
    """

    def __init__(self, dataset: Dataset, fact: Fact) -> None:
        self._fact, self.drawn = fact, fact.drawn
        arrays = [_array(dataset, name) for name in fact.names]
        #: int64 [n + 1]: the values of each episode; None: each has one.
        self._offsets: Int64Array | None = None
        if not fact.names:
            return
        if not fact.drawn:
            (self._values,) = arrays
            return
        owners, values = zip(*(_flat(array, fact) for array in arrays), strict=True)
        owner = np.concatenate(owners)
        self._values = pa.concat_arrays(values)
        # The values of an episode one after another, in the order of the names.
        self._order = np.argsort(owner, kind="stable")
        self._offsets = offsets_of(np.bincount(owner, minlength=len(arrays[0])))

    def counts(self, rows: Int64Array) -> Int64Array:
        """Returns the number of values of episodes, int64 [n].

        rows: int64 [n], rows of the dataset's store.
        """
        return np.ones(len(rows), np.int64) if self._offsets is None else np.diff(self._offsets)[rows]

    def take(self, rows: Int64Array, numbers: Int64Array) -> Any:
        """Returns values of episodes: an array [n], or a list of n texts or bytes.

        Args:
            rows: int64 [n], rows of the dataset's store.
            numbers: int64 [n], which of the values of each episode.
        """
        if not self._fact.names:
            empty: Any = "" if self._fact.dtype == "string" else b""
            return [empty] * len(rows) if self._fact.variable_length else np.zeros(len(rows), self._fact.dtype)
        places = rows if self._offsets is None else self._order[self._offsets[rows] + numbers]
        taken = self._values.take(pa.array(places))
        if not self._fact.variable_length:
            return np.array(taken.to_numpy(zero_copy_only=False), self._fact.dtype)
        return (taken.dictionary_decode() if pa.types.is_dictionary(taken.type) else taken).to_pylist()


def _array(dataset: Dataset, name: str) -> pa.Array:
    """Returns a column of the episode table, without a copy if it is mapped from one file."""
    column = dataset.store.episode_table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _flat(array: pa.Array, fact: Fact) -> tuple[Int64Array, pa.Array]:
    """Returns the values of a column without nulls, and the row of each, int64 [n]."""
    owner: Int64Array = np.arange(len(array))
    if _is_list(array.type):
        owner, array = array.value_parent_indices().to_numpy(), array.flatten()
    present = array.is_valid().to_numpy(zero_copy_only=False)
    owner, array = owner[present].astype(np.int64), array.filter(pa.array(present))
    if fact.variable_length and not pa.types.is_dictionary(array.type):
        array = array.cast(_TEXT[fact.dtype]).dictionary_encode()
    return owner, array


def split_columns(dataset: Dataset, schema: Schema, columns: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the names that are columns of the steps, and requested name -> fact of the others.

    A column of the steps comes before a fact of its name.

    Args:
        dataset: the dataset.
        schema: its columns, as batches have them.
        columns: names of columns and facts.

    Raises:
        UnknownNameError: a name is neither; the message lists both.
        InvalidArgumentError: a fact is requested twice.
    """
    steps, found = [], {}
    for name in columns:
        if name in schema or name.removeprefix("next_") in schema:
            steps.append(name)
            continue
        facts = _names(dataset)
        fact = name if name in facts else fact_name(name)
        if fact not in facts:
            known = present_facts(dataset)
            names = [*schema.names, *(_PREFIX + each if each in schema else each for each in known)]
            raise UnknownNameError(
                f"unknown column '{name}'", file=str(dataset.path), column=name, hint=closest_name(name, names)
            )
        if name in found:
            raise InvalidArgumentError("the fact is named twice", column=name, hint="name it once in columns=")
        found[name] = fact
    return tuple(steps), found


def fact_name(name: str) -> str:
    """Returns the fact that a requested name means, if it is no column."""
    return name.removeprefix(_PREFIX)


def format_facts(dataset: Dataset, batch_format: BatchFormat) -> dict[str, str]:
    """Returns key -> fact, of the facts of a format that the dataset has."""
    if not batch_format.facts:
        return {}
    present = present_facts(dataset)
    return {key: name for name, key in batch_format.facts.items() if key and name in present}


def present_facts(dataset: Dataset) -> list[str]:
    """Returns the facts that an episode has."""
    table = dataset.store.episode_table
    return [each for each in _names(dataset) if table.column(each).null_count < len(table)]


def _names(dataset: Dataset) -> list[str]:
    store = dataset.store
    return [
        *(name for name in EPISODE_SCHEMA.names if name not in (*_STORAGE, "task")),
        *episode_metadata_names(store.episode_table.column_names, store.schema),
    ]


def batch_facts(
    dataset: Dataset,
    requested: Mapping[str, str],
    chosen: Mapping[str, Sequence[str]],
    taken: Iterable[str],
    chosen_columns: Iterable[str],
) -> tuple[Fact, ...]:
    """Returns the facts of a batch.

    Args:
        dataset: the dataset or view.
        requested: requested name -> fact.
        chosen: key -> facts, of which each window has one value.
        taken: keys of the batch that are no facts. A requested fact with such a name has the key `facts.NAME`.
        chosen_columns: keys that have one of several columns.

    Raises:
        InvalidArgumentError: an episode has no value, two facts get one key, or values of a key have several dtypes.
        UnsupportedColumnError: the values are neither text, bytes nor numbers.
    """
    keys = {*taken, *_WINDOW_KEYS}
    facts = []
    for asked, name in requested.items():
        key = _PREFIX + name if asked in keys else asked
        facts.append(Fact(key, (name,), _dtype(dataset, name, "columns")))
    for key, names in chosen.items():
        dtypes = {name: _dtype(dataset, name, "choose") for name in names}
        if len({*dtypes.values()}) > 1:
            raise InvalidArgumentError(
                f"choose= draws one value, and the facts have several dtypes: {dtypes}", column=key,
                hint="name facts of one dtype",
            )  # fmt: skip
        facts.append(Fact(key, tuple(names), dtypes[names[0]], drawn=True))
    for key in (*chosen_columns, *(fact.key for fact in facts)):
        if key in keys:
            raise InvalidArgumentError(
                f"two arrays of the batch would have the key '{key}'", column=key,
                hint="name a fact once, and give choose= a key that the batch does not have",
            )  # fmt: skip
        keys.add(key)
    for fact in facts:
        _check_present(dataset, fact)
    return tuple(facts)


def _dtype(dataset: Dataset, name: str, argument: str) -> str:
    """Returns the dtype of a fact; for `choose` also of the items of lists."""
    type_ = dataset.store.episode_table.schema.field(name).type
    if _is_list(type_) and argument == "choose":
        type_ = type_.value_type
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_null(value):
        return "string"  # of null, `_check_present` says that no episode has a value
    if pa.types.is_binary(value) or pa.types.is_large_binary(value):
        return "binary"
    if pa.types.is_boolean(value) or pa.types.is_integer(value) or pa.types.is_floating(value):
        return str(np.dtype(value.to_pandas_dtype()))
    lists = "choose= draws one of a list; " if _is_list(type_) else ""
    raise UnsupportedColumnError(
        f"the fact has values of type {value}, and a batch takes text, bytes and numbers",
        file=str(dataset.path),
        column=name,
        hint=f"{lists}leave it out of {argument}=; ds.episodes has its values",
    )


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _check_present(dataset: Dataset, fact: Fact) -> None:
    """Raises InvalidArgumentError if an episode of a dataset or view has no value of a fact."""
    table, ids = dataset.store.episode_table, dataset.store.ids
    rows = np.arange(len(table)) if dataset.view.rows is None else dataset.view.rows
    if fact.drawn:
        rows = rows[FactValues(dataset, fact).counts(rows) == 0]
    else:
        (name,) = fact.names
        if not table.column(name).null_count:
            return
        rows = rows[table.column(name).is_null().to_numpy()[rows]]
    if not len(rows):
        return
    first = int(rows[0] if ids is None else ids[rows[0]])
    some = "" if len(rows) == 1 else f", and {len(rows) - 1:,} more lack it"
    names = "', '".join(fact.names)
    hint = "leave the fact out: no episode has it"
    if len(rows) < len(dataset):
        condition = " or ".join(_is_present(table, name) for name in fact.names)
        hint = f"leave the fact out, or keep the episodes that have it: ds.filter({condition!r})"
    raise InvalidArgumentError(
        f"episode {first} has no value of the fact '{names}'{some}",
        file=str(dataset.path),
        column=fact.key,
        hint=hint,
    )


def _is_present(table: pa.Table, name: str) -> str:
    """Returns an SQL condition: an episode has a value of a fact."""
    return f'array_length("{name}") > 0' if _is_list(table.schema.field(name).type) else f'"{name}" is not null'

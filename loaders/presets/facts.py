"""Facts of episodes in a batch: columns of the episode table, with one value a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError, closest_name
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_tables import EPISODE_SCHEMA, episode_metadata_names

#: `facts.NAME` is the fact NAME, also if a column has this name.
_PREFIX = "facts."
#: Columns of every episode table that say where an episode is stored.
_STORAGE = ("shard", "start", "content")
#: Keys that batches may have for each window.
_WINDOW_KEYS = (
    "valid_count", "episode_id", "start", "probability", "importance_weights", "weights_version", "source",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A fact in a batch.

    Attributes:
        name: column of the episode table.
        key: key of the batch.
        dtype: NumPy name of the numbers' dtype; `string` or `binary`, whose values are a list.
    """

    name: str
    key: str
    dtype: str

    @property
    def variable_length(self) -> bool:
        """Whether the values are text or bytes."""
        return self.dtype in ("string", "binary")


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
        fact = name if name in facts else name.removeprefix(_PREFIX)
        if fact not in facts:
            table = dataset.store.episode_table
            known = [each for each in facts if table.column(each).null_count < len(table)]
            names = [*schema.names, *(_PREFIX + each if each in schema else each for each in known)]
            raise UnknownNameError(
                f"unknown column '{name}'", file=str(dataset.path), column=name, hint=closest_name(name, names)
            )
        if name in found:
            raise InvalidArgumentError("the fact is named twice", column=name, hint="name it once in columns=")
        found[name] = fact
    return tuple(steps), found


def _names(dataset: Dataset) -> list[str]:
    store = dataset.store
    return [
        *(name for name in EPISODE_SCHEMA.names if name not in (*_STORAGE, "task")),
        *episode_metadata_names(store.episode_table.column_names, store.schema),
    ]


def batch_facts(dataset: Dataset, requested: dict[str, str], taken: Iterable[str]) -> tuple[Fact, ...]:
    """Returns the facts of a batch.

    Args:
        dataset: the dataset or view.
        requested: requested name -> fact.
        taken: keys of the batch that are no facts. A fact with such a name has the key `facts.NAME`.

    Raises:
        InvalidArgumentError: an episode has no value, or two facts get one key.
        UnsupportedColumnError: the values are neither text, bytes nor numbers.
    """
    keys = {*taken, *_WINDOW_KEYS}
    facts = []
    for asked, name in requested.items():
        key = _PREFIX + name if asked in keys else asked
        if key in keys:
            raise InvalidArgumentError(
                f"two arrays of the batch would have the key '{key}'", column=name, hint="name the fact once"
            )
        keys.add(key)
        facts.append(Fact(name, key, _dtype(dataset, name)))
        _check_present(dataset, name)
    return tuple(facts)


def _dtype(dataset: Dataset, name: str) -> str:
    type_ = dataset.store.episode_table.schema.field(name).type
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return "string"
    if pa.types.is_binary(value) or pa.types.is_large_binary(value):
        return "binary"
    if pa.types.is_boolean(value) or pa.types.is_integer(value) or pa.types.is_floating(value):
        return str(np.dtype(value.to_pandas_dtype()))
    if pa.types.is_null(value):
        return "string"  # no episode has a value: `_check_present` says so
    raise UnsupportedColumnError(
        f"the fact has values of type {value}, and a batch takes text, bytes and numbers",
        file=str(dataset.path),
        column=name,
        hint="leave it out of columns=; ds.episodes has its values",
    )


def _check_present(dataset: Dataset, name: str) -> None:
    """Raises InvalidArgumentError if an episode of a dataset or view has no value of a fact."""
    column = dataset.store.episode_table.column(name)
    if not column.null_count:
        return
    missing: Any = column.is_null().to_numpy()
    rows = np.flatnonzero(missing) if dataset.view.rows is None else dataset.view.rows[missing[dataset.view.rows]]
    if not len(rows):
        return
    ids = dataset.store.ids
    first = int(rows[0] if ids is None else ids[rows[0]])
    some = "" if len(rows) == 1 else f", and {len(rows) - 1:,} more lack it"
    condition = f'"{name}" is not null'
    hint = f"leave the fact out, or keep the episodes that have it: ds.filter({condition!r})"
    if len(rows) == len(dataset):
        hint = "leave the fact out: no episode has it"
    raise InvalidArgumentError(
        f"episode {first} has no value of the fact '{name}'{some}", file=str(dataset.path), column=name, hint=hint
    )


def fact_array(dataset: Dataset, name: str) -> pa.Array:
    """Returns the values of a fact for all episodes of a dataset's store, without a copy of a mapped file."""
    column = dataset.store.episode_table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def fact_values(values: pa.Array, fact: Fact, rows: Int64Array) -> Any:
    """Returns the values of episodes: an array [n], or a list of n texts or bytes.

    Args:
        values: see `fact_array`.
        fact: their fact.
        rows: int64 [n], rows of the dataset's store.
    """
    taken = values.take(pa.array(rows))
    if not fact.variable_length:
        return np.array(taken.to_numpy(zero_copy_only=False), fact.dtype)
    return (taken.dictionary_decode() if pa.types.is_dictionary(taken.type) else taken).to_pylist()

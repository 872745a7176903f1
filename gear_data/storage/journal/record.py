"""One episode as an Arrow record batch, with a checksum.

Observations of an episode with a final observation have one more row than steps. The other columns have zeros, or empty
values, in that row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.typed_json import resolved
from gear_data.errors import CorruptSourceError
from gear_data.schema import ColumnSpec
from gear_data.storage.arrow_files import array_values, column_array
from gear_data.storage.variable_columns import value_bytes, value_offsets


@dataclass(frozen=True)
class EpisodeOrigin:
    """The writer of an episode on another machine.

    Attributes:
        client: id of the writer.
        sequence: number of the episode among the writer's episodes, from 0.
    """

    client: str
    sequence: int


@resolved
class RecordedVideo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The video of one episode and camera. Frame t is step t.

    Attributes:
        file: path of the file, relative to the folder of the journal.
        bytes: size of the file.
        checksum: of the file, as `gear_data.storage.atomic.checksum` returns it.
    """

    file: str
    bytes: int
    checksum: str


@dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """One finished episode.

    Attributes:
        columns: name -> [T, ...]; a column of text or bytes is an Arrow array of T values.
        terminated, truncated: how the episode ended.
        finals: name -> [...], the final observation; empty if the episode has none.
        facts: name -> a value of JSON, about the whole episode.
        videos: name of a camera -> its video.
        origin: the writer on another machine that sent the episode; None: it was recorded here.
    """

    columns: Mapping[str, Any]
    terminated: bool
    truncated: bool
    finals: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    videos: Mapping[str, RecordedVideo] = field(default_factory=dict)
    origin: EpisodeOrigin | None = None

    @property
    def steps(self) -> int:
        """The number of steps, T."""
        return len(next(iter(self.columns.values())))


@resolved
class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is beside the record batch of an episode, as JSON."""

    terminated: bool
    truncated: bool
    final: bool
    facts: dict[str, Any]
    checksum: str = ""
    videos: dict[str, RecordedVideo] | msgspec.UnsetType = msgspec.UNSET
    origin: EpisodeOrigin | msgspec.UnsetType = msgspec.UNSET
    synced: int | msgspec.UnsetType = msgspec.UNSET


def arrow_schema(columns: Sequence[ColumnSpec]) -> pa.Schema:
    """Returns the Arrow schema of episodes with these columns."""
    return pa.schema([column.arrow_field for column in columns])


def describe_columns(columns: Sequence[ColumnSpec]) -> bytes:
    """Returns columns as JSON."""
    return json.dumps([column.to_json() for column in columns]).encode()


def to_batch(episode: RecordedEpisode, columns: Sequence[ColumnSpec], synced: int = 0) -> tuple[pa.RecordBatch, bytes]:
    """Returns the steps of an episode as a record batch, and everything else as JSON.

    Args:
        episode: the episode. It has the columns, and finals for all columns with `has_final` or for none.
        columns: all columns.
        synced: number of the journal's episodes before this one whose videos outlive a loss of power.
    """
    has_final = bool(episode.finals)
    arrays = [_with_final(episode, column) if has_final else _array(episode, column) for column in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    facts = _Facts(
        episode.terminated,
        episode.truncated,
        has_final,
        dict(episode.facts),
        videos=dict(episode.videos) or msgspec.UNSET,
        origin=episode.origin or msgspec.UNSET,
        synced=synced or msgspec.UNSET,
    )
    facts = msgspec.structs.replace(facts, checksum=_checksum(batch, facts))
    return batch, msgspec.json.encode(facts)


def from_batch(batch: pa.RecordBatch, facts_json: bytes, columns: Sequence[ColumnSpec], file: str) -> RecordedEpisode:
    """Returns the episode of a record batch, without copying.

    Args:
        batch: the batch, with the schema of the columns.
        facts_json: the other result of `to_batch`.
        columns: all columns.
        file: name of the journal, for errors.

    Raises:
        CorruptSourceError: the batch is damaged.
    """
    try:
        facts = msgspec.json.decode(facts_json, type=_Facts)
        batch.validate(full=True)
    except (ValueError, pa.ArrowInvalid) as error:
        raise CorruptSourceError(f"an episode is damaged: {error}", file=file) from error
    steps = batch.num_rows - facts.final
    if steps < 1 or any(array.null_count for array in batch.columns) or _checksum(batch, facts) != facts.checksum:
        raise CorruptSourceError("an episode differs from its checksum", file=file)
    values = {column.name: _values(array, column) for column, array in zip(columns, batch.columns, strict=True)}
    finals = {column.name: values[column.name][steps] for column in columns if column.has_final and facts.final}
    return RecordedEpisode(
        {name: each[:steps] for name, each in values.items()},
        facts.terminated,
        facts.truncated,
        finals,
        facts.facts,
        videos=facts.videos or {},
        origin=facts.origin or None,
    )


def facts_of(facts_json: bytes) -> Mapping[str, Any]:
    """Returns the facts about an episode, from the other result of `to_batch`. Malformed facts are none."""
    try:
        return msgspec.json.decode(facts_json, type=_Facts).facts
    except ValueError:
        return {}


def synced_before(facts_json: bytes) -> int:
    """Returns `synced` of `to_batch`, from facts that `from_batch` accepts."""
    return msgspec.json.decode(facts_json, type=_Facts).synced or 0


def _array(episode: RecordedEpisode, column: ColumnSpec) -> pa.Array:
    values = episode.columns[column.name]
    return values if column.variable_length else column_array(values, column.arrow_type)


def _with_final(episode: RecordedEpisode, column: ColumnSpec) -> pa.Array:
    values = episode.columns[column.name]
    if column.variable_length:
        return pa.concat_arrays([values, pa.array(["" if column.dtype == "string" else b""], column.arrow_type)])
    last = episode.finals.get(column.name, np.zeros(column.shape, values.dtype))
    return column_array(np.concatenate([values, last[None]]), column.arrow_type)


def _values(array: pa.Array, column: ColumnSpec) -> Any:
    if column.variable_length:
        return array
    return array_values(array).view(column.numpy_dtype).reshape(len(array), *column.shape)


def _checksum(batch: pa.RecordBatch, facts: _Facts) -> str:
    """Returns the checksum of a batch's values and facts.

    It does not depend on the layout of buffers.
    """
    digest = xxhash.xxh3_128()
    digest.update(msgspec.json.encode(msgspec.structs.replace(facts, checksum=""), order="sorted"))
    for array in batch.columns:
        if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
            offsets = value_offsets(array)
            digest.update(np.diff(offsets).data)
            digest.update(value_bytes(array)[offsets[0] : offsets[-1]].data)
        else:
            digest.update(array_values(array).data)
    return f"xxh3-128:{digest.hexdigest()}"

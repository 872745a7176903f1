"""Statistics of the parts of a growing dataset, one file each.

They are needed when parts leave: a mean cannot be taken out of a merged mean. A lost or damaged file is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import resolved
from gear_data.growing.draft import Draft
from gear_data.schema import Schema
from gear_data.storage.arrow_files import array_values
from gear_data.storage.generations.growth import PARTS
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.statistics import (
    ColumnStatistics,
    RunningStatistics,
    StatisticsRecord,
    merged_samples,
    merged_statistics,
)
from gear_data.storage.verify import read_shard
from gear_data.storage.writing.file_store import LocalFileStore, put_text


@resolved
class _PartFile(msgspec.Struct, frozen=True):
    checksum: str
    statistics: dict[str, StatisticsRecord]


def part_file(name: str) -> str:
    """Returns the name of a part's file."""
    return f"{PARTS}/{name}.json"


def write_statistics(store: LocalFileStore, name: str, statistics: Mapping[str, ColumnStatistics]) -> None:
    """Writes the statistics of a part."""
    document = {"checksum": "", "statistics": {name: item.to_json() for name, item in statistics.items()}}
    put_text(store, part_file(name), sign(json.dumps(document, indent=1, allow_nan=False) + "\n"))


def join_statistics(store: LocalFileStore, schema: Schema, parts: Sequence[str], name: str) -> None:
    """Writes the statistics of parts that are joined, if all are known.

    Statistics of shards can be computed again, but those of cameras cannot.
    """
    found = [_read(store.path(part_file(part)), schema) for part in parts]
    known = [each for each in found if each is not None]
    if len(known) == len(found):
        write_statistics(store, name, merged_statistics(schema, known))


def rewrite_statistics(
    store: LocalFileStore,
    schema: Schema,
    parts: Sequence[str],
    name: str,
    shard: ShardEntry,
    lengths: npt.NDArray[np.int64],
) -> None:
    """Writes the statistics of parts that became one shard without some episodes.

    Cameras keep the samples of frames that the parts have, also of episodes that left.

    Args:
        store: the dataset's folder.
        schema: all columns.
        parts: names of the parts.
        name: of the new part.
        shard: the new shard.
        lengths: int64 [episodes], steps of its episodes.
    """
    running = RunningStatistics(schema)
    _update(running, store, shard, schema, lengths)
    found = [_read(store.path(part_file(part)), schema) or {} for part in parts]
    cameras = {
        camera.name: merged_samples([each[camera.name] for each in found])
        for camera in schema.videos
        if all(camera.name in each for each in found)
    }
    write_statistics(store, name, {**running.result(), **cameras})


def merged_parts(store: LocalFileStore, draft: Draft) -> dict[str, ColumnStatistics]:
    """Returns the statistics of all parts of a draft, merged in order."""
    found, first = [], 0
    lengths, shards = (draft.episodes.column(name).to_numpy() for name in ("length", "shard"))
    for part in draft.parts:
        statistics = _read(store.path(part_file(part.part.name)), draft.schema)
        if statistics is None:
            running = RunningStatistics(draft.schema)
            for number, shard in enumerate(part.shards, first):
                _update(running, store, shard, draft.schema, lengths[shards == number])
            statistics = running.result()
            write_statistics(store, part.part.name, statistics)
        found.append(statistics)
        first += len(part.shards)
    return merged_statistics(draft.schema, found)


def _read(path: Path, schema: Schema) -> dict[str, ColumnStatistics] | None:
    """Returns the statistics in a part's file; None if it is missing or damaged."""
    try:
        text = read_regular(path, JSON_BYTES).decode()
        record = msgspec.json.decode(text, type=_PartFile)
    except (OSError, ValueError):
        return None
    if text_checksum(text, record.checksum) != record.checksum:
        return None
    found = {name: ColumnStatistics.from_record(item) for name, item in record.statistics.items()}
    return found if all(column.name in found for column in schema.fixed_columns) else None


def _update(
    running: RunningStatistics,
    store: LocalFileStore,
    shard: ShardEntry,
    schema: Schema,
    lengths: npt.NDArray[np.int64],
) -> None:
    """Adds the steps of a shard."""
    batch = read_shard(lambda entry: nullcontext(store.path(entry.file)), schema, shard)
    columns = {
        column.name: array_values(batch.column(column.name)).reshape(len(batch), *column.shape)
        for column in schema.fixed_columns
    }
    running.update(columns, lengths)

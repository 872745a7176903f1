"""The content hash of an episode: what it holds, whatever file or shard holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.schema import Schema
from gear_data.storage.block import EpisodeBlock, offsets_of


def content_hashes(block: EpisodeBlock, schema: Schema) -> list[bytes]:
    """xxh3-128 of each episode: the little-endian bytes of its source columns by sorted name, then of its final
    observation's. Derived columns do not count."""
    steps = _rows(block.columns, sorted(column.name for column in schema.source_columns))
    finals = _rows(block.finals, sorted(column.name for column in schema.final_columns))
    offsets, final_offsets = block.offsets.tolist(), offsets_of(block.has_final.astype(np.int64)).tolist()
    result = []
    for i in range(len(block)):
        digest = xxhash.xxh3_128()
        for data, width in steps:
            digest.update(data[offsets[i] * width : offsets[i + 1] * width])
        for data, width in finals:
            digest.update(data[final_offsets[i] * width : final_offsets[i + 1] * width])
        result.append(digest.digest())
    return result


def _rows(columns: Mapping[str, npt.NDArray[Any]], order: Sequence[str]) -> list[tuple[memoryview, int]]:
    """(bytes, bytes per row) of each named column, for hashing row ranges without copying."""
    result = []
    for name in order:
        column = np.ascontiguousarray(columns[name])
        per_row = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
        result.append((column.reshape(-1).view(np.uint8).data, per_row))
    return result

"""Content hashes of episodes. They do not depend on files or shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.schema import Schema
from gear_data.storage.episode_block import EpisodeBlock, offsets_of
from gear_data.storage.variable_columns import value_bytes, value_offsets


def content_hashes(block: EpisodeBlock, schema: Schema) -> list[bytes]:
    """Returns xxh3-128 of each episode.

    The hash covers the little-endian bytes of the source columns in the order of their names, then of the final
    observation's columns. A variable-length column contributes the lengths of its values (int64), then the values.
    Derived columns are left out. Last come the digests of cameras' frames, in the order of the cameras' names.
    """
    steps = sorted(column.name for column in schema.source_columns)
    inputs = [
        item
        for name in steps
        for item in (
            _variable(block.columns[name], block.offsets)
            if schema[name].variable_length
            else [_fixed(block.columns[name], block.offsets)]
        )
    ]
    finals = offsets_of(block.has_final.astype(np.int64))
    inputs += [_fixed(block.finals[name], finals) for name in sorted(c.name for c in schema.final_columns)]
    videos = [block.videos[name] for name in sorted(c.name for c in schema.videos)]
    result = []
    for i in range(len(block)):
        digest = xxhash.xxh3_128()
        for data, bounds in inputs:
            digest.update(data[bounds[i] : bounds[i + 1]])
        for segments in videos:
            digest.update(segments.digests[i])
        result.append(digest.digest())
    return result


#: Bytes of a column, and the byte offset of each episode. Episodes are hashed without copying.
_ColumnBytes = tuple[memoryview, list[int]]


def _fixed(column: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> _ColumnBytes:
    column = np.ascontiguousarray(column)
    per_row = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    return column.reshape(-1).view(np.uint8).data, (offsets * per_row).tolist()


def _variable(array: pa.Array, offsets: npt.NDArray[np.int64]) -> list[_ColumnBytes]:
    bounds = value_offsets(array)
    return [_fixed(np.diff(bounds), offsets), (value_bytes(array).data, bounds[offsets].tolist())]

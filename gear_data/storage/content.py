"""The content hash of an episode: what it holds, whatever file or shard holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.schema import Schema
from gear_data.storage.block import EpisodeBlock, offsets_of
from gear_data.storage.variable import value_bytes, value_offsets


def content_hashes(block: EpisodeBlock, schema: Schema) -> list[bytes]:
    """xxh3-128 of each episode: the little-endian bytes of its source columns by sorted name, then of its final
    observation's. A column of variable length gives the lengths of its values (int64), then the values. Derived columns
    do not count."""
    steps = sorted(column.name for column in schema.source_columns)
    tracks = [
        track
        for name in steps
        for track in (
            _variable(block.variable[name], block.offsets)
            if name in block.variable
            else [_fixed(block.columns[name], block.offsets)]
        )
    ]
    finals = offsets_of(block.has_final.astype(np.int64))
    tracks += [_fixed(block.finals[name], finals) for name in sorted(c.name for c in schema.final_columns)]
    result = []
    for i in range(len(block)):
        digest = xxhash.xxh3_128()
        for data, bounds in tracks:
            digest.update(data[bounds[i] : bounds[i + 1]])
        result.append(digest.digest())
    return result


#: Bytes, and where among them each episode's begin: they are hashed in place.
_Track = tuple[memoryview, list[int]]


def _fixed(column: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> _Track:
    column = np.ascontiguousarray(column)
    per_row = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    return column.reshape(-1).view(np.uint8).data, (offsets * per_row).tolist()


def _variable(array: pa.Array, offsets: npt.NDArray[np.int64]) -> list[_Track]:
    places = value_offsets(array)
    return [_fixed(np.diff(places), offsets), (value_bytes(array).data, places[offsets].tolist())]

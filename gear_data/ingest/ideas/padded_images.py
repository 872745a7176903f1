"""Finds encoded images that are stored as rows of uint8, padded with zeros to one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import byte_strings, looks_like_image
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.pipeline.previews import first_block
from gear_data.ingest.source import EpisodeSource
from gear_data.schema import VARIABLE_TYPES, ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock

#: Bytes of the smallest image.
_SMALLEST = 26


def unpad_images(source: EpisodeSource, *, once: bool) -> EpisodeSource:
    """Returns a source whose padded images are byte strings, as `decode_images` takes them.

    If the source has a column of vectors of uint8, its first block is read. `once` is as for `first_block`.
    """
    vectors = [
        spec
        for spec in source.columns
        if spec.dtype == "uint8" and len(spec.shape) == 1 and spec.shape[0] >= _SMALLEST and not spec.derived
    ]
    if not vectors:
        return source
    head = first_block(source, once=once)
    padded = [] if head is None else [spec for spec in vectors if _holds_images(head.columns[spec.name])]
    return _UnpaddedImages(source, padded) if padded else source


def _holds_images(rows: npt.NDArray[np.uint8]) -> bool:
    """Returns whether rows are encoded images, by three of them."""
    return all(looks_like_image(rows[i].tobytes()) for i in (0, len(rows) // 2, len(rows) - 1))


class _UnpaddedImages(MappedSource):
    """An `EpisodeSource` with byte strings in place of padded rows.

    Args:
        source: the other source.
        padded: its columns of padded rows.
    """

    def __init__(self, source: EpisodeSource, padded: Sequence[ColumnSpec]) -> None:
        self._padded = padded
        names = {spec.name for spec in padded}
        columns = (replace(spec, dtype="binary", shape=()) if spec.name in names else spec for spec in source.columns)
        super().__init__(source, tuple(columns))

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        columns, finals = dict(piece.columns), dict(piece.finals)
        for spec in self._padded:
            columns[spec.name] = _byte_strings(columns[spec.name])
            if spec.has_final:
                finals[spec.name] = _byte_strings(finals[spec.name])
        yield replace(piece, columns=columns, finals=finals)


def _byte_strings(rows: npt.NDArray[np.uint8]) -> Any:
    return pa.array(byte_strings(rows), VARIABLE_TYPES["binary"])

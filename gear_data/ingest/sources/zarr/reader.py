"""Reading of the rows of Zarr arrays, chunk by chunk."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError
from gear_data.ingest.sources.zarr.array import ZarrArray
from gear_data.ingest.sources.zarr.codecs import decode_into
from gear_data.ingest.sources.zarr.store import StoreReader


class ZarrReader:
    """Reads rows of the arrays of stores; a context manager.

    Reading from front to back is fastest: each chunk is decompressed once. In memory are the requested rows, and of
    each array the chunks that hold its last row.
    """

    def __init__(self) -> None:
        self._stores: dict[str, StoreReader] = {}
        #: Place of an array -> index along the first axis, and rows, of the chunks that were read in part.
        self._partial: dict[str, tuple[int, npt.NDArray[Any]]] = {}

    def __enter__(self) -> ZarrReader:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self._stores.values():
            store.__exit__(*error)

    def read(self, array: ZarrArray, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop) of an array with at least one axis.

        Returns:
            [stop - start, *row_shape], C-contiguous and in native byte order.

        Raises:
            CorruptSourceError: a chunk is damaged.
        """
        out = np.empty((stop - start, *array.row_shape), array.dtype)
        rows = array.chunks[0]
        for index in range(start // rows, -(-stop // rows)) if stop > start else ():
            first, last = index * rows, min((index + 1) * rows, len(array))
            begin, end = max(first, start), min(last, stop)
            if end - begin == last - first:
                self._decode_rows(array, index, out[begin - start : end - start])
            else:
                out[begin - start : end - start] = self._partial_rows(array, index)[begin - first : end - first]
        return out.astype(out.dtype.newbyteorder("="), copy=False)

    def release(self, array: ZarrArray) -> None:
        """Forgets the chunks of an array that has been read. It may be read again."""
        self._partial.pop(array.place, None)

    def _partial_rows(self, array: ZarrArray, index: int) -> npt.NDArray[Any]:
        """Returns all rows of the chunks at `index` along the first axis.

        They are kept until other chunks of the array are read in part.
        """
        known = self._partial.get(array.place)
        if known is None or known[0] != index:
            count = min(array.chunks[0], len(array) - index * array.chunks[0])
            values = np.empty((count, *array.row_shape), array.dtype)
            self._decode_rows(array, index, values)
            self._partial[array.place] = known = (index, values)
        return known[1]

    def _decode_rows(self, array: ZarrArray, index: int, out: npt.NDArray[Any]) -> None:
        """Fills `out` with the rows of the chunks at `index` along the first axis."""
        counts = (-(-size // chunk) for size, chunk in zip(array.row_shape, array.chunks[1:], strict=True))
        for rest in itertools.product(*map(range, counts)):
            key = array.chunk_key((index, *rest))
            data = self._store(array).read(key)
            starts = tuple(i * chunk for i, chunk in zip(rest, array.chunks[1:], strict=True))
            part = out[(slice(None), *(slice(a, a + n) for a, n in zip(starts, array.chunks[1:], strict=True)))]
            if data is None:
                self._fill(part, array, key)
            elif part.shape == array.chunks and part.flags.c_contiguous and not array.fortran:
                decode_into(part, data, array.codec, array.config, array.store.place(key))
            else:
                # Chunks at the end of an axis are stored as a whole, and cut here.
                chunk = np.empty(array.chunks[::-1] if array.fortran else array.chunks, array.dtype)
                decode_into(chunk, data, array.codec, array.config, array.store.place(key))
                chunk = chunk.T if array.fortran else chunk
                part[...] = chunk[tuple(slice(n) for n in part.shape)]

    def _fill(self, part: npt.NDArray[Any], array: ZarrArray, key: str) -> None:
        if array.fill is None:
            raise CorruptSourceError("is missing", file=array.store.place(key), hint="download the store again")
        part[...] = array.fill

    def _store(self, array: ZarrArray) -> StoreReader:
        name = array.store.name
        if name not in self._stores:
            self._stores[name] = StoreReader(array.store)
        return self._stores[name]

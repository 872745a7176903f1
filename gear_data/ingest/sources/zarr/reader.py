"""Reading of the rows of Zarr arrays, chunk by chunk."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, GearError
from gear_data.ingest.sources.zarr.array import ZarrArray
from gear_data.ingest.sources.zarr.store import StoreReader

#: Chunks that zarr reads at once. It plans a read before it begins, and its plan has an object a chunk.
_CHUNKS_AT_ONCE = 1024


class ZarrReader:
    """Reads rows of the arrays of stores; a context manager.

    Reading from front to back is fastest: each chunk is decompressed once. In memory are the requested rows, and of
    each array the chunks that hold its last row.
    """

    def __init__(self) -> None:
        self._stores: dict[str, StoreReader] = {}
        #: Place of an array -> the array as zarr has it.
        self._arrays: dict[str, Any] = {}
        #: Place of an array -> index along the first axis, and rows, of the chunks that were read in part.
        self._partial: dict[str, tuple[int, npt.NDArray[Any]]] = {}

    def __enter__(self) -> ZarrReader:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self._stores.values():
            store.__exit__(*error)

    def read(self, array: ZarrArray, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop) of an array. A scalar has one row.

        Returns:
            [stop - start, *row_shape], C-contiguous and in native byte order.

        Raises:
            CorruptSourceError: a chunk is damaged.
        """
        array.check_readable(array.path)
        out = np.empty((stop - start, *array.row_shape), array.dtype.newbyteorder("="))
        if not array.shape:
            out[:] = self._decode(array, 0, 1)
            return out
        rows = array.chunks[0]
        at_once = rows * max(1, _CHUNKS_AT_ONCE // array.chunks_of_a_row)
        at = start
        while at < stop:
            first, last = at // rows * rows, min((at // rows + 1) * rows, len(array))
            if at == first and last <= stop:
                last = max(last, min(at + at_once, stop // rows * rows))
                values = self._decode(array, at, last)
                if (at, last) == (start, stop):
                    return np.ascontiguousarray(values, out.dtype)
            else:
                last = min(last, stop)
                values = self._partial_rows(array, first // rows)[at - first : last - first]
            out[at - start : last - start] = values
            at = last
        return out

    def release(self, array: ZarrArray) -> None:
        """Forgets the chunks of an array that has been read. It may be read again."""
        self._partial.pop(array.place, None)

    def _partial_rows(self, array: ZarrArray, index: int) -> npt.NDArray[Any]:
        """Returns all rows of the chunks at `index` along the first axis.

        They are kept until other chunks of the array are read in part.
        """
        known = self._partial.get(array.place)
        if known is None or known[0] != index:
            values = self._decode(array, index * array.chunks[0], min((index + 1) * array.chunks[0], len(array)))
            self._partial[array.place] = known = (index, values)
        return known[1]

    def _decode(self, array: ZarrArray, first: int, last: int) -> npt.NDArray[Any]:
        """Returns the rows [first, last), which are whole chunks."""
        if array.place not in self._arrays:
            store = self._stores.setdefault(array.store.name, StoreReader(array.store))
            self._arrays[array.place] = array.open(store)
        opened = self._arrays[array.place]
        try:
            return cast("npt.NDArray[Any]", opened[first:last] if array.shape else opened[()])
        except GearError:
            raise
        except Exception as error:  # the errors of the codecs have no common base
            raise _damaged(array, opened, first, last, error) from error


def _damaged(array: ZarrArray, opened: Any, first: int, last: int, error: Exception) -> CorruptSourceError:
    """Returns the error for the first chunk that cannot be decompressed.

    zarr does not say which of the chunks it is, so they are read again, one by one.
    """
    begins = (first, *[0] * len(array.row_shape))
    axes = zip(begins, (last, *array.row_shape), array.chunks, strict=True) if array.shape else ()
    for starts in itertools.product(*(range(begin, end, chunk) for begin, end, chunk in axes)):
        try:
            opened[tuple(slice(start, start + chunk) for start, chunk in zip(starts, array.chunks, strict=True))]
        except Exception as found:
            error = found
            break
    return CorruptSourceError(
        f"cannot be decompressed: {type(error).__name__}: {error}",
        file=array.store.place(opened.store.key),
        hint="the chunk is damaged: download it again",
    )

"""NumPy arrays as nested Arrow lists, the form that HuggingFace datasets have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError

_MAX_OFFSET = (1 << 31) - 1


def nested_rows(values: npt.NDArray[Any], name: str | None = None) -> pa.Array:
    """[n, *shape] as n (lists of lists of) values; scalars where shape is ().

    Raises:
        UnsupportedColumnError: 2^31 elements or more; it names the column `name`.
    """
    if values.ndim > 1:
        _check_offsets(values.size, name)
    array = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        width = values.shape[axis]
        count = int(np.prod(values.shape[:axis], dtype=np.int64))
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def nested_episodes(steps: npt.NDArray[Any], offsets: npt.NDArray[np.int64], name: str | None = None) -> pa.Array:
    """Steps [sum, *shape] as one list of steps an episode. Raises as `nested_rows` does."""
    _check_offsets(int(offsets[-1]), name)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), nested_rows(steps, name))


def _check_offsets(last: int, name: str | None) -> None:
    """Lists have 32-bit offsets, since `datasets` reads no others; NumPy would wrap larger ones silently."""
    if last > _MAX_OFFSET:
        raise UnsupportedColumnError(
            f"{last:,} elements in one Parquet list column of a row group, more than 32-bit offsets reach",
            column=name,
            hint="leave the column out at conversion (--columns), or export smaller batches",
        )

"""Numbers as a page shows them: JSON-able, with a few significant digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: The squares and sums of larger values would be infinite.
_LARGEST = 1e150


def drawable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns values of which those beyond 1e150 became infinite: reports leave infinities out, and count them."""
    if values.dtype != np.float64 or not (large := np.abs(values) > _LARGEST).any():
        return values
    return np.where(large, np.copysign(np.inf, values), values)


def rounded(values: npt.ArrayLike, digits: int = 4) -> list[Any]:
    """Returns numbers as nested lists of floats with a few significant digits. NaN and infinities become None."""
    array = np.asarray(values, np.float64)
    if array.ndim > 1:
        return [rounded(row, digits) for row in array]
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in array.tolist()]


def number(value: Any, digits: int = 6) -> float | None:
    """Returns a float with a few significant digits. NaN and infinities become None."""
    found: float | None = rounded([value], digits)[0]
    return found

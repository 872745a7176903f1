"""Numbers as a page shows them: JSON-able, with a few significant digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


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

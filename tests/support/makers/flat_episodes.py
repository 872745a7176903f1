"""Episodes as plain mappings, and as flat arrays. Not a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Name -> [T, ...], or a value of the whole episode.
Episode = Mapping[str, Any]
Array = npt.NDArray[Any]


def length_of(episode: Episode) -> int:
    return min(len(values) for values in episode.values() if np.ndim(values))


def flat_arrays(episodes: Sequence[Episode], *, ids: bool = True) -> dict[str, Array]:
    """Returns the steps of all episodes in one array a column. Values of an episode are repeated.

    With `ids`, there is a column `episode`, of which the episodes may have a value.
    """
    columns = {
        name: np.concatenate([np.asarray(per_step(each[name], length_of(each))) for each in episodes])
        for name in episodes[0]
    }
    numbers = np.repeat(np.arange(len(episodes)), [length_of(each) for each in episodes])
    return columns | ({"episode": columns.get("episode", numbers)} if ids else {})


def per_step(value: Any, length: int) -> Any:
    return value if np.ndim(value) else [value] * length

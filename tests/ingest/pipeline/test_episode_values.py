"""Casts of numbers to the dtype of a column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError
from gear_data.ingest.pipeline.episode_values import cast_exactly


@pytest.mark.parametrize(
    ("dtype", "value", "other"),
    [
        ("int8", -1, "uint8"),
        ("int8", -1, "uint64"),
        ("int64", -1, "uint64"),
        ("uint8", 200, "int8"),
        ("uint64", 1 << 63, "int64"),
    ],
)
def test_an_integer_of_another_sign_is_not_cast(dtype: str, value: int, other: str) -> None:
    assert cast_exactly(np.array([1, value], dtype), other) is None
    found = cast_exactly(np.array([1, 100], dtype), other)
    assert found is not None
    assert (found.dtype, found.tolist()) == (np.dtype(other), [1, 100])


def test_an_episode_of_signed_numbers_among_unsigned_ones_is_refused(tmp_path: Path) -> None:
    episodes = [
        {"observations": np.zeros((2, 1)), "actions": actions, "rewards": np.zeros(2)}
        for actions in (np.array([0, 1], np.uint8), np.array([1, -1], np.int8))
    ]
    with pytest.raises(BadEpisodeError, match="is int8, in the first episode uint8"):
        gear_data.convert(episodes, tmp_path / "d", progress=False)

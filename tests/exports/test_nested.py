"""Nested Arrow lists, and values with 32-bit offsets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import gear_data
from gear_data.errors import (
    UnsupportedColumnError,
)
from gear_data.exports.lerobot.features import features
from gear_data.exports.nested import narrow_values, nested_episodes, nested_rows, nested_values


def test_lists_beyond_32_bit_offsets_are_refused() -> None:
    """The arrays are views of one number, so they take no memory."""
    rows = np.broadcast_to(np.uint8(0), (1 << 16, 1 << 15))
    with pytest.raises(UnsupportedColumnError, match="2,147,483,648 elements") as error:
        nested_rows(rows, "pixels")
    assert error.value.column == "pixels"
    with pytest.raises(UnsupportedColumnError):
        nested_rows(np.broadcast_to(np.uint8(0), (1 << 11, 1 << 10, 1 << 10)))
    steps, offsets = np.broadcast_to(np.uint8(0), 1 << 31), np.array([0, 1 << 31])
    with pytest.raises(UnsupportedColumnError) as error:
        nested_episodes(steps, offsets, "rewards")
    assert error.value.column == "rewards"


def test_rows_without_values() -> None:
    assert nested_rows(np.empty((2, 3, 0), np.int64)).to_pylist() == [[[], [], []], [[], [], []]]
    assert nested_rows(np.empty((2, 0, 3), np.int64)).to_pylist() == [[], []]


def _large_values(type_: pa.DataType) -> pa.Array:
    """Returns two values, of which the second begins after 2^31 bytes. The pages of the first take no memory."""
    data = np.zeros((1 << 31) + 3, np.uint8)
    data[-3:] = np.frombuffer(b"abc", np.uint8)
    offsets = np.array([0, 1 << 31, (1 << 31) + 3])
    return pa.Array.from_buffers(type_, 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0)


def test_values_after_2_gib_get_32_bit_offsets(rollouts_path: Path) -> None:
    """In Parquet and in LeRobot."""
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    ds = gear_data.open(rollouts_path)
    ds = ds.with_column("prompt", ["x"] * ds.num_steps).with_column("image", [stream.getvalue()] * ds.num_steps)
    to_arrow = {feature.spec.name: feature.to_arrow for feature in features(ds)[0]}
    texts, images = _large_values(pa.large_string()), _large_values(pa.large_binary())
    assert narrow_values(texts[1:]).to_pylist() == to_arrow["prompt"](texts[1:]).to_pylist() == ["abc"]
    assert nested_values(images[1:], np.array([0, 1])).to_pylist() == [[b"abc"]]
    assert to_arrow["image"](images[1:]).to_pylist() == [{"bytes": b"abc", "path": None}]
    for name, values in (("prompt", texts), ("image", images)):
        with pytest.raises(UnsupportedColumnError, match="2,147,483,651 bytes") as error:
            to_arrow[name](values)
        assert error.value.column == name

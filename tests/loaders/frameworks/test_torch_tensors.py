"""Tensors over the memory of a batch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from gear_data.loaders.frameworks.torch_tensors import shared_memory, to_shared_tensors, to_tensors


def test_tensors_over_shared_memory_are_shared() -> None:
    memory = shared_memory(1024)[256:]
    memory[:] = np.arange(768) % 251
    halves = np.ndarray((4, 2), ml_dtypes.bfloat16, memory, 128)
    batch = {
        "bytes": np.ndarray((3, 5), np.uint8, memory, 6),
        "floats": np.ndarray((2, 3), np.float32, memory, 64),
        "halves": halves,
        "own": np.arange(3),
        "parts": [np.ndarray(2, np.int64, memory, 256), np.arange(2)],
        "text": ["a", "b"],
    }
    found, expected = to_shared_tensors(batch), to_tensors(batch)
    assert found["parts"][0].is_shared() and not found["parts"][1].is_shared()
    assert [found[key].is_shared() for key in ("bytes", "floats", "halves", "own")] == [True, True, True, False]
    for key in ("bytes", "halves", "own"):
        assert torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype
        assert found[key].data_ptr() == expected[key].data_ptr()
    assert torch.equal(found["floats"].view(torch.int32), expected["floats"].view(torch.int32))
    assert [each.tolist() for each in found["parts"]] == [each.tolist() for each in expected["parts"]]
    assert found["text"] == ["a", "b"]

"""The path of a batch from `next(loader)` to the collecting kernel stays short."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.kernels import cpu

MAX_FRAMES = 6
MAX_CALLS = 30


def frames_of(batches: Any) -> list[tuple[int, str]]:
    """Returns (depth, function) of every Python function that one `next` calls."""
    calls: list[tuple[int, str]] = []
    depth = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        if event == "call":
            depth += 1
            calls.append((depth, frame.f_code.co_name))
        elif event == "return":
            depth -= 1

    gc.disable()  # a garbage collection would call other functions
    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        batch = next(batches)
    finally:
        sys.setprofile(previous)
        gc.enable()
    assert len(batch)
    return calls


@pytest.mark.parametrize("preset", ["decision_transformer", "raw", "corl"])
@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 2}, {"sampler": gear_data.Weighted("length")}])
def test_few_frames_and_calls_lead_to_the_kernel(dataset, preset, options):
    batches = iter(SequenceLoader(dataset, 16, context=5, preset=preset, prefetch=0, **options))
    for _ in range(50):  # the first batches compile, and map the shards
        next(batches)
    # One batch in 0.1 s looks at the sizes of files, too.
    calls = min((frames_of(batches) for _ in range(3)), key=len)
    kernel = cpu.collect.collect.py_func.__name__
    assert max(depth for depth, name in calls if name == kernel) <= MAX_FRAMES, calls
    assert len(calls) <= MAX_CALLS, calls
    if not options:
        assert max(depth for depth, _ in calls) <= MAX_FRAMES, calls

"""Preset `d3rlpy` against d3rlpy's own slicer and mini-batch.

d3rlpy draws the step at which a window ends.

d3rlpy is imported when the first test runs: it brings gym, which warns of NumPy 2.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import numpy as np
import pytest
import torch

from gear_data import SequenceLoader, WindowOptions
from tests.support.feed import data as feed_data

KEYS = ("observations", "actions", "rewards", "returns_to_go", "terminals", "timesteps", "masks")


@pytest.fixture(scope="module")
def d3rlpy():
    import d3rlpy

    return d3rlpy


@pytest.mark.parametrize("context", [1, 6, 20])
@pytest.mark.parametrize("frames", [False, True])
def test_every_array_is_the_one_that_d3rlpy_makes(d3rlpy, make_dataset, context, frames):
    episodes = feed_data.locomotion([7, 1, 23, 40, 2, 20], seed=6)
    flags = [True, False, True, False, True, True]
    for i, (episode, flag) in enumerate(zip(episodes, flags, strict=True)):
        length = len(episode["rewards"])
        last = np.arange(length) == length - 1
        episode["terminations"], episode["truncations"] = last & flag, last & (not flag)
        if frames:
            episode["observations"] = np.random.default_rng(i).integers(0, 256, (length, 3, 4, 4)).astype(np.uint8)
    loader = SequenceLoader(
        make_dataset(episodes),
        preset="d3rlpy",
        batch_size=64,
        context=context,
        windows=WindowOptions(anchor="end"),
        prefetch=0,
        seed=1,
    )
    batch, windows = next(iter(loader)), loader.windows(0)
    theirs = [
        d3rlpy.dataset.Episode(e["observations"], e["actions"], e["rewards"][:, None], terminated=flag)
        for e, flag in zip(episodes, flags, strict=True)
    ]
    slicer = d3rlpy.dataset.BasicTrajectorySlicer()
    slices = [
        slicer(theirs[episode], int(start + n - 1), context)
        for episode, start, n in zip(windows["episode_id"], windows["start"], windows["length"], strict=True)
    ]
    made = d3rlpy.dataset.TrajectoryMiniBatch.from_partial_trajectories(slices)
    tensors = d3rlpy.torch_utility.TorchTrajectoryMiniBatch.from_batch(made, "cpu")
    assert set(batch) == {*KEYS, "valid_count"}
    for key in KEYS:
        wanted = getattr(tensors, key)
        assert batch[key].dtype == wanted.dtype, key
        # d3rlpy sums returns-to-go in float32.
        torch.testing.assert_close(batch[key], wanted, rtol=1e-5, atol=1e-4 if key == "returns_to_go" else 0.0, msg=key)

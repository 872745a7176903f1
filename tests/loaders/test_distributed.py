"""torch.distributed: a loader made without a rank takes the group's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gear_data import SequenceLoader
from tests.support.cluster import feed_rank, replaced_rank
from tests.support.feed import data as feed_data
from tests.support.replacement.datasets import NEW, OLD, convert

pytestmark = pytest.mark.processes

SCRIPT = Path(feed_rank.__file__)
STEPS, BATCH = 6, 11


def test_two_processes_share_the_global_batches(dataset, tmp_path):
    feed_data.run_two_ranks(SCRIPT, dataset.path, tmp_path)
    loader = SequenceLoader(dataset, batch_size=BATCH, context=5, seed=21, steps=STEPS)
    whole = np.stack([batch["observations"].numpy() for batch in loader])
    for rank, rows in enumerate((slice(0, 5), slice(5, 11))):
        results = np.load(tmp_path / f"out-{rank}.npz")
        mine = whole[:, rows].reshape(-1, *whole.shape[2:])
        for name in ("early", "inline", "workers", "before", "travelled"):
            assert np.array_equal(results[name], mine), (rank, name)


def test_ranks_that_opened_different_datasets_notice(tmp_path):
    """One rank opened the dataset before it was replaced, the other rank afterwards."""
    for rank, value in enumerate((OLD, NEW)):
        convert(tmp_path / "d" / str(rank), value)
    feed_data.run_two_ranks(Path(replaced_rank.__file__), tmp_path / "d", tmp_path)
    first, second = (json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2))
    for found in (first, second):
        assert found["skip"].startswith("DatasetReplacedError: rank 1 opened another dataset than rank 0")
    assert first["weights"] == "done"
    assert second["weights"].startswith("DatasetReplacedError: this rank has other episodes than rank 0")

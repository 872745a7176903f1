"""Tests a row group with more elements than 32 bits can count.

The test is slow, because its file must be large.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END

pytestmark = pytest.mark.nightly

STEPS, WIDTH = 1000, 48 * 48
EPISODES = (1 << 31) // (STEPS * WIDTH) + 2


def test_more_than_2_to_the_31_elements_in_a_row_group(tmp_path: Path) -> None:
    frames = np.repeat((np.arange(STEPS) % 251).astype(np.uint8)[:, None], WIDTH, axis=1)
    steps = pa.ListArray.from_arrays(np.arange(0, frames.size + 1, WIDTH, dtype=np.int32), pa.array(frames.reshape(-1)))
    episode = {"observations": steps, "actions": np.arange(STEPS) % 3, "dones": np.arange(STEPS) == STEPS - 1}
    # All chunks share one memory. The file has them one after another.
    columns = {
        name: pa.chunked_array([pa.ListArray.from_arrays(np.array([0, STEPS], np.int32), pa.array(values))] * EPISODES)
        for name, values in episode.items()
    }
    path = tmp_path / "huge.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=EPISODES)
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).num_values == EPISODES * frames.size > 1 << 31

    source, _, _ = open_source(locate(path, None), "auto", SourceOptions())
    found = 0
    for block in source.blocks(BEGIN, END):
        assert block.lengths.tolist() == [STEPS] * len(block)
        for observations in block.columns["observations"].reshape(-1, STEPS, WIDTH):
            assert np.array_equal(observations, frames)
        found += len(block)
    assert found == EPISODES

"""Views: some of a dataset's episodes and steps, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash

from gear_data.common.progress import progress_bar
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.store import DatasetStore
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import fingerprint
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics


@dataclass(frozen=True)
class View:
    """Episodes and steps of a store that a dataset shows.

    Attributes:
        ids: int64 [k], ascending: the episodes; None: all.
        mask: the steps that satisfy the step filters, numbered as in the store; None without a step filter.
        mode: steps of a window that the step filters test, `first` or `all`; None without a step filter.
    """

    ids: Int64Array | None = None
    mask: StepMask | None = None
    mode: str | None = None


def view_fingerprint(store: DatasetStore, ids: Int64Array) -> str:
    """Returns the fingerprint of a dataset that holds only these episodes."""
    contents = store.episode_table.column("content").combine_chunks()
    # Reads the buffer directly, 16 bytes per episode: no Python object per episode.
    start, hashes = 16 * contents.offset, contents.buffers()[1]
    rows = np.frombuffer(hashes, np.uint8, 16 * len(contents), start).reshape(-1, 16)
    return fingerprint(store.schema, [rows[ids].tobytes()])


def filtered_fingerprint(episodes: str, mask: StepMask, mode: str) -> str:
    """Returns the fingerprint of a view with a step filter.

    Args:
        episodes: fingerprint of the view's episodes.
        mask, mode: see `View`.
    """
    digest = xxhash.xxh3_128(episodes.encode())
    digest.update(mask.digest().encode())
    digest.update(mode.encode())
    return digest.hexdigest()


def view_statistics(store: DatasetStore, ids: Int64Array) -> dict[str, ColumnStatistics]:
    """Returns the statistics of these episodes. Reads all their steps once.

    Converting only these episodes in one task gives the same statistics, bit for bit.
    """
    running = RunningStatistics(store.schema)
    columns = store.schema.fixed_columns
    lengths = store.lengths[ids]
    with progress_bar(int(lengths.sum()), "statistics", "step", None) as bar:
        for first, last in block_ranges(lengths, store.schema.step_bytes, BLOCK_BYTES):
            block = ids[first:last]
            running.update({spec.name: store.steps(spec.name, block) for spec in columns}, lengths[first:last])
            bar.update(int(lengths[first:last].sum()))
    return running.result()

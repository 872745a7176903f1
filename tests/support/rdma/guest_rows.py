"""Rows read from nodes, compared with the dataset's files.

Does not use Numba: its import takes long in a guest.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.residency import open_shards
from gear_data.storage.dataset_files import open_files


class Rows:
    """Rows of a dataset in a folder."""

    def __init__(self, dataset: Path) -> None:
        self.dataset = dataset
        files = open_files(dataset)
        self.manifest = files.manifest()
        self.shards = open_shards("mmap", files, self.manifest.schema, self.manifest.shards)
        numbers = range(len(self.manifest.shards))
        self._columns = [
            np.concatenate([self.shards.column(number, column) for number in numbers])
            for column in range(len(self.manifest.schema))
        ]
        #: The first row of each shard in these columns.
        self._first = np.cumsum([0, *(entry.steps for entry in self.manifest.shards)])

    def request(self, spans: int, seed: int) -> Request:
        """Returns a request for spans of 1 to 40 rows of all columns."""
        rng = np.random.default_rng(seed)
        shard = rng.integers(0, len(self.manifest.shards), spans)
        steps = np.array([entry.steps for entry in self.manifest.shards])[shard]
        count = rng.integers(1, 41, spans)
        first = (rng.random(spans) * (steps - count)).astype(np.int64)
        columns = tuple(range(len(self.manifest.schema)))
        return Request(shard, (ColumnGroup(columns[::2], first, count), ColumnGroup(columns[1::2], first, count // 2)))

    def check(self, client: ShardClient, request: Request) -> None:
        """Checks that the nodes return the rows of the files."""
        seen = []
        for result in client.fetch(request):
            parts = iter(result.parts)
            for group in request.groups:
                # One selection of rows for all spans: emulated Python is slow.
                count = group.count[result.spans]
                first = (self._first[request.shard] + group.first)[result.spans]
                rows = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
                for column in group.columns:
                    expected = self._columns[column][rows]
                    if self.manifest.schema.columns[column].variable_length:
                        offsets, text = next(parts).view(np.int64), next(parts).tobytes()
                        found = [text[first:last].decode() for first, last in pairwise(offsets.tolist())]
                        assert found == expected.tolist()
                        continue
                    assert next(parts).tobytes() == expected.tobytes()
            assert next(parts, None) is None
            seen += result.spans.tolist()
        assert sorted(seen) == list(range(len(request.shard)))

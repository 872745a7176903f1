"""The tokens of windows, for packed rows whose steps have unlike numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from gear_data.common.cancellation import call_user_function
from gear_data.dataset.dataset import Dataset
from gear_data.loaders.decoding.images import Decoder
from gear_data.loaders.decoding.pad_decoded import StepPositions, padded
from gear_data.loaders.presets.gato.tokens import text_ids
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.episode_block import offsets_of

#: Steps whose texts are read at once.
_STEPS = 1 << 16


@dataclass(frozen=True)
class TokenCounts:
    """The tokens of a dataset's windows. Picklable.

    Attributes:
        room: tokens of a row.
        unit: tokens of a step without its texts.
        first: int64 [episodes + 1], the steps of the dataset before each episode.
        before: int64 [steps + 1], the tokens of texts before each step; None: there are no texts.
    """

    room: int
    unit: int
    first: Int64Array
    before: Int64Array | None

    def __call__(self, windows: Windows) -> Int64Array:
        """Returns the tokens of each window, int64 [n]."""
        counts: Int64Array = self.unit * windows.length
        if self.before is None:
            return counts
        start = self.first[windows.episode_id] + windows.start
        counts += self.before[start + windows.length] - self.before[start]
        return counts

    @property
    def most_of_step(self) -> int:
        """The most tokens of a step."""
        return self.unit + (0 if self.before is None else int(np.diff(self.before).max(initial=0)))

    def longest(self, episodes: Int64Array, context: int) -> tuple[int, int]:
        """Returns the most tokens of a window of at most `context` steps, and its episode.

        episodes: the episodes that are looked at, at least one.
        """
        best, found = -1, 0
        for episode in episodes.tolist():
            first, end = int(self.first[episode]), int(self.first[episode + 1])
            start = np.arange(first, max(first + 1, end - context + 1))
            after = np.minimum(start + context, end)
            counts = self.unit * (after - start)
            if self.before is not None:
                counts += self.before[after] - self.before[start]
            most = int(counts.max())
            if most > best:
                best, found = most, episode
        return best, found


def token_counts(
    dataset: Dataset, stored: Mapping[str, str], decoders: Mapping[str, Decoder], room: int, unit: int
) -> TokenCounts:
    """Returns the tokens of a dataset's windows. The decoder of a text is called once for each distinct text.

    Args:
        dataset: the dataset, or a view.
        stored: column of text -> its name in the dataset.
        decoders: column -> decoder.
        room, unit: see `TokenCounts`.

    Raises:
        InvalidArgumentError: a decoder returns no tokens.
        CorruptShardError: damaged values.
    """
    lengths = dataset.store.lengths
    first = offsets_of(lengths)
    if not stored:
        return TokenCounts(room, unit, first, None)
    reader = dataset.store.reader()
    rows = np.arange(len(lengths)) if dataset.view.rows is None else np.asarray(dataset.view.rows, np.int64)
    counts = np.zeros(int(first[-1]), np.int64)
    group = (np.cumsum(lengths[rows]) - lengths[rows]) // _STEPS
    for name, column in stored.items():
        index = dataset.schema.index(column)
        known: dict[str, int] = {}
        for number in np.unique(group).tolist():
            own = rows[group == number]
            windows = Windows(own, np.zeros(len(own), np.int64), lengths[own])
            texts = reader.values(index, windows).to_numpy().tolist()
            known.update(_counted(name, sorted({*texts} - known.keys()), decoders[name]))
            places = chain.from_iterable(range(first[row], first[row + 1]) for row in own.tolist())
            counts[np.fromiter(places, np.int64, len(texts))] += np.array([known[text] for text in texts], np.int64)
    return TokenCounts(room, unit, first, offsets_of(counts))


def _counted(column: str, texts: list[str], decoder: Decoder) -> dict[str, int]:
    """Returns text -> its tokens."""
    if not texts:
        return {}
    steps = StepPositions((len(texts),), np.arange(len(texts)))
    arrays: dict[str, Any] = padded(column, column, call_user_function(decoder, texts), steps)
    ids, keep = text_ids(arrays, column)
    each = np.full(len(texts), ids[0].size) if keep is None else keep.reshape(len(texts), -1).sum(1)
    return dict(zip(texts, each.tolist(), strict=True))

"""A dataset that grows, with the episodes that it should have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from tests.support.feed.data import locomotion
from tests.support.feed.selection import Case

#: Steps of the episodes; a generation adds some of them.
LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 33, 12, 9, 28, 3, 17, 6]
#: The final observation of all episodes, [1, 4].
FINAL = np.full((1, 4), 9, np.float32)


class GrowingDataset:
    """A folder to which a Writer appends episodes.

    Args:
        path: the folder.
        first: number of episodes that are converted before it grows; 0: the first Writer makes the dataset.

    Attributes:
        episodes: all episodes that there ever were, by id.
        live: for each generation, the ids of its episodes.
    """

    def __init__(self, path: Path, first: int = 4) -> None:
        self.path = path
        self.episodes = locomotion(LENGTHS, seed=11)
        self.live = [list(range(first))] if first else [[]]
        if first:
            converted = [
                {**each, "observations": np.concatenate([each["observations"], FINAL]), "terminated": True}
                for each in self.episodes[:first]
            ]
            gear_data.convert(converted, path, shard_bytes=1024, progress=False)

    @classmethod
    def at(cls, path: Path) -> GrowingDataset:
        """Returns the dataset that another process began."""
        growing = cls(path, first=0)
        growing._note(growing.open())
        return growing

    def grow(self, count: int, **limits: Any) -> int:
        """Appends episodes as a generation, and returns its number."""
        added = self.appended
        with gear_data.Writer(self.path, durability="os", shard_bytes=1024, **limits) as writer:
            for episode in self.episodes[added : added + count]:
                for t in range(len(episode["rewards"])):
                    writer.append(**{name: values[t] for name, values in episode.items()})
                writer.end_episode(terminated=True, final=FINAL[0])
        opened = self.open()
        self._note(opened)
        return opened.generation

    def _note(self, opened: gear_data.Dataset) -> None:
        ids = range(len(opened)) if opened.episode_ids is None else opened.episode_ids.tolist()
        self.live.append(list(ids))

    @property
    def appended(self) -> int:
        return max([-1, *(each for ids in self.live for each in ids)]) + 1

    def open(self, **options: Any) -> gear_data.Dataset:
        return gear_data.open(self.path, **options)

    def case(self, generation: int, context: int) -> Case:
        """Returns the episodes of a generation, for expected windows."""
        return Case([len(each["rewards"]) for each in self.episodes], self.live[generation], context)

    def column(self, name: str) -> Sequence[Any]:
        return [episode[name] for episode in self.episodes]

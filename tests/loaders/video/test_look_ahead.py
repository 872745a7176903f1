"""What the next batches need from a group of pictures is decoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.loaders.builders.cpu import CpuBatchBuilder
from gear_data.video.decoding import frame_reader
from gear_data.video.decoding.frame_cache import FrameCache
from gear_data.video.decoding.process_state import process_state
from tests.support.cameras.filmed import WRIST, Filmed
from tests.support.feed.arguments import grouped


def decoded_groups(
    filmed: Filmed, monkeypatch: pytest.MonkeyPatch, cut: Any = frame_reader.cut_packets, **options: Any
) -> list[tuple[int, int]]:
    """Returns (file, first packet) of each group that is decoded for an epoch."""
    decoded = []

    def counted(index: Any, job: Any, *data: Any) -> Any:
        decoded.append((job.file, job.first))
        return cut(index, job, *data)

    monkeypatch.setattr(frame_reader, "cut_packets", counted)
    # The cache of the process has frames of other tests.
    monkeypatch.setattr(process_state(), "cache", FrameCache())
    # A batch looks ahead to later ones only: of two threads, the one with the earlier batch may come second to a group.
    monkeypatch.setattr(CpuBatchBuilder, "threaded", False)
    loader = SequenceLoader(
        gear_data.open(filmed.path), 2, **grouped(context=1, columns=[WRIST], sampler="shuffle", epochs=1, seed=4,
        threads=1, **options),
    )  # fmt: skip
    for _ in loader:
        pass
    return decoded


def test_groups_are_decoded_once(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = gear_data.open(filmed.path).store.videos
    segments = videos.segments[WRIST]
    groups = sum(int(videos.index.groups(number).group.max()) + 1 for number in segments.file.tolist())
    for prefetch in (0, 30):
        assert len(decoded_groups(filmed, monkeypatch, prefetch=prefetch, cache_bytes=0)) > groups
    found = decoded_groups(filmed, monkeypatch, prefetch=30, cache_bytes=1 << 20)
    assert len(found) == len(set(found)) == groups


@dataclass(frozen=True)
class Listed:
    """A sampler that has windows for some slots only.

    Attributes:
        slots: their number.
    """

    slots: int
    name = "listed"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> tuple[Any, Any]:
        if last > self.slots:
            raise IndexError(f"there is no slot {last - 1}")
        return np.arange(first, last) % len(counts), np.zeros(last - first, np.int64)


@pytest.mark.parametrize("passes", ["continue", "repeat"])
def test_a_sampler_may_end_with_the_last_step(filmed: Filmed, passes: str) -> None:
    loader = SequenceLoader(
        gear_data.open(filmed.path), 2, **grouped(context=1, columns=[WRIST], sampler=Listed(8), steps=4, seed=4,
        passes=passes, threads=1, prefetch=3),
    )  # fmt: skip
    assert len(list(loader)) == 4

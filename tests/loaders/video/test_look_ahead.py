"""What the next batches need from a group of pictures is decoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.dataset.internals import store_of
from gear_data.video.packet_bytes import ByteRange, PacketBytes
from tests.support.cameras.filmed import WRIST, Filmed


class Counted:
    """Counts how often each range is read."""

    def __init__(self, packets: PacketBytes) -> None:
        self.packets, self.ranges = packets, []  # type: ignore[var-annotated]

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.ranges += ranges
        return self.packets.read(ranges)


def packets_read(filmed: Filmed, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[ByteRange]:
    dataset = gear_data.open(filmed.path)
    store = store_of(dataset)
    counted = Counted(store.videos.packets)
    monkeypatch.setattr(store, "videos", replace(store.videos, packets=counted))
    loader = SequenceLoader(
        dataset, 2, context=1, columns=[WRIST], sampler="shuffle", epochs=1, seed=4, decode_threads=1, **options
    )
    for _ in loader:
        pass
    return counted.ranges


def test_a_cache_for_the_next_batches_saves_reads(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    none = packets_read(filmed, monkeypatch, prefetch=0, video_cache=0)
    # The cache has room for some frames only, [32, 48] as YUV. It keeps those that the next batches need.
    blind = packets_read(filmed, monkeypatch, prefetch=0, video_cache=20_000, resize=(32, 47))
    ahead = packets_read(filmed, monkeypatch, prefetch=9, video_cache=20_000, resize=(32, 46))
    print(len(none), len(blind), len(ahead))
    assert len(ahead) < len(blind) <= len(none)


def test_every_group_is_read_once_if_it_fits(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gear_data.open(filmed.path)
    videos = store_of(dataset).videos
    segments = videos.segments[WRIST]
    groups = sum(int(videos.index.groups(number).group.max()) + 1 for number in segments.file.tolist())
    ranges = packets_read(filmed, monkeypatch, prefetch=10_000, resize=(30, 40))
    assert len(ranges) == groups

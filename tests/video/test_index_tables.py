"""VideoIndex: the tables of a dataset's video files."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.videos.fetched import FetchedPackets
from tests.support.cameras.encoded import ENCODINGS, encode, video_index


def test_an_index_is_freed_without_a_garbage_collection(tmp_path: Path) -> None:
    """Each generation of a dataset that grows has an index, over tables that its publisher removes."""
    path = tmp_path / "file.mp4"
    encode(path, ENCODINGS["mpeg4"])
    gc.collect()
    gc.disable()
    try:
        index = video_index([path])
        packets = FetchedPackets(index, ["memory://file.mp4"], ShardCache(tmp_path, None))
        assert index.file(0) is index.file(0)
        assert index.groups(0) is index.groups(0)
        gone = weakref.ref(index), weakref.ref(packets)
        del packets, index
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()

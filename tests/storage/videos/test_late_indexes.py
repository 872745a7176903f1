"""Indexes of video files at URLs that are read when a frame is first wanted."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from gear_data.common import retry
from gear_data.errors import CorruptShardError, RemoteError
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.videos import late_indexes
from gear_data.storage.videos.late_indexes import LateIndexes
from gear_data.storage.videos.stored_packets import open_url
from gear_data.video.file_index import NO_PACKETS, VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.demux import index_file
from tests.storage.videos.test_file_parts import check_equal, remuxed
from tests.support.cameras.filmed import moving_bar, write_video
from tests.support.hangs import no_hang
from tests.support.running.eventually import eventually

pytestmark = pytest.mark.processes

FILES, FRAMES, RATE = 5, 12, 10
ALL = np.arange(FILES)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    paths = [folder / f"{number}.mp4" for number in range(FILES)]
    for number, path in enumerate(paths):
        write_video(path, moving_bar(FRAMES + number), "mpeg4", g="4")
    return paths


class Server:
    """Files at memory:// URLs, whose requests are recorded. `held` is called before each."""

    def __init__(self, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.filesystem = fsspec.filesystem("memory")
        for path in paths:
            self.filesystem.pipe_file(f"/late/{path.name}", path.read_bytes())
        self.requests: list[str] = []
        self.held: Any = lambda name: None
        read = self.filesystem.cat_file

        def cat_file(name: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
            self.requests.append(name.rpartition("/")[2])
            self.held(self.requests[-1])
            return read(name, start=start, end=end, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(type(self.filesystem), "cat_file", staticmethod(cat_file))


@pytest.fixture
def server(videos: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.001)
    made = Server(videos, monkeypatch)
    yield made
    made.filesystem.rm("/late", recursive=True)


@pytest.fixture
def listed(videos: list[Path]) -> list[VideoFile]:
    """The files as a dataset lists them. It has all frames of each."""
    first = replace(index_file(videos[0], ""), time_base=Fraction(1, RATE), packets=NO_PACKETS)
    return [
        replace(first, file=f"memory://late/{path.name}", size=path.stat().st_size, checksum=f"memory {path.name}")
        for path in videos
    ]


def index_of(listed: list[VideoFile], cache: Path, frames: int | None = None) -> VideoIndex:
    counts = {number: FRAMES + number if frames is None else frames for number in range(len(listed))}
    files, packets = index_tables(listed, counts)
    return VideoIndex(files, packets, "test", LateIndexes(files, ShardCache(cache, None), open_url))


def test_the_index_is_that_of_the_file(
    server: Server, listed: list[VideoFile], videos: list[Path], tmp_path: Path
) -> None:
    index = index_of(listed, tmp_path)
    assert index.unindexed.all() and index.frame_counts.tolist() == [FRAMES + number for number in range(FILES)]
    assert not server.requests
    for number in (3, 0, 3):
        check_equal(index.file(number), replace(index_file(videos[number], ""), file=listed[number].file))
        assert index.file(number).checksum == listed[number].checksum
    assert {*server.requests} == {"3.mp4", "0.mp4"}
    server.requests.clear()
    for again in (pickle.loads(pickle.dumps(index)), index_of(listed, tmp_path)):
        assert again.groups(3).group.tolist() == index.groups(3).group.tolist()
    assert not server.requests, "the cache has it"


def test_many_are_loaded_at_once(server: Server, listed: list[VideoFile], tmp_path: Path) -> None:
    index, together = index_of(listed, tmp_path), threading.Barrier(4, timeout=60)
    first = {"0.mp4", "2.mp4", "3.mp4", "4.mp4"}
    server.held = lambda name: together.wait() if name in first and not first.discard(name) else None
    index.load(np.array([3, 0, 4, 2, 0]))
    server.held = lambda name: pytest.fail("loaded already")
    index.load(np.array([0, 2, 3, 4]))
    assert [index.file(number).num_frames for number in (0, 2, 3, 4)] == [12, 14, 15, 16]


def test_expected_indexes_are_read_meanwhile(
    server: Server, listed: list[VideoFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_indexes, "_FILES_AHEAD", 3)
    index, goes_on = index_of(listed, tmp_path), threading.Event()
    assert index.file(1).num_frames == FRAMES + 1
    server.held = lambda name: goes_on.wait(60)
    with no_hang():
        for _ in range(2):
            assert index.expect(np.array([4, 1, 0, 2, 3, 4])).tolist() == [False, True, False, False, False, False]
    assert eventually(lambda: {*server.requests} >= {"4.mp4", "0.mp4", "2.mp4"})
    assert "3.mp4" not in server.requests, "a limit of files"
    goes_on.set()
    assert eventually(lambda: bool(index.expect(ALL).all()))
    assert sorted(server.requests) == [f"{number}.mp4" for number in range(FILES)], "one request for each small file"


def test_an_expected_index_that_cannot_be_read(server: Server, listed: list[VideoFile], tmp_path: Path) -> None:
    """The call that needs it has the error. Others are read."""

    def fail(name: str) -> None:
        if name == "2.mp4":
            raise ConnectionResetError("the server went away")

    server.held = fail
    index = index_of(listed, tmp_path)
    index.expect(ALL)
    assert eventually(lambda: bool(index.expect(np.array([0, 1, 3, 4])).all()))
    tried = server.requests.count("2.mp4")
    index.expect(ALL)
    assert server.requests.count("2.mp4") == tried, "only the call that needs it tries again"
    for call in (lambda: index.file(2), lambda: index.load(ALL), lambda: index.groups(2)):
        with pytest.raises(RemoteError, match=r"2\.mp4.*went away"):
            call()
    server.held = lambda name: None
    assert index.file(2).num_frames == FRAMES + 2


def test_a_forked_child_reads_for_itself(server: Server, listed: list[VideoFile], tmp_path: Path) -> None:
    """The parent's threads, and its worker processes, do not work in the child."""
    index, goes_on = index_of(listed, tmp_path), threading.Event()
    index.load(ALL[:1])
    parent = multiprocessing.current_process().pid
    server.held = lambda name: goes_on.wait(60) if multiprocessing.current_process().pid == parent else None
    index.expect(ALL[1:3])
    assert eventually(lambda: {*server.requests} >= {"1.mp4", "2.mp4"})

    def read() -> None:
        index.expect(ALL)
        index.load(ALL[3:])
        raise SystemExit(0 if index.file(4).num_frames == FRAMES + 4 else 3)

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(60)
    goes_on.set()
    assert child.exitcode == 0
    assert index.file(2).num_frames == FRAMES + 2


def test_files_with_other_frames(server: Server, listed: list[VideoFile], videos: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match=r"0\.mp4: has 12 frames, and its episodes have 13 steps"):
        index_of(listed, tmp_path, frames=13).file(0)
    # Further frames do not matter, if those of the episodes are where they should be.
    assert index_of(listed, tmp_path, frames=7).file(0).num_frames == 12
    slower = [replace(each, time_base=Fraction(1, RATE // 2)) for each in listed]
    message = r"has 12 frames, and its episodes have 7 steps; frame 1 is at 0\.1 s, where the metadata has 0\.2"
    with pytest.raises(CorruptShardError, match=message):
        index_of(slower, tmp_path, frames=7).file(0)
    # The number of frames says where they are.
    assert index_of(slower, tmp_path, frames=12).file(0).num_frames == 12
    with pytest.raises(CorruptShardError, match="has frames of 48 x 64, and its camera has 96 x 64"):
        index_of([replace(listed[0], height=96)], tmp_path).file(0)


def test_a_file_without_one_index_is_read_whole(
    server: Server, listed: list[VideoFile], videos: list[Path], tmp_path: Path
) -> None:
    fragmented = remuxed(videos[0], tmp_path / "fragmented.mp4", "frag_keyframe+empty_moov").read_bytes()
    for content in (fragmented, fragmented[:1000], b"no video, and long enough to be taken for one"):
        server.filesystem.pipe_file("/late/1.mp4", content)
        changed = replace(listed[1], size=len(content), checksum=f"memory {len(content)}")
        index = index_of([listed[0], changed], tmp_path, frames=FRAMES)
        if content == fragmented:
            assert index.file(1).num_frames == FRAMES
        else:
            with pytest.raises(CorruptShardError, match=r"1\.mp4: (FFmpeg cannot read it|has 1 frames, and)"):
                index.file(1)


def test_packets_that_no_reader_reads(listed: list[VideoFile]) -> None:
    index = VideoIndex(*index_tables(listed, dict.fromkeys(range(FILES), 5)), "test")
    assert index.listed(2).file == "memory://late/2.mp4" and not len(index.listed(2).packets)
    index.load(ALL)
    assert index.expect(ALL).all()
    with pytest.raises(CorruptShardError, match="its index was not read"):
        index.file(2)

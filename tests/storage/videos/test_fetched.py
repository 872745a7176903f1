from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from gear_data.common import retry
from gear_data.errors import CorruptShardError, RemoteError
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.videos import fetched as fetched_module
from gear_data.storage.videos import pages as pages_module
from gear_data.storage.videos.fetched import FetchedPackets
from gear_data.storage.videos.pages import file_pages
from gear_data.video.file_index import VideoFile
from gear_data.video.frame_groups import frame_groups
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.demux import index_file
from tests.support.cameras.filmed import moving_bar, write_video
from tests.support.hangs import no_hang

FRAMES, GROUP = 40, 4


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "noise.mp4"
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, 48, 64, 3), np.uint8)
    write_video(path, noise // 4 + moving_bar(FRAMES) // 2, "mpeg4", g=str(GROUP))
    return path


class Server:
    """A file at a memory:// URL, whose requests are recorded and may be damaged."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.filesystem = fsspec.filesystem("memory")
        self.content = path.read_bytes()
        self.filesystem.pipe_file("/videos/noise.mp4", self.content)
        self.requests: list[tuple[int, int]] = []
        self.damaged = self.failures = 0
        read = self.filesystem.cat_file

        def cat_file(name: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
            assert start is not None and end is not None, "the whole file was read"
            self.requests.append((start, end))
            if self.failures:
                self.failures -= 1
                raise ConnectionResetError("the server went away")
            data = bytearray(read(name, start=start, end=end, **options))
            if self.damaged:
                self.damaged -= 1
                data[len(data) // 2] ^= 1
            return bytes(data)

        monkeypatch.setattr(type(self.filesystem), "cat_file", staticmethod(cat_file))

    @property
    def bytes(self) -> int:
        return sum(last - first for first, last in self.requests)


@pytest.fixture
def server(video: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 8 << 10)
    made = Server(video, monkeypatch)
    yield made
    made.filesystem.rm("/videos", recursive=True)


@pytest.fixture
def index(video: Path) -> VideoIndex:
    return VideoIndex(*index_tables([index_file(video, "noise.mp4")]), "test")


def packets_of(index: VideoIndex, cache: Path, limit: int | None = None) -> FetchedPackets:
    return FetchedPackets(index, ["memory://videos/noise.mp4"], ShardCache(cache, limit))


def group_range(video: VideoFile, group: int) -> tuple[int, int, int]:
    """Returns the bytes of a group of pictures."""
    starts = frame_groups(video).starts
    first, last = int(starts[group]), int(starts[group + 1])
    ends = video.packets.position[first:last] + video.packets.size[first:last]
    return 0, int(video.packets.position[first]), int(ends.max())


def test_pages_hold_every_packet_once(index: VideoIndex, server: Server) -> None:
    video = index.file(0)
    pages = file_pages(video, index.groups(0))
    assert (np.diff(pages.bounds)[:-1] >= 8 << 10).all()
    starts = {int(video.packets.position[first]) for first in frame_groups(video).starts[:-1]}
    assert {*pages.bounds[:-1].tolist()} <= starts
    for position, size in zip(video.packets.position.tolist(), video.packets.size.tolist(), strict=True):
        assert len(pages.of_range(position, position + size)) == 1
    content = memoryview(server.content)
    for page in range(len(pages.bounds) - 1):
        first, last = pages.span(page)
        assert pages.is_sound(page, content[first:last])
        wrong = bytearray(content[first:last])
        wrong[-1] ^= 1
        assert not pages.is_sound(page, memoryview(wrong))
        assert not pages.is_sound(page, content[first : last - 1])


def test_ranges_are_fetched_and_kept(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    video = index.file(0)
    wanted = [group_range(video, group) for group in (7, 0, 1, 7, 4)]
    packets = packets_of(index, tmp_path)
    found = packets.read(wanted)
    assert [bytes(data) for data in found] == [server.content[first:last] for _, first, last in wanted]
    largest = max(last - first for _, first, last in (group_range(video, group) for group in range(10)))
    assert server.bytes <= 4 * (largest + (8 << 10))
    assert server.bytes < len(server.content)
    assert len(server.requests) <= 3, "adjacent pages share a request"
    bounds = {*file_pages(video, index.groups(0)).bounds.tolist()}
    assert {end for request in server.requests for end in request} <= bounds, "more than the pages was requested"
    server.requests.clear()
    assert [bytes(data) for data in packets_of(index, tmp_path).read(wanted)] == [bytes(data) for data in found]
    assert not server.requests, "another process finds the pages in the cache"


def test_the_whole_file_and_ranges_over_pages(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    positions = index.file(0).packets.position
    first, last = int(positions.min()), int((positions + index.file(0).packets.size).max())
    (data,) = packets_of(index, tmp_path).read([(0, first, last)])
    assert bytes(data) == server.content[first:last]
    assert len(server.requests) == 1
    (data,) = packets_of(index, tmp_path).read([(0, first + 3, last - 5)])
    assert bytes(data) == server.content[first + 3 : last - 5]


def test_bytes_outside_of_all_packets_are_fetched_too(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    """As an export that copies the file needs them."""
    size = len(server.content)
    wanted = [(0, 0, size), group_range(index.file(0), 3), (0, 4, 9), (0, size - 5, size), (0, size, size)]
    found = packets_of(index, tmp_path).read(wanted)
    assert [bytes(data) for data in found] == [server.content[first:last] for _, first, last in wanted]


def test_a_small_cache_gives_the_same_bytes(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    packets = packets_of(index, tmp_path, 10 << 10)
    for group in (0, 5, 9, 0):
        wanted = group_range(index.file(0), group)
        assert bytes(packets.read([wanted])[0]) == server.content[wanted[1] : wanted[2]]
    kept = sum(path.stat().st_size for path in (tmp_path / "files").iterdir())
    assert kept <= (10 << 10) + max(np.diff(file_pages(index.file(0), index.groups(0)).bounds))


def test_damaged_bytes_are_fetched_again(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    wanted = group_range(index.file(0), 3)
    server.damaged = 1
    assert bytes(packets_of(index, tmp_path / "a").read([wanted])[0]) == server.content[wanted[1] : wanted[2]]
    server.damaged = 2
    with pytest.raises(CorruptShardError, match="twice"):
        packets_of(index, tmp_path / "b").read([wanted])


def test_a_file_that_is_gone(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    packets = FetchedPackets(index, ["memory://videos/other.mp4"], ShardCache(tmp_path, None))
    with pytest.raises(RemoteError, match="no longer exists"):
        packets.read([group_range(index.file(0), 0)])


def test_an_outage_of_the_server(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.001)
    wanted = group_range(index.file(0), 3)
    server.failures = 2
    assert bytes(packets_of(index, tmp_path / "a").read([wanted])[0]) == server.content[wanted[1] : wanted[2]]
    assert len(server.requests) == 3
    server.failures = 1000
    with pytest.raises(RemoteError, match="went away"):
        packets_of(index, tmp_path / "b").read([wanted])


@pytest.mark.processes
def test_several_processes_share_a_small_cache(index: VideoIndex, server: Server, tmp_path: Path) -> None:
    """Pages are evicted while other processes request them. The reader was made before the fork."""
    packets = packets_of(index, tmp_path, 20 << 10)
    ranges = [group_range(index.file(0), group) for group in range(FRAMES // GROUP)]
    packets.read(ranges[:1])

    def read(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(ranges), 20).tolist():
            _, first, last = ranges[number]
            if bytes(packets.read([ranges[number]])[0]) != server.content[first:last]:
                raise SystemExit(3)

    processes = [multiprocessing.get_context("fork").Process(target=read, args=(seed,)) for seed in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]


def wait_for_threads(packets: FetchedPackets) -> None:
    """Waits until no thread fetches pages of later reads."""
    while rounds := list(packets._rounds.values()):
        assert rounds[0].ended.wait(60)


def test_later_ranges_are_fetched_meanwhile(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    groups = [group_range(index.file(0), group) for group in (7, 0, 3, 4, 9)]
    packets = packets_of(index, tmp_path)
    request, goes_on = packets._request, threading.Event()

    def held(file: int, first: int, last: int) -> memoryview:
        assert first == groups[0][1] or goes_on.wait(60)
        return request(file, first, last)

    monkeypatch.setattr(packets, "_request", held)
    packets.fetch(groups[:1], lambda: [groups[1:2], groups[2:4]])
    assert [bytes(data) for data in packets.read(groups[:1])] == [server.content[groups[0][1] : groups[0][2]]]
    assert len(server.requests) == 1, "it does not wait for pages of later reads"
    goes_on.set()
    wait_for_threads(packets)
    assert len(server.requests) == 3, "adjacent pages share a request"
    # Pages that are here do not keep it from fetching those of later reads.
    for _ in range(2):
        packets.fetch(groups[1:4], lambda: [groups[4:]])
    wait_for_threads(packets)
    assert len(server.requests) == 4
    assert [bytes(data) for data in packets.read(groups)] == [server.content[a:b] for _, a, b in groups]
    assert len(server.requests) == 4


def test_pages_on_their_way_are_waited_for(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    now, later = group_range(index.file(0), 0), group_range(index.file(0), 5)
    packets = packets_of(index, tmp_path)
    request, started, goes_on = packets._request, threading.Event(), threading.Event()

    def held(file: int, first: int, last: int) -> memoryview:
        if first == later[1]:
            started.set()
            assert goes_on.wait(60)
        return request(file, first, last)

    monkeypatch.setattr(packets, "_request", held)
    packets.fetch([now], lambda: [[later]])
    assert started.wait(60)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(packets.fetch, [later], list)
        assert not second.done()
        goes_on.set()
        second.result(60)
    assert bytes(packets.read([later])[0]) == server.content[later[1] : later[2]]
    assert len(server.requests) == 2


def test_later_ranges_are_limited(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    bounds = file_pages(index.file(0), index.groups(0)).bounds
    groups = [group_range(index.file(0), group) for group in range(len(bounds) - 1)]
    limit = int(bounds[4] - bounds[1])
    for most, cache, pages in ((0, None, 1), (limit, None, 4), (limit - 1, None, 3), (1 << 20, 4 * limit, 4)):
        monkeypatch.setattr(fetched_module, "_AHEAD_BYTES", most)
        server.requests.clear()
        packets = packets_of(index, tmp_path / f"{most}", cache)
        packets.fetch(groups[:1], lambda: ([group] for group in groups[1:]))
        wait_for_threads(packets)
        assert server.bytes == bounds[pages] - bounds[0]
    # The next reads come first, wherever they are in the file.
    monkeypatch.setattr(fetched_module, "_AHEAD_BYTES", int(bounds[9] - bounds[8]))
    server.requests.clear()
    packets = packets_of(index, tmp_path / "order")
    packets.fetch(groups[:1], lambda: [groups[8:9], groups[1:2]])
    wait_for_threads(packets)
    assert sorted(server.requests) == [(bounds[0], bounds[1]), (bounds[8], bounds[9])]
    # The pages of a batch would displace each other in this cache.
    server.requests.clear()
    packets_of(index, tmp_path / "small", limit).fetch(groups, lambda: [groups])
    assert not server.requests


def test_errors_of_later_ranges_are_raised_when_they_are_read(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    now, later = group_range(index.file(0), 0), group_range(index.file(0), 9)
    packets = packets_of(index, tmp_path)
    request = packets._request

    def lost(file: int, first: int, last: int) -> memoryview:
        if last > later[1]:
            raise RemoteError("lost")
        return request(file, first, last)

    monkeypatch.setattr(packets, "_request", lost)
    packets.fetch([now], lambda: [[later]])
    wait_for_threads(packets)
    assert bytes(packets.read([now])[0]) == server.content[now[1] : now[2]]
    for call in (lambda: packets.fetch([later], list), lambda: packets.read([later])):
        with pytest.raises(RemoteError, match="lost"):
            call()


def test_pages_that_no_thread_fetches_are_not_waited_for(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    now, *later = (group_range(index.file(0), group) for group in (0, 3, 5, 7))
    packets = packets_of(index, tmp_path)

    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(fetched_module, "start_thread", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            packets.fetch([now], lambda: [later])
    with no_hang():
        packets.fetch(later[:1], list)
    assert len(server.requests) == 2


def test_a_thread_goes_on_after_any_error(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "PAGE_BYTES", 1)
    monkeypatch.setattr(fetched_module, "_REQUESTS", 2)  # one thread for later reads
    now, first, second = (group_range(index.file(0), group) for group in (0, 3, 5))
    packets = packets_of(index, tmp_path)
    request = packets._request

    def broken(file: int, begin: int, end: int) -> memoryview:
        if begin == first[1]:
            raise ValueError("an error that no library should raise")
        return request(file, begin, end)

    monkeypatch.setattr(packets, "_request", broken)
    packets.fetch([now], lambda: [[first, second]])
    with no_hang():
        wait_for_threads(packets)
        packets.fetch([second], list)
        with pytest.raises(ValueError, match="no library"):
            packets.fetch([first], list)
    assert len(server.requests) == 2


@pytest.mark.processes
def test_two_threads_fetch_a_page_once(
    index: VideoIndex, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread waits for the first. A forked child waits for no thread of its parent."""
    wanted = group_range(index.file(0), 0)
    packets = packets_of(index, tmp_path)
    request, started, goes_on = packets._request, threading.Event(), threading.Event()

    def slow(*arguments: int) -> memoryview:
        started.set()
        assert goes_on.wait(30)
        return request(*arguments)

    monkeypatch.setattr(packets, "_request", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(packets.fetch, [wanted], list)
        assert started.wait(30)
        second = threads.submit(packets.fetch, [wanted], list)
        child = multiprocessing.get_context("fork").Process(target=_fetch_in_child, args=(packets, request, wanted))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert not second.done()
        goes_on.set()
        first.result(30)
        second.result(30)
    assert len(server.requests) == 1


def _fetch_in_child(packets: FetchedPackets, request: Any, wanted: Any) -> None:
    packets._request = request  # type: ignore[method-assign]
    packets.fetch([wanted], list)

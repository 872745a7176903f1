"""Video files read by RDMA from nodes, with a stand-in for the device.

Bytes and batches are compared with the folder.
"""

from __future__ import annotations

import ctypes
import logging
import shutil

import numpy as np
import pytest

import gear_data
from gear_data.cluster.client import video_packets
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.client.retry_policy import RetryPolicy
from gear_data.cluster.client.video_packets import NodePackets
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.server import video_memory
from gear_data.errors import CorruptShardError, HostMemoryError, NodeRefusedError, NodeUnreachableError
from gear_data.residency import shared_memory
from gear_data.storage.dataset_files import FolderFiles
from gear_data.storage.videos.stored_packets import read_video_index
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from tests.support.cameras.filmed import FRONT, WRIST, film
from tests.support.feed.arguments import grouped


@pytest.fixture(scope="module")
def folder(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(6, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", shard_bytes=1024)
    film(folder / "dataset", [len(rollout) for rollout in rollouts])
    return folder / "dataset"


@pytest.fixture
def no_flight(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("read by Arrow Flight")

    monkeypatch.setattr(Peer, "video_bytes", refuse)


def url(*places):
    return "gear://" + ",".join(places)


def packets_of(dataset):
    """Returns packets of a dataset that nodes serve, and its client."""
    client = dataset.store._client
    return NodePackets(client), client


def index_of(folder):
    files = FolderFiles(folder)
    return read_video_index(files, files.manifest())


def check_ranges(folder, packets, ranges):
    index = index_of(folder)
    expected = [(folder / index.file(file).file).read_bytes()[first:last] for file, first, last in ranges]
    assert [bytes(data) for data in packets.read(ranges)] == expected


def some_ranges(folder, count=40):
    index, rng = index_of(folder), np.random.default_rng(1)
    sizes = [index.file(number).size for number in range(len(index))]
    files = rng.integers(0, len(sizes), count).tolist()
    bounds = [sorted(rng.integers(0, sizes[file] + 1, 2).tolist()) for file in files]
    return [(file, *each) for file, each in zip(files, bounds, strict=True)] + [(0, 5, 5), (0, 0, sizes[0])]


def halves(folder):
    count = len(gear_data.open(folder).manifest.shards)
    return range(count // 2), range(count // 2, count)


@pytest.mark.parametrize("pairs", ["1", "3"])
def test_batches_of_two_nodes(folder, serve, world, no_flight, monkeypatch, pairs):
    """Each node holds only the files of its episodes."""
    monkeypatch.setenv("GEAR_DATA_RDMA_QUEUE_PAIRS", pairs)
    local = gear_data.open(folder)
    remote = gear_data.open(url(*(serve(half) for half in halves(folder))), transport="verbs")
    options = {"batch_size": 6, "context": 3, "columns": [FRONT, WRIST], "seed": 1, "steps": 4, "cache_bytes": 0}
    loaders = [
        gear_data.SequenceLoader(ds, **grouped(preset="raw", framework="numpy", **options)) for ds in (remote, local)
    ]
    for mine, theirs in zip(*loaders, strict=True):
        for camera in (FRONT, WRIST):
            np.testing.assert_array_equal(mine[camera], theirs[camera])
    held = remote.store._client.held_videos._files
    shard, files = local.store.episode_starts[0], len(index_of(folder))
    for node, half in enumerate(halves(folder)):
        # File 0 has all episodes of the front camera, and each other file one episode of the wrist's.
        assert held[node] == {0, *(1 + np.flatnonzero(np.isin(shard, half))).tolist()}
    assert held[0] | held[1] == set(range(files)) and held[0] & held[1] == {0}


def test_ranges_of_any_size(folder, serve, world, no_flight, monkeypatch):
    packets, client = packets_of(gear_data.open(url(serve(), serve()), transport="verbs"))
    check_ranges(folder, packets, some_ranges(folder))
    assert max(world.posts) > 10, "READs are posted together"
    # Both nodes hold all files, and share them.
    assert client.held_videos._holders == {file: [0, 1] for file in range(len(index_of(folder)))}
    # More READs than a queue of the stand-in holds.
    check_ranges(folder, packets, [(0, first, first + 3) for first in range(0, 3900, 4)])
    assert max(world.posts) == 256
    # Adjacent pieces become one READ.
    before = len(world.reads)
    monkeypatch.setattr(video_packets, "MESSAGE_BYTES", 16)
    check_ranges(folder, packets, [(0, 7, 1800)])
    assert world.reads[before:] == [1793]
    with pytest.raises(NodeRefusedError, match=r"holds \d+ bytes of video file 0, and \d+ are needed"):
        packets.read([(0, 0, 1 << 20)])
    check_ranges(folder, packets, some_ranges(folder))


def test_auto_and_flight(folder, serve, world, caplog):
    node, ranges = serve(), some_ranges(folder)
    for transport, some in (("flight", False), ("auto", True)):
        packets, client = packets_of(gear_data.open(url(node), transport=transport))
        before = len(world.reads)
        check_ranges(folder, packets, ranges)
        assert (len(world.reads) > before) == some
    world.broken = True
    with caplog.at_level(logging.WARNING, "gear_data"):
        check_ranges(folder, packets, ranges)
        check_ranges(folder, packets, ranges)
    (record,) = caplog.records
    assert "did not answer" in record.message and "by Arrow Flight" in record.message
    world.broken = False
    before = len(world.reads)
    client._transports._fallback_until.clear()
    check_ranges(folder, packets, ranges)
    assert len(world.reads) > before


def test_transport_verbs_raises(folder, serve, world, no_flight, monkeypatch):
    packets, client = packets_of(gear_data.open(url(serve()), transport="verbs"))
    check_ranges(folder, packets, [(0, 1, 9)])
    world.broken = True
    with pytest.raises(NodeUnreachableError, match=r"gear://127.*RDMA READ failed: the peer did not answer"):
        packets.read([(0, 1, 9)])
    # In a training run, the read is retried.
    wait = client._retries.wait

    def repair(*arguments):
        world.broken = False
        return wait(*arguments)

    monkeypatch.setattr(client._retries, "policy", RetryPolicy(60.0, 0.01))
    monkeypatch.setattr(client._retries, "wait", repair)
    check_ranges(folder, packets, some_ranges(folder))


def test_a_file_that_no_node_holds(folder, serve, world, tmp_path):
    shutil.copytree(folder, tmp_path / "lacking")
    (tmp_path / "lacking" / "videos" / "front.mp4").unlink()
    places = serve(folder=tmp_path / "lacking"), serve()
    ranges = [(0, 3, 50), (1, 0, 9)]
    packets, client = packets_of(gear_data.open(url(*places), transport="verbs"))
    check_ranges(folder, packets, ranges)
    assert client.held_videos._holders[0] == [1] and client.held_videos._holders[1] == [0, 1]
    alone = gear_data.open(url(places[0]), transport="verbs")
    with pytest.raises(NodeRefusedError, match=r"no node holds video file 0 in memory\n.*use transport="):
        packets_of(alone)[0].read(ranges)
    # Arrow Flight asks, and tells what is missing.
    with pytest.raises(CorruptShardError, match="is missing"):
        packets_of(gear_data.open(url(places[0])))[0].read(ranges)
    automatic = packets_of(gear_data.open(url(places[0], serve(transport="flight"))))[0]
    before = len(world.reads)
    check_ranges(folder, automatic, ranges)
    assert len(world.reads) == before + 1


def test_a_changed_packet(folder, serve, world):
    """Packets are compared with their checksums; RDMA has none."""
    packets, _ = packets_of(gear_data.open(url(serve()), transport="verbs"))
    index, out = index_of(folder), np.empty((1, 48, 64, 3), np.uint8)
    reader = FrameReader(index, packets, DecodeOptions(cache_bytes=0))
    where = np.array([0]), np.array([8])
    reader.read(*where, out)

    def spoil(remote, local, size):
        (ctypes.c_uint8 * size).from_address(local)[size // 2] ^= 1

    world.spoil = spoil
    with pytest.raises(CorruptShardError, match="has changed"):
        reader.read(*where, out)


def test_too_little_memory_for_videos(folder, serve, world, no_flight, caplog, monkeypatch, tmp_path):
    # A folder of its own: this process may have copies of the other one.
    shutil.copytree(folder, tmp_path / "d")
    load = video_memory.host_files

    def load_with_little(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "available_memory", lambda: 5000)
            return load(*arguments)

    monkeypatch.setattr(video_memory, "host_files", load_with_little)
    with pytest.raises(HostMemoryError, match=r"copy of the video files takes .* are available\n.*serve fewer shards"):
        serve(folder=tmp_path / "d")
    with caplog.at_level(logging.WARNING, "gear_data"):
        place = serve(folder=tmp_path / "d", transport="auto")
    assert "videos are not read by RDMA: one copy of the video files" in caplog.text
    remote = gear_data.open(url(place), transport="verbs")
    assert remote.steps("rewards", 0, 6).tolist() == gear_data.open(folder).steps("rewards", 0, 6).tolist()
    assert world.reads
    with pytest.raises(NodeRefusedError, match="no node holds video file 1 in memory"):
        packets_of(remote)[0].read([(1, 0, 3)])


def test_an_interrupt_leaves_nothing_in_flight(folder, serve, world, monkeypatch):
    packets, _ = packets_of(gear_data.open(url(serve()), transport="verbs"))
    check_ranges(folder, packets, some_ranges(folder))

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(QueuePair, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            packets.read([(0, 1, 9)])
    world.wait_for_no_pairs()
    check_ranges(folder, packets, some_ranges(folder))

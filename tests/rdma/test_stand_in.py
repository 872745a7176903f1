"""Loaders over the RDMA transport, with a stand-in for the device.

Their batches equal the batches of the folder.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import logging
import os
import pickle
import sys
import threading
import time

import numpy as np
import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.client.shard_directory import ClusterManifest, ShardDirectory
from gear_data.cluster.flight import grpc_fork
from gear_data.cluster.flight import server as server_module
from gear_data.cluster.flight.fetch import FlightFetch
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.rdma import client as client_module
from gear_data.cluster.rdma import fetch as fetch_module
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.fetch import RdmaFetch
from gear_data.cluster.rdma.reads import span_read as span_read_module
from gear_data.cluster.rdma.server import RdmaServer
from gear_data.cluster.run_credentials import RunCredentials
from gear_data.cluster.server import node_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.secret import Secret
from gear_data.errors import CorruptShardError, InvalidArgumentError, NodeRefusedError, NodeUnreachableError
from gear_data.loaders.presets.outputs import PRESETS
from gear_data.loaders.tuning.config_file import columns_of, write_config
from gear_data.loaders.tuning.setting import Setting
from gear_data.storage.dataset_files import open_files
from tests.support.feed import data as feed_data
from tests.support.feed import variable as variable_data
from tests.support.feed.arguments import grouped
from tests.support.rdma import stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return feed_data.shared_out(tmp_path_factory.mktemp("verbs") / "d")


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verbs") / "t"
    variable_data.convert(variable_data.make_episodes([3, 1, 9, 6, 2, 7, 12] * 3), folder, shard_bytes=1024)
    return folder


def url(*places):
    return "gear://" + ",".join(places)


def batches(dataset, count=4, **options):
    loader = SequenceLoader(dataset, **grouped(**{"batch_size": 16, "context": 8, "seed": 3, "prefetch": 0, **options}))
    # Copies: a batch that is kept would prevent the reuse of its buffer.
    return [copied(batch) for batch in itertools.islice(loader, count)]


def copied(value):
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def same(value, other):
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        for key in value:
            same(value[key], other[key])
    elif isinstance(value, list):
        for one, two in zip(value, other, strict=True):
            same(one, two)
    elif isinstance(value, torch.Tensor):
        one, two = (np.atleast_1d(t.view(torch.int16) if t.dtype == torch.bfloat16 else t) for t in (value, other))
        assert (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    else:
        assert value == other


OPTIONS = {
    "plain": {},
    "shuffled, prefetched": {"sampler": "shuffle", "prefetch": 2},
    "half, normalised": {"dtype": "bfloat16", "normalize": True},
    "around": {"offsets": {"observations": (-5, 2), "actions": (3, 9)}, "columns": ["observations", "actions"]},
}


def test_every_preset_gives_the_local_batches(folder, serve, world):
    local = gear_data.open(folder)
    half = len(local.manifest.shards) // 2
    remote = gear_data.open(url(serve(range(half)), serve(range(half, len(local.manifest.shards)))), transport="verbs")
    supported = 0
    for preset, options in itertools.product(PRESETS, OPTIONS.values()):
        try:
            expected = batches(local, preset=preset, **options)
        except gear_data.GearError:
            continue
        supported += 1
        same(batches(remote, preset=preset, **options), expected)
    assert supported > len(PRESETS)
    assert len(world.reads) > 1000 and max(world.posts) > 1
    same({"x": torch.tensor(remote.steps("rewards", 1, 9))}, {"x": torch.tensor(local.steps("rewards", 1, 9))})


def test_auto_uses_rdma_and_flight_does_not(folder, serve, world, monkeypatch):
    local, place = gear_data.open(folder), url(serve())
    for transport, reads in (("flight", False), ("auto", True)):
        same(batches(gear_data.open(place, transport=transport)), batches(local))
        assert bool(world.reads) == reads
    with monkeypatch.context() as patch:
        # RDMA has no checksums: `auto` reads by Flight, and `verbs` is refused.
        patch.setenv("GEAR_DATA_CHECKSUM", "1")
        before = len(world.reads)
        same(batches(gear_data.open(place)), batches(local))
        assert len(world.reads) == before
        with pytest.raises(InvalidArgumentError, match="RDMA responses have no checksum"):
            gear_data.open(place, transport="verbs")
    plain = url(serve(transport="flight"))
    same(batches(gear_data.open(plain)), batches(local))
    with pytest.raises(NodeRefusedError, match="does not offer RDMA"):
        gear_data.open(plain, transport="verbs")


@pytest.mark.parametrize(
    ("transport", "residency", "offered"),
    [("verbs", "host", True), ("auto", "host", True), ("auto", "mmap", False), ("flight", "host", False)],
)
def test_a_node_without_shards_offers_rdma_for_later_ones(folder, world, transport, residency, offered):
    run = RunCredentials("n", Secret(b"0123456789abcdef"))
    config = node_server.ServerConfig(str(folder), None, None, residency, transport, (), "127.0.0.1", 0, run)
    server, info = node_server._open_server(config)
    server.shutdown()
    assert info.verbs == offered
    # As long as it has no shards, clients do not ask it for queue pairs.
    manifest, peers = gear_data.open(folder).manifest, [Peer(info.address, ClientOptions.from_environment())] * 2
    known = ClusterManifest(manifest, (frozenset(range(len(manifest.shards))), frozenset()), (info.verbs, info.verbs))
    assert ShardDirectory(peers, transport, known).rdma_peers == ({0} if offered else set())


def test_more_windows_than_a_queue_holds(folder, serve, world):
    """The stand-in's queue holds 256 requests, and one in 64 requests a completion."""
    local, remote = gear_data.open(folder), gear_data.open(url(serve()), transport="verbs")
    options = {"batch_size": 700, "context": 20}
    same(batches(remote, 2, **options), batches(local, 2, **options))
    assert max(world.posts) == 256


def test_failed_reads_fall_back_to_flight_or_raise(folder, serve, world, caplog, monkeypatch):
    place, expected = url(serve()), batches(gear_data.open(folder))
    auto, verbs = gear_data.open(place), gear_data.open(place, transport="verbs")
    same(batches(auto), expected)
    world.broken = True
    with caplog.at_level(logging.WARNING, "gear_data"):
        same(batches(auto), expected)
    (record,) = caplog.records
    assert "did not answer" in record.message and "by Arrow Flight" in record.message
    with pytest.raises(NodeUnreachableError, match=r"RDMA READ failed: the peer did not answer.*no other node gives"):
        batches(verbs)
    world.broken = False
    same(batches(verbs), expected)


@pytest.fixture
def three_pairs(monkeypatch):
    monkeypatch.setenv("GEAR_DATA_RDMA_QUEUE_PAIRS", "3")


def test_reads_are_split_over_the_queue_pairs(folder, serve, world, three_pairs):
    local, remote = gear_data.open(folder), gear_data.open(url(serve()), transport="verbs")
    options = {"batch_size": 700, "context": 20}
    same(batches(remote, 2, **options), batches(local, 2, **options))
    # Three queue pairs at each end.
    assert len(world.read_by) == 3 and len(world.pairs) == 6
    assert min(world.read_by.values()) > 0.3 * world.read_by.total()


def test_queue_pairs_are_tuned(folder, serve, world, tmp_path):
    local, remote = gear_data.open(folder), gear_data.open(url(serve()), transport="verbs")
    report = gear_data.tune(remote, step_ms=0, seconds=1, batch_size=700, num_workers=0, progress=False)
    tried = {each.setting.queue_pairs for each in report.outcome.candidates}
    assert tried == {1, 2, 4, 8} and {"residency"} < report.left_out.keys()
    columns, path = columns_of(remote), tmp_path / "loader.json"
    write_config(path, Setting(queue_pairs=4, prefetch=0), {"batch_size": 700}, columns, {})
    world.read_by.clear()
    loader = SequenceLoader.from_config(remote, path, seed=3)
    same([copied(batch) for batch in itertools.islice(loader, 2)], batches(local, 2, batch_size=700, context=20))
    assert len(world.read_by) == 4
    # A process that opens the dataset again, such as a spawned worker, has as many.
    assert pickle.loads(pickle.dumps(loader.dataset)).store.files._queue_pairs == 4


def test_one_failed_queue_pair_closes_all(folder, serve, world, three_pairs, monkeypatch):
    expected, remote = batches(gear_data.open(folder)), gear_data.open(url(serve()), transport="verbs")
    same(batches(remote), expected)
    pairs, last = set(world.read_by), max(world.read_by)
    assert len(pairs) == 3 and pairs < world.pairs
    read, acquire, open_pairs = stand_in.VerbsCalls._read, RdmaFetch._acquire, []

    def recording_acquire(fetch):
        open_pairs.append(pairs & world.pairs)
        return acquire(fetch)

    monkeypatch.setattr(RdmaFetch, "_acquire", recording_acquire)
    monkeypatch.setattr(
        stand_in.VerbsCalls, "_read", lambda self, request: 12 if self._pair.number == last else read(self, request)
    )
    same(batches(remote), expected)
    # First the idle connection. Before everything is read again over another one, the old queue pairs are closed.
    assert open_pairs[:2] == [pairs, set()]


def no_flight(*arguments):
    raise AssertionError("read by Arrow Flight")


TEXT_COLUMNS = [variable_data.TEXT, variable_data.IMAGE, "observations"]


@pytest.mark.parametrize("pairs", ["1", "3"])
def test_text_and_images(text_folder, serve, world, monkeypatch, pairs):
    monkeypatch.setenv("GEAR_DATA_RDMA_QUEUE_PAIRS", pairs)
    monkeypatch.setattr(FlightFetch, "_acquire", no_flight)
    local = gear_data.open(text_folder)
    half = len(local.manifest.shards) // 2
    places = serve(range(half), folder=text_folder), serve(range(half, len(local.manifest.shards)), folder=text_folder)
    remote = gear_data.open(url(*places), transport="verbs")
    for options in ({}, {"context": 1, "batch_size": 300}, {"prefetch": 2, "sampler": "shuffle"}):
        options = {"columns": TEXT_COLUMNS, **options}
        same(batches(remote, **options), batches(local, **options))
    for name in TEXT_COLUMNS[:2]:
        assert remote.steps(name, 1, 20).tolist() == local.steps(name, 1, 20).tolist()
        assert any(remote.steps(name, 1, 20))
    assert len(world.reads) > 100


def test_damaged_text(text_folder, serve, world):
    served = ShardServer(open_files(text_folder), None, "host")
    index = [spec.name for spec in served.manifest.schema].index(variable_data.TEXT)
    remote = gear_data.open(url(serve(folder=text_folder)), transport="verbs")
    expected = remote.steps(variable_data.TEXT, 0, 20).tolist()
    server_regions = {region[:2] for region in world.regions.values()}
    sizes = served.column_memory()[1][:, index, 0]
    offsets = [(start, size) for start, size in server_regions if size in sizes.tolist()]

    def spoil(remote, local, size):
        if any(start <= remote < start + length for start, length in offsets):
            (ctypes.c_int64 * (size // 8)).from_address(local)[size // 8 - 1] = 1 << 40

    world.spoil = spoil
    with pytest.raises(CorruptShardError, match=r"gear://127.*damaged values: offsets of shards/.* no other node"):
        remote.steps(variable_data.TEXT, 0, 20)
    world.spoil = None
    assert remote.steps(variable_data.TEXT, 0, 20).tolist() == expected


def test_more_text_than_the_limit(text_folder, serve, world, monkeypatch):
    remote = gear_data.open(url(serve(folder=text_folder)), transport="verbs")
    monkeypatch.setattr(span_read_module, "MAX_RESPONSE_BYTES", 50)
    with pytest.raises(InvalidArgumentError, match="bytes of text in one batch"):
        remote.steps(variable_data.IMAGE, 0, 20)
    world.wait_for_no_pairs()


def test_a_read_that_does_not_complete(folder, serve, world, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "60")
    verbs = gear_data.open(url(serve()), transport="verbs")
    batches(verbs)  # connects, which may take longer
    monkeypatch.setattr(fetch_module, "_RDMA_SHARE", 0.25 / 60)
    monkeypatch.setattr(stand_in.VerbsCalls, "poll", lambda *arguments: 0)
    with pytest.raises(NodeUnreachableError, match=r"RDMA READ did not complete within 0.25 s"):
        batches(verbs)
    world.wait_for_no_pairs()


def test_queue_pairs_that_do_not_connect(folder, serve, world, monkeypatch):
    """Half of the timeout is left for Arrow Flight."""
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "8")
    grant, released = RdmaServer.grant, threading.Event()

    def hang(server, clients):
        assert released.wait(60)
        return grant(server, clients)

    monkeypatch.setattr(RdmaServer, "grant", hang)
    node = serve()
    same(batches(gear_data.open(url(node), transport="auto")), batches(gear_data.open(folder)))
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="did not answer within 8 s"):
        batches(gear_data.open(url(node), transport="verbs"))
    assert time.monotonic() - begun < 7.9
    released.set()


def test_a_node_that_hangs_with_its_queue_pairs(folder, serve, world, monkeypatch):
    """The timeout counts once over RDMA and Arrow Flight."""
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "5")
    released = threading.Event()
    automatic = gear_data.open(url(serve()), transport="auto")

    def hang(server, *arguments):
        assert released.wait(60)

    monkeypatch.setattr(FlightServer, "do_exchange", hang)
    monkeypatch.setattr(FlightServer, "do_action", hang)
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="did not answer within 5 s"):
        batches(automatic)
    assert time.monotonic() - begun < 9.9
    released.set()


def test_no_connection_waits_for_a_process_that_hangs(folder, serve, world, monkeypatch):
    """More threads read than connections are kept: the others are closed after each batch."""
    released = threading.Event()
    monkeypatch.setattr(server_module, "next_chunk", lambda reader: released.wait(60))
    monkeypatch.setattr(client_module, "_MAX_IDLE_CONNECTIONS", 0)
    abandon, abandoned = RdmaConnection.abandon, []
    monkeypatch.setattr(RdmaConnection, "abandon", lambda self: (abandoned.append(self), abandon(self)))
    verbs, expected = gear_data.open(url(serve()), transport="verbs"), batches(gear_data.open(folder), 1)
    try:
        same(batches(verbs, 1), expected)
        assert abandoned
    finally:
        released.set()


def test_an_interrupt_leaves_nothing_in_flight(folder, serve, world, monkeypatch):
    verbs = gear_data.open(url(serve()), transport="verbs")
    batches(verbs)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stand_in.VerbsCalls, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batches(verbs)
    world.wait_for_no_pairs()
    same(batches(verbs), batches(gear_data.open(folder)))


def test_reading_after_a_fork(folder, serve, world):
    verbs, expected = gear_data.open(url(serve()), transport="verbs"), batches(gear_data.open(folder))
    same(batches(verbs), expected)
    store = verbs.store
    assert store._client._transports.rdma._open
    child = os.fork()
    if child == 0:
        # The parent's device is closed: the child cannot use a device that the parent mapped.
        os._exit(1 if store._client._transports.rdma._open else 0)
    assert os.waitpid(child, 0)[1] == 0
    same(batches(verbs), expected)


def test_a_thread_reads_on_while_the_process_ends(folder, serve, world, monkeypatch):
    """Whatever ends such threads may come later. Until then, they use their queue pairs and memory."""
    verbs, expected = gear_data.open(url(serve()), transport="verbs"), batches(gear_data.open(folder))
    same(batches(verbs), expected)
    rdma, poll, kept = verbs.store._client._transports.rdma, stand_in.VerbsCalls.poll, []
    (opened,) = rdma._open

    def ending(calls, *arguments):
        grpc_fork._close_at_exit()
        kept.append(rdma._open == [opened] and bool(opened.memory._regions) and calls._pair.number in world.pairs)
        return poll(calls, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(grpc_fork, "_ends", False)
        patch.setattr(stand_in.VerbsCalls, "poll", ending)
        same(batches(verbs), expected)
    assert kept and all(kept)
    grpc_fork._close_all()
    assert not rdma._open


def test_a_device_that_fails_before_its_memory_is_deregistered(folder, world, monkeypatch):
    """A server that lets go of a generation goes on, and so does a process that forks."""
    server = RdmaServer(ShardServer(open_files(folder), None, "host"), needs_videos=False)
    close, error = sys.modules["pyverbs.mr"].MR.close, sys.modules["pyverbs.pyverbs_error"].PyverbsError

    def fail(region):
        close(region)
        raise error("failed to dereg MR")

    monkeypatch.setattr(sys.modules["pyverbs.mr"].MR, "close", fail)
    assert world.regions
    server.close()
    assert not world.regions


def test_regions_end_with_their_memory(folder, serve, world, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_IDLE_CONNECTIONS", 1)
    verbs = gear_data.open(url(serve()), transport="verbs")
    before = len(world.regions)
    for context in range(3, 9):
        batches(verbs, 2, context=context)
        gc.collect()
    # At most one staging buffer remains: the buffers of the loaders are freed with them.
    assert before <= len(world.regions) <= before + 1

"""A request that follows an interrupted one is answered."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.cancellation import Cancellation, Cancelled
from gear_data.storage.dataset_files import open_files
from tests.support.feed import data as feed_data
from tests.support.running.eventually import eventually
from tests.support.running.interrupts import interrupted

WAIT = 60.0
REQUEST = Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([2])),))


class CountingServer(FlightServer):
    """A server that knows its open streams, and answers while `may_answer` is set."""

    def __init__(self, folder: Path) -> None:
        self.streams: set[object] = set()
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()
        shards = ShardServer(open_files(folder))
        answer = shards.answer

        def wait_and_answer(request):
            self.asked.release()
            assert self.may_answer.wait(WAIT)
            return answer(request)

        shards.answer = wait_and_answer
        super().__init__(shards, Address("127.0.0.1", 0), ServerCredentials())

    def do_exchange(self, context, descriptor, reader, writer):
        stream = object()
        self.streams.add(stream)
        try:
            super().do_exchange(context, descriptor, reader, writer)
        finally:
            self.streams.discard(stream)


@pytest.fixture
def server(tmp_path: Path) -> CountingServer:
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path / "d")
    return CountingServer(tmp_path / "d")


def new_client(server: FlightServer) -> ShardClient:
    return ShardClient([Address("127.0.0.1", server.port)], ClientOptions(None, None, WAIT))


def rows(client: ShardClient) -> bytes:
    (found,) = client.fetch(REQUEST)
    return b"".join(part.tobytes() for part in found.parts)


@pytest.mark.parametrize("connected", [True, False])
def test_a_request_after_an_interrupt_at_any_moment_is_answered(server: CountingServer, connected: bool) -> None:
    """Nothing is read over a connection whose request was interrupted, and none is left open."""
    client = new_client(server)
    expected = rows(client)
    (peer,) = client._directory.peers
    moments = 0

    def read() -> None:
        if not connected:
            peer.close_idle()
        rows(client)

    while interrupted(read, moments):
        assert rows(client) == expected
        moments += 1
    assert moments > 300
    assert not peer._busy
    assert eventually(lambda: len(server.streams) == len(peer._idle) == 1)
    peer.close_idle()
    server.shutdown()


def test_a_request_of_another_thread_is_answered_while_one_is_interrupted(server: CountingServer) -> None:
    """The interrupted one must not count as a timeout, after which the peer is given up for all."""
    client = new_client(server)
    expected = rows(client)
    server.may_answer.clear()
    cancellation, found, ended = Cancellation(), [], []

    def read() -> None:
        found.append(rows(client))

    def read_until_cancelled() -> None:
        with cancellation.active(), pytest.raises(Cancelled):
            rows(client)
        ended.append(True)

    threads = [threading.Thread(target=each) for each in (read, read_until_cancelled)]
    server.asked = threading.Semaphore(0)
    for thread in threads:
        thread.start()
    for _ in threads:
        assert server.asked.acquire(timeout=WAIT)
    cancellation.cancel()
    threads[1].join(WAIT)
    assert ended
    server.may_answer.set()
    threads[0].join(WAIT)
    assert found == [expected]
    client._directory.peers[0].close_idle()
    server.shutdown()

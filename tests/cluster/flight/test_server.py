"""Servers that cannot start give the reason, and servers know when they were used."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.storage.dataset_files import open_files
from tests.support.feed import data as feed_data
from tests.support.running.eventually import eventually


def test_a_server_is_in_use_while_it_answers(tmp_path, monkeypatch):
    """A server that its ranks left does not end during a long answer."""
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path / "d")
    shards = ShardServer(open_files(tmp_path / "d"))
    answering, go_on, answer = threading.Event(), threading.Event(), ShardServer.answer

    def slow(self, request):
        answering.set()
        assert go_on.wait(60)
        return answer(self, request)

    monkeypatch.setattr(ShardServer, "answer", slow)
    server = FlightServer(shards, Address("127.0.0.1", 0), ServerCredentials())
    peer = Peer(Address("127.0.0.1", server.port), ClientOptions(None, None, 60.0))
    stream, _ = peer.acquire_stream(peer.describe().dataset)
    stream.post(Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([2])),)).to_bytes())
    assert answering.wait(60)
    begun = time.monotonic()
    assert server.last_used >= begun
    go_on.set()
    stream.take()
    assert eventually(lambda: begun < server.last_used < time.monotonic() - 0.1)
    peer.abandon_stream(stream)
    server.shutdown()


def test_servers_that_cannot_start(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path / "d")
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "pem").write_text("not a certificate")
    tls = ["--tls-cert", tmp_path / "pem", "--tls-key", tmp_path / "pem", "--token-file", tmp_path / "token"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            (f"127.0.0.1:{port}", [], f"cannot listen at 127.0.0.1:{port}: Address already in use"),
            # An address of a network for documentation only: RFC 5737.
            ("192.0.2.1:0", tls, "cannot listen at 192.0.2.1:0: Cannot assign requested address"),
            ("127.0.0.1:0", tls, "cannot serve at 127.0.0.1:0: its certificate or key is invalid"),
        ]
        command = [sys.executable, "-m", "gear_data.cli", "serve", tmp_path / "d", "--listen"]
        started = [
            subprocess.Popen([*command, place, *options], stderr=subprocess.PIPE, text=True)
            for place, options, _ in cases
        ]
        try:
            for process, (_, _, expected) in zip(started, cases, strict=True):
                output = process.communicate(timeout=60)[1]
                assert expected in output and "Traceback" not in output, output
                assert process.returncode == 1
        finally:
            for process in started:
                process.kill()
                process.communicate()

"""Waits of clients that have no cluster around them."""

from __future__ import annotations

import socket
import time

import pytest

from gear_data.cluster.addresses import Access, Address
from gear_data.cluster.flight_client import Endpoint, Stream
from gear_data.errors import NodeUnreachableError


def test_a_stream_to_a_host_that_takes_connections_and_says_nothing():
    """As a process that was stopped does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        begun = time.monotonic()
        with pytest.raises(NodeUnreachableError) as error:
            Stream(Endpoint(address, Access(None, None, 1.5)), b"")
        assert time.monotonic() - begun < 10
        assert error.value.file == f"gear://{address}"

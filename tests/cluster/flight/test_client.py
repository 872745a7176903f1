"""Responses and timeouts of single streams."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.protocol import STREAM_SCHEMA
from gear_data.errors import NodeRefusedError, NodeUnreachableError


def test_a_stream_to_a_host_that_accepts_connections_and_never_answers():
    """A stopped process behaves like this."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        begun = time.monotonic()
        with pytest.raises(NodeUnreachableError) as error:
            Stream(Endpoint(address, ClientOptions(None, None, 1.5)), b"")
        assert time.monotonic() - begun < 10
        assert error.value.file == f"gear://{address}"


class FixedServer(flight.FlightServerBase):
    """Answers the first message with a fixed one."""

    def __init__(self, values, head):
        super().__init__("grpc://127.0.0.1:0")
        schema = STREAM_SCHEMA if values.type == pa.uint8() else pa.schema([("bytes", values.type)])
        self._batch, self._head = pa.record_batch([values], schema=schema), head
        threading.Thread(target=self.serve, daemon=True).start()

    def do_exchange(self, context, descriptor, reader, writer):
        writer.begin(self._batch.schema)
        reader.read_chunk()
        writer.write_with_metadata(self._batch, self._head)


def words(*sizes):
    return np.array(sizes, np.int64).tobytes()


BYTES = pa.array(range(64), pa.uint8())


@pytest.mark.parametrize(
    ("values", "head"),
    [
        (BYTES, b"123"),
        (BYTES, b""),
        (pa.array(range(64), pa.int64()), words(64)),
        (pa.array(["x"] * 64), words(64)),
        (pa.nulls(64), words(64)),
    ],
    ids=["no words", "no sizes", "numbers", "text", "nulls"],
)
def test_an_invalid_response(values, head):
    with FixedServer(values, head) as server:
        stream = Stream(Endpoint(Address("127.0.0.1", server.port), ClientOptions(None, None, 2.0)), b"")
        try:
            stream.post(b"rows")
            with pytest.raises(NodeRefusedError, match="answers with") as error:
                stream.take()
            assert error.value.file == f"gear://127.0.0.1:{server.port}"
        finally:
            stream.close()


def test_a_timeout_of_months():
    with FixedServer(BYTES, words(64)) as server:
        stream = Stream(Endpoint(Address("127.0.0.1", server.port), ClientOptions(None, None, 1e7)), b"")
        stream.post(b"rows")
        assert stream.take()[0].tolist() == list(range(64))
        stream.close()


def test_a_stream_that_is_closed_before_its_timeout_cancels_it():
    with FixedServer(BYTES, words(64)) as server:
        stream = Stream(Endpoint(Address("127.0.0.1", server.port), ClientOptions(None, None, 2.0)), b"")
        stream.close()
        # The deadline thread does this, and must survive it.
        stream.cancel()
        assert stream.timed_out

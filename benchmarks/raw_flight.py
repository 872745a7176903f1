"""Raw Arrow Flight on this machine: the baseline for everything built on it.

    python benchmarks/raw_flight.py

serves prepared bytes, and prints its port.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
MAX_BYTES = 16 << 20
#: Responses before those that are timed.
WARM_RESPONSES = 10


def _batch(values: Any) -> pa.RecordBatch:
    array = pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(values)], null_count=0)
    return pa.RecordBatch.from_arrays([array], schema=SCHEMA)


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._bytes = np.random.default_rng(0).integers(0, 255, MAX_BYTES).astype(np.uint8)

    def do_get(self, context: Any, ticket: Any) -> Any:
        size, count = map(int, ticket.ticket.split())
        batch = _batch(self._bytes[:size])
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(SCHEMA, (batch for _ in range(count))))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        batch = _batch(self._bytes[: int(descriptor.command)])
        writer.begin(SCHEMA)
        while True:
            try:
                reader.read_chunk()
            except StopIteration:
                return
            writer.write_with_metadata(batch, b"x" * 64)


class RawFlight:
    """A server process, and measurements of it."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self._process.stdout is None:
            raise RuntimeError("the server process has no pipe")
        self._port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _connect(self) -> Any:
        return flight.connect(f"grpc://127.0.0.1:{self._port}", generic_options=[("grpc.use_local_subchannel_pool", 1)])

    def bulk(self, message_bytes: int, total_bytes: int) -> float:
        """Returns the bytes per second of one stream of messages of `message_bytes`.

        A stream before it connects, and widens the windows of the connection.
        """
        ticket = flight.Ticket(f"{message_bytes} {total_bytes // message_bytes}".encode())
        client = self._connect()
        try:
            for _ in range(2):
                begun = time.perf_counter()
                received = sum(chunk.data.num_rows for chunk in client.do_get(ticket))
                seconds = time.perf_counter() - begun
            return received / seconds
        finally:
            client.close()

    def seconds_per_response(self, response_bytes: int, request_bytes: int, count: int, in_flight: int) -> float:
        """Returns the seconds per response on one stream, after some responses.

        `in_flight` requests are sent at once.
        """
        client = self._connect()
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(str(response_bytes).encode()))
        try:
            writer.begin(SCHEMA)
            request = b"q" * request_bytes
            for _ in range(WARM_RESPONSES):
                writer.write_metadata(request)
                reader.read_chunk()
            begun = time.perf_counter()
            for _ in range(in_flight):
                writer.write_metadata(request)
            for number in range(count):
                reader.read_chunk()
                if number < count - in_flight:
                    writer.write_metadata(request)
            return (time.perf_counter() - begun) / count
        finally:
            writer.done_writing()
            writer.close()
            client.close()


if __name__ == "__main__":
    server = _Server()
    print(server.port, flush=True)
    server.serve()

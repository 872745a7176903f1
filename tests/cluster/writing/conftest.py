"""A server for writers, which keeps episodes in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gear_data.cluster.writing.server import WriteServer
from tests.support.cluster.write_server import MemoryLog, serve


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def server(log: MemoryLog) -> Iterator[WriteServer]:
    server = serve(log)
    yield server
    server.shutdown()

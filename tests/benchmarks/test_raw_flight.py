"""The baseline of benchmarks/cluster.py is measured on a warm connection, as gear-data is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from raw_flight import RawFlight

COLD_SECONDS = 0.5


class Connection:
    """Stands in for a client, and for its stream. Its first answer is late."""

    def __init__(self) -> None:
        self._cold = True

    def _answer(self) -> None:
        if self._cold:
            time.sleep(COLD_SECONDS)
        self._cold = False

    def do_get(self, ticket: Any) -> Any:
        self._answer()
        size, count = map(int, ticket.ticket.split())
        return [SimpleNamespace(data=SimpleNamespace(num_rows=size))] * count

    def do_exchange(self, descriptor: Any) -> tuple[Any, Any]:
        return self, self

    def read_chunk(self) -> None:
        self._answer()

    def begin(self, schema: Any) -> None: ...

    def write_metadata(self, request: bytes) -> None: ...

    def done_writing(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> RawFlight:
    monkeypatch.setattr(RawFlight, "_connect", lambda _: Connection())
    return object.__new__(RawFlight)  # without a server


def test_streams_are_measured_on_a_warm_connection(raw: RawFlight) -> None:
    assert raw.bulk(10, 1000) > 1000 / COLD_SECONDS


def test_responses_are_measured_on_a_warm_stream(raw: RawFlight) -> None:
    assert raw.seconds_per_response(100, 10, 2, 1) < COLD_SECONDS / 2

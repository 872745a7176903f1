"""A server of a bucket: moto's S3 server, or the one that a test chooses by `EVERY_STORE`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gear_data.common import retry
from tests.support.buckets.kinds import bucket_server
from tests.support.buckets.server import BucketServer


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest) -> Iterator[BucketServer]:
    with bucket_server(getattr(request, "param", "s3")) as server:
        yield server


@pytest.fixture
def server(module_server: BucketServer) -> Iterator[BucketServer]:
    yield module_server
    module_server.reset()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine: its journals, its cache, and short waits."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "journals"))
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def url(server: BucketServer, tmp_path: Path) -> str:
    return f"{server.scheme}://bucket/{tmp_path.name}/live"

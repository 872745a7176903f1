"""An S3 server, and episodes that say who recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gear_data.common import retry
from tests.support.s3.server import S3Server, s3_server


@pytest.fixture(scope="module")
def module_server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def server(module_server: S3Server) -> Iterator[S3Server]:
    yield module_server
    module_server.reset()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine: its journals, its cache, and short waits."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "journals"))
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def url(server: S3Server, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}/live"

"""Fixtures for tests of remote files: an S3 server, and a remote dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from gear_data.common import retry
from tests.support.remote import CuttingProxy, upload


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "default-cache"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Yields the address of an S3 server with a bucket `bucket`."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            # Disables the retries of botocore and s3fs, which wait for seconds.
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        # fsspec caches file systems by their arguments, which do not include the endpoint of another module's server.
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
        yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(endpoint: str, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def through_proxy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[int]], CuttingProxy]]:
    """Yields a function that routes fsspec through a proxy, which cuts connections."""
    proxies = []

    def make(cuts: list[int]) -> CuttingProxy:
        proxies.append(CuttingProxy(endpoint, cuts))
        # fsspec creates a new file system for a new configuration.
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": proxies[-1].url})
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def remote(memory_url: str, rollouts_path: Path) -> str:
    """Returns the URL of the dataset `rollouts`, which a test may change."""
    upload(rollouts_path, memory_url)
    return memory_url

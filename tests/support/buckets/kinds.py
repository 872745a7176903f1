"""The kinds of stores that have conditional puts, and a server of each that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.buckets.azure import AzureServer
from tests.support.buckets.gcs import GcsServer
from tests.support.buckets.s3 import S3Server
from tests.support.buckets.server import BucketServer

SERVERS: dict[str, type[BucketServer]] = {kind.scheme: kind for kind in (S3Server, GcsServer, AzureServer)}
#: Runs a test against each of the servers, whose fixture `module_server` is.
EVERY_STORE = pytest.mark.parametrize("module_server", list(SERVERS), indirect=True)


@contextmanager
def bucket_server(kind: str) -> Iterator[BucketServer]:
    """Runs a server, to which fsspec connects."""
    server = SERVERS[kind]()
    try:
        with server.connected():
            yield server
    finally:
        server.close()

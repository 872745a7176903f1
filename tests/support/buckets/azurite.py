"""Azurite, Microsoft's emulator of Azure Storage, if it is installed: `npm install --global azurite`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from tests.support.buckets.azure import ACCOUNT, KEY, azure_environment

_STARTED = "successfully listens"


@contextmanager
def azurite(folder: Path) -> Iterator[None]:
    """Runs Azurite with a container `bucket`, to which adlfs connects. Skips the test if it is not installed."""
    pytest.importorskip("adlfs")
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on the PATH: npm install --global azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--blobPort", str(port), "--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(
        [command, "--silent", *options],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if _STARTED in line:
                break
        else:
            raise AssertionError(f"azurite-blob ended: {lines}")
        with azure_environment(f"http://127.0.0.1:{port}"):
            fsspec.filesystem("az").mkdir("bucket")
            yield
    finally:
        process.terminate()
        process.communicate()

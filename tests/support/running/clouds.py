"""Servers of Google Cloud Storage and of Azure on this machine, to which fsspec connects.

`make test-clouds` installs them: gcp-storage-emulator of the Python index, and Azurite of the npm registry.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.running.eventually import eventually

#: The name and the key of the account that Azurite knows, of its documentation.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def google_server() -> Iterator[str]:
    """Runs a server of Google Cloud Storage in this process, and yields the URL of a bucket.

    The emulator knows no `ifGenerationMatch`, and does not say which generation it sends. This server does.
    """
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    gcsfs = pytest.importorskip("gcsfs")
    from gcp_storage_emulator.exceptions import NotFound

    class Handler(emulator.RequestHandler):  # type: ignore[misc, name-defined]
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._generation = None
            if parts.path.startswith("/download/"):
                with suppress(NotFound):
                    file = unquote(parts.path.partition("/o/")[2])
                    self._generation = self.storage.get_file_obj("bucket", file)["generation"]
                if parse_qs(parts.query).get("ifGenerationMatch", [self._generation]) != [self._generation]:
                    return self.send_error(404 if self._generation is None else 412)
            super().do_GET()

        def end_headers(self) -> None:
            if getattr(self, "_generation", None) is not None:
                self.send_header("x-goog-generation", self._generation)
            super().end_headers()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "RequestHandler", Handler)
        server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
        server.start()
        port = _port(server)
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        _forget(gcsfs.GCSFileSystem)
        yield "gs://bucket"
        server.stop()
    _forget(gcsfs.GCSFileSystem)


def _port(server: Any) -> int:
    assert eventually(lambda: server._api._httpd is not None)
    port: int = server._api._httpd.server_address[1]
    return port


@contextmanager
def azure_server(folder: Path) -> Iterator[str]:
    """Runs Azurite with its files in a folder, and yields the URL of a container."""
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob") or pytest.skip("needs Azurite: npm install azurite")
    with (folder / "azurite.log").open("w") as log:
        command = [program, "--location", str(folder), "--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        said = folder / "azurite.log"
        assert eventually(lambda: "successfully listens on" in said.read_text(), seconds=60), said.read_text()
        endpoint = said.read_text().partition("successfully listens on ")[2].split()[0]
        with pytest.MonkeyPatch.context() as patch:
            account = f"AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={endpoint}/{_ACCOUNT};"
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{account}")
            _forget(adlfs.AzureBlobFileSystem)
            adlfs.AzureBlobFileSystem().mkdir("container")
            yield "az://container"
        _forget(adlfs.AzureBlobFileSystem)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _forget(kind: Any) -> None:
    # fsspec caches file systems by their arguments, which do not include the endpoint of another server.
    kind.clear_instance_cache()

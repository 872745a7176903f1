"""Servers that take a request and never answer: every request ends with a typed error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest
from huggingface_hub import constants

import gear_data
from gear_data.common import retry
from gear_data.errors import InvalidArgumentError, RemoteError
from gear_data.storage.remote.conditional_store import ConditionalStore
from gear_data.storage.remote.object_store import ObjectStore
from tests.support.hangs import no_hang
from tests.support.s3.recordings import add_episodes, numbers_in
from tests.support.s3.server import S3Server, s3_server

_VARIABLE, _SECONDS = "GEAR_DATA_REQUEST_SECONDS", "0.2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yields the address of a server that accepts connections, and does nothing else."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                connections.append(listener.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)  # unlike `close`, this ends `accept`
    listener.close()
    thread.join()
    for connection in connections:
        connection.close()


@pytest.fixture
def silent(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Returns the address of the server, to which all libraries connect. Sets short limits."""
    monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)  # one attempt
    monkeypatch.setattr(constants, "ENDPOINT", address)
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": address})
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": address, "key": "key", "secret": "secret"})
    monkeypatch.setenv(_VARIABLE, _SECONDS)
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "journals"))
    return address


def _put_at_once(url: str, folder: Path) -> None:
    (folder / "file").write_bytes(bytes(1 << 20))
    ObjectStore(url).upload(folder / "file", "a/b")


#: Each kind of request: takes a URL and a folder of this machine.
REQUESTS: dict[str, Callable[[str, Path], Any]] = {
    "read": lambda url, folder: ObjectStore(url).read("a"),
    "size": lambda url, folder: ObjectStore(url).size("a"),
    "etag": lambda url, folder: ObjectStore(url).etag("a"),
    "range": lambda url, folder: ObjectStore(url).reader("a", 100).read(),
    "list": lambda url, folder: ObjectStore(url).files(),
    "open": lambda url, folder: gear_data.open(url),
    "source": lambda url, folder: gear_data.convert(url, folder / "new"),
    "create": lambda url, folder: ObjectStore(url).create("a", "text"),
    "upload": _put_at_once,
    "remove": lambda url, folder: ObjectStore(url).remove("a"),
    "remove all": lambda url, folder: ObjectStore(url).remove_all(["a", "b"]),
    "conditional read": lambda url, folder: ConditionalStore(url).read("a"),
    "conditional put": lambda url, folder: ConditionalStore(url).put("a", b"text", None),
    "conditional check": lambda url, folder: ConditionalStore(url).check(),
    "destination": lambda url, folder: gear_data.convert([{"rewards": [1.0], "actions": [1]}], url),
    "Writer": lambda url, folder: gear_data.Writer(url),
}
_READS = ("read", "size", "range", "list", "open", "source")


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [*(("s3", kind) for kind in REQUESTS), *((scheme, kind) for scheme in ("http", "hf") for kind in _READS)],
)
def test_every_request_has_a_time_limit(silent: str, tmp_path: Path, scheme: str, kind: str) -> None:
    urls = {"s3": "s3://bucket/folder", "http": f"{silent}/folder", "hf": "hf://datasets/owner/name"}
    with no_hang(), pytest.raises(RemoteError, match=r"no answer within (0\.2|1) s; \$GEAR_DATA_REQUEST_SECONDS"):
        REQUESTS[kind](urls[scheme], tmp_path)


def test_the_hub_has_a_time_limit(silent: str, tmp_path: Path) -> None:
    gear_data.convert([{"observations": [[0.0]], "actions": [1], "rewards": [1.0]}], tmp_path / "data")
    for call in (
        lambda: gear_data.push(tmp_path / "data", "owner/name"),
        lambda: gear_data.pull("owner/name", tmp_path / "pulled"),
    ):
        with no_hang(), pytest.raises(RemoteError, match="hf://datasets/owner/name: the hub failed: "):
            call()
    with no_hang(), pytest.raises(RemoteError, match=r"looked up on the hub .* once: TimeoutError: no answer"):
        gear_data.convert("owner/name", tmp_path / "new")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "journals"))
    with s3_server() as server:
        yield server


@pytest.fixture
def fall_silent(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yields a function that sets the limit, and from which on the server does not answer."""
    ended = threading.Event()

    def silence(seconds: str) -> None:
        monkeypatch.setenv(_VARIABLE, seconds)
        monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)
        server.before = lambda method, path: (ended.wait(), None)[1]

    yield silence
    ended.set()


def test_a_server_that_falls_silent(
    fall_silent: Callable[[str], None], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer and the reader go on when it answers again."""
    url = "s3://bucket/live"
    writer = gear_data.Writer(url)
    add_episodes(writer, range(3))
    writer.seal()
    dataset = gear_data.open(url)
    fall_silent(_SECONDS)
    add_episodes(writer, [3])
    for call in (lambda: numbers_in(dataset), dataset.refresh, writer.flush, writer.seal, writer.close):
        with no_hang(), pytest.raises(RemoteError, match="no answer within"):
            call()
    server.reset()
    monkeypatch.setenv(_VARIABLE, "60")
    assert numbers_in(dataset) == [0, 1, 2]
    with gear_data.Writer(url):
        pass
    assert numbers_in(dataset.refresh()) == [0, 1, 2, 3]


def test_a_text_file_whose_server_falls_silent(
    fall_silent: Callable[[str], None], server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """gear-data reads the first bytes twice. Then `datasets` reads the file itself."""
    monkeypatch.setenv(_VARIABLE, "2")
    fsspec.filesystem("s3").pipe_file("bucket/steps.csv", b"action,reward\n" + b"1,0.5\n" * 100)
    reads: list[str] = []

    def silence_after_two_reads(method: str, path: str) -> None:
        if (method, path) == ("GET", "/bucket/steps.csv"):
            reads.append(path)
            if len(reads) == 2:
                fall_silent("2")

    server.before = silence_after_two_reads
    with no_hang(), pytest.raises(RemoteError, match=r"steps\.csv: cannot be read(, tried once)?: TimeoutError: no"):
        gear_data.convert("s3://bucket/steps.csv", tmp_path / "data")


def test_a_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch, memory_url: str) -> None:
    monkeypatch.setenv(_VARIABLE, "soon")
    with pytest.raises(InvalidArgumentError, match="GEAR_DATA_REQUEST_SECONDS is 'soon'"):
        ObjectStore(memory_url).size("a")

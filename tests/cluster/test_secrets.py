"""Secrets stay out of errors, logs, tracebacks with local variables, and command lines."""

from __future__ import annotations

import logging
import secrets
import socket
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import gear_data
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.key_value_store import KeyValueStore
from gear_data.cluster.rank_messages import RankMessages
from gear_data.cluster.rendezvous import ClusterPlan
from gear_data.cluster.run_credentials import VARIABLE_PREFIX, create_run_credentials, run_options
from gear_data.cluster.server.node_server import ServerConfig
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.cluster.server.supervisor import start_server
from gear_data.errors import GearError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster.nodes import NodeProcess
from tests.support.feed import data as feed_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("secrets") / "d"
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31], seed=3), path, shard_bytes=1024)
    return path


@pytest.fixture
def token(tmp_path, monkeypatch):
    """File of a token that this process sends."""
    path = tmp_path / "token"
    path.write_text(secrets.token_hex(32))
    monkeypatch.setenv("GEAR_DATA_TOKEN_FILE", str(path))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "1")
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    return path


def shown(error: BaseException) -> str:
    """The whole chain of an error with the local variables of all frames."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def hides(error: BaseException, *hidden: Path) -> bool:
    """Whether neither the files' contents nor parts of them are shown."""
    text = shown(error)
    assert "Traceback" in text
    return not [path for path in hidden for line in path.read_text().splitlines() if len(line) > 7 and line[4:] in text]


def shows_secret(error: BaseException) -> bool:
    # Here, because a test's assertions would keep the word in its own local variables.
    return "5ecret" in shown(error)


def failure_of_opening(address: str) -> GearError:
    with pytest.raises(GearError) as error:
        gear_data.open(f"gear://{address}")
    return error.value


@pytest.mark.parametrize(
    "text", ["5ecret", "5ecret-5ecret-5ecret-\u00e9", "5ecret 5ecret-5ecret-5ecret", "\ufeff5ecret" * 4]
)
def test_a_token_file_that_is_refused(tmp_path, text):
    (tmp_path / "token").write_text(text, encoding="utf-8")
    del text
    with pytest.raises(GearError) as error:
        read_token(tmp_path / "token")
    assert not shows_secret(error.value)


def test_connections_that_fail(folder, token, tmp_path, monkeypatch):
    (tmp_path / "other").write_text(secrets.token_hex(32))
    (tmp_path / "pem").write_text("not a certificate")
    node = NodeProcess(folder, options=["--token-file", str(tmp_path / "other")])
    try:
        node.wait()
        monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "60")  # this one answers
        errors = [failure_of_opening(node.address)]
        monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "1")
        assert "does not accept the token" in str(errors[0])
        monkeypatch.setenv("GEAR_DATA_TLS_CA", str(tmp_path / "pem"))
        errors.append(failure_of_opening(node.address))  # the authorities are no certificates
        (tmp_path / "pem").write_text(create_run_credentials(tls=True).certificate)
        errors.append(failure_of_opening(node.address))  # the node does not use TLS
        monkeypatch.delenv("GEAR_DATA_TLS_CA")
        node.stop()
        errors.append(failure_of_opening(node.address))
        node.resume()
        # Other options are checked after the token has been read.
        for name, value in (("GEAR_DATA_CHECKSUM", "5"), ("GEAR_DATA_RDMA_QUEUE_PAIRS", "x")):
            monkeypatch.setenv(name, value)
            errors.append(failure_of_opening(node.address))
            monkeypatch.delenv(name)
        # Neither a command line nor the log of a node shows a token.
        line = Path(f"/proc/{node._running.pid}/cmdline").read_text()
        assert "serve" in line and (tmp_path / "other").read_text() not in line
    finally:
        node.kill()
    errors.append(failure_of_opening(node.address))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        errors.append(failure_of_opening(f"127.0.0.1:{silent.getsockname()[1]}"))
    errors.append(failure_of_opening("node.invalid:7000"))
    for error in errors:
        assert hides(error, token, tmp_path / "other")


class MalformedServer(flight.FlightServerBase):
    """Answers the action `describe` and streams with nonsense."""

    def __init__(self, answers):
        super().__init__("grpc://127.0.0.1:0")
        self._answers = answers

    def do_action(self, context, action):
        yield from self._answers

    def do_exchange(self, context, descriptor, reader, writer):
        writer.begin(pa.schema([("x", pa.int8())]))


@pytest.mark.parametrize("answers", [[], [b""], [b"{}"], [b"1", b"2"], [b'{"dataset":"x","shards":[0],"verbs":false}']])
def test_malformed_answers(token, answers):
    with MalformedServer(answers) as server:
        assert hides(failure_of_opening(f"127.0.0.1:{server.port}"), token)


def test_a_stream_that_breaks(folder, token):
    served = ShardServer(open_files(folder))
    server = FlightServer(served, Address("127.0.0.1", 0), ServerCredentials(read_token(token)))
    options = ClientOptions.from_environment()
    client = ShardClient([Address("127.0.0.1", server.port)], options)
    server.shutdown()
    with pytest.raises(GearError) as error:
        client._directory.acquire_stream(0)
    assert hides(error.value, token)
    for name in ("127.0.0.1", "node.invalid"):
        with pytest.raises(GearError) as error:
            Peer(Address(name, 1), options).describe()
        assert hides(error.value, token)


def test_servers_that_do_not_start(folder, token, tmp_path, caplog):
    run = create_run_credentials(tls=True)
    secret = tmp_path / "secret"
    secret.write_bytes(run.token.reveal() + b"\n" + run.key.reveal())
    served, errors = ShardServer(open_files(folder)), []
    malformed = ServerCredentials(run.token, b"not a certificate", run.key)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address, credentials in ((("127.0.0.1", port), run.server()), (("127.0.0.1", 0), malformed)):
            with pytest.raises(GearError) as error:
                FlightServer(served, Address(*address), credentials)
            errors.append(error.value)
        with pytest.raises(GearError) as error:
            ServerCredentials(run.token).check(Address("0.0.0.0", 1))
        errors.append(error.value)
        with caplog.at_level(logging.DEBUG), pytest.raises(GearError) as error:
            start_server(ServerConfig(str(folder), None, None, "mmap", "flight", (0,), "127.0.0.1", port, run), 60.0)
        errors.append(error.value)
    for error in errors:
        assert hides(error, secret)
    assert run.token.reveal().decode() not in caplog.text


def test_credentials_of_a_run(token, tmp_path, monkeypatch):
    import torch

    run = create_run_credentials(tls=True)
    secret = tmp_path / "secret"
    secret.write_bytes(run.token.reveal() + b"\n" + run.key.reveal())
    variable = VARIABLE_PREFIX + run.run
    monkeypatch.setenv(variable, "")
    run.export()
    assert run_options(run.run).token == run.token
    errors = []
    monkeypatch.setenv("GEAR_DATA_CHECKSUM", "7")
    with pytest.raises(GearError) as error:
        run_options(run.run)
    errors.append(error.value)
    monkeypatch.setenv(variable, "{" + run.token.reveal().decode())
    with pytest.raises(GearError, match="does not hold a run's credentials") as error:
        run_options(run.run)
    errors.append(error.value)
    # The plan of rank 0 arrives, and is malformed behind the credentials.
    values = KeyValueStore(torch.distributed.HashStore(), "run/", 0.5)
    values.put("plan", {"nodes": [[0]], "credentials": run, "placement": 1, "owners": {}})
    with pytest.raises(GearError, match="published an invalid value") as error:
        RankMessages(values, "rank 1").read("plan", 0, ClusterPlan)
    errors.append(error.value)
    for error in errors:
        assert hides(error, secret)

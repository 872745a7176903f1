"""The server refuses what it must. Real Flight servers, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyarrow import flight

import gear_data
from gear_data.cli import main
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.writing import connection as connections
from gear_data.cluster.writing import messages
from gear_data.cluster.writing.connection import OutgoingEpisode
from gear_data.cluster.writing.intake import EpisodeIntake
from gear_data.cluster.writing.server import WriteServer
from gear_data.errors import (
    GearError,
    InvalidArgumentError,
    NodeFailedError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.earlier_episodes import earlier_episodes
from gear_data.recording.sealing import FolderPublisher
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.recording.writer import Writer
from gear_data.schema import ColumnSpec
from tests.support.cluster.certificates import self_signed
from tests.support.cluster.write_server import COLUMNS, LIMITS, MemoryLog, add, connection, episode, numbers, serve, url


def test_other_columns_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sent"
    for killed in (True, False, False):  # a restarted server knows the columns, from a journal or from the dataset
        sink = JournalSink(FolderPublisher(folder, SealOptions()), None)
        intake = EpisodeIntake(sink, earlier_episodes(folder), LIMITS)
        server = serve(intake)
        first, second = Writer(url(server)), Writer(url(server))
        first.append(actions=np.zeros(2, np.float32), rewards=1.0)
        first.end_episode(terminated=True)
        with pytest.raises(InvalidArgumentError, match=r"is float32 \[3\], .*have float32 \[2\]") as error:
            second.append(actions=np.zeros(3, np.float32), rewards=1.0)
        assert (error.value.column, error.value.file) == ("actions", url(server))
        with pytest.raises(InvalidArgumentError, match="is missing, and the server's other episodes have float64"):
            second.append(actions=np.zeros(2, np.float32))
        # The order of columns is free.
        second.append(rewards=2.0, actions=np.ones(2, np.float32))
        second.end_episode(terminated=True)
        first.close(), second.close()
        server.shutdown()
        sink._journals._stack.close() if killed else sink.close()
    assert gear_data.open(folder).episodes["return"].to_list() == 3 * [1.0, 2.0]


def test_two_writers_whose_first_steps_differ(server: WriteServer, log: MemoryLog) -> None:
    """The first episode decides. The other writer learns at its first episode that it was late."""
    with Writer(url(server)) as first:
        second = Writer(url(server))
        second.append(actions=1.5)
        first.append(actions=1)
        first.end_episode(terminated=True)
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"is float64 \[\], .*have int64 \[\]"):
                second.end_episode(terminated=True) if second.open_episodes() else second.flush()
    assert numbers(log) == [0]


def test_tokens_and_tls(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that may write is another one than the token that may read."""
    self_signed(tmp_path)
    for name in ("write", "read"):
        (tmp_path / name).write_text(f"{name}-0123456789abcdef")
    credentials = ServerCredentials.from_files(
        read_token(tmp_path / "write"), tmp_path / "node.pem", tmp_path / "node.key"
    )
    server = serve(log, credentials=credentials)
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "5")
    with pytest.raises(NodeUnreachableError):
        Writer(url(server))  # without TLS
    monkeypatch.setenv("GEAR_DATA_TLS_CA", str(tmp_path / "node.pem"))
    monkeypatch.setenv("GEAR_DATA_TOKEN_FILE", str(tmp_path / "write"))
    with pytest.raises(NodeRefusedError, match=r"needs a token\n.*GEAR_DATA_WRITE_TOKEN_FILE .*--write-token-file"):
        Writer(url(server))
    monkeypatch.setenv("GEAR_DATA_WRITE_TOKEN_FILE", str(tmp_path / "read"))
    with pytest.raises(NodeRefusedError, match="does not accept the token"):
        Writer(url(server))
    monkeypatch.setenv("GEAR_DATA_WRITE_TOKEN_FILE", str(tmp_path / "write"))
    with Writer(url(server)) as writer:
        add(writer, 0)
    # The token does not read.
    with pytest.raises(NodeRefusedError, match="it serves no dataset"):
        gear_data.open(url(server))
    server.shutdown()


def test_options_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    command = ["serve", str(tmp_path / "d"), "--writable", "--listen"]
    for options, expected in (
        (["0.0.0.0:0"], "needs TLS and a token"),
        (["0.0.0.0:0", "--write-token-file", str(tmp_path / "token")], "needs TLS and a token"),
        (["127.0.0.1:0", "--token-file", str(tmp_path / "token")], "leave out --token-file"),
        (["127.0.0.1:0", "--residency", "host", "--keep", "5"], "leave out --residency, --keep"),
        (["127.0.0.1:0", "--max-writers", "0"], "must be at least 1"),
        (["127.0.0.1:0", "--max-steps", "0"], "max_steps must be above 0, not 0"),
        (["127.0.0.1:0", "--min-steps", "5"], "need --publish-every"),
        (["127.0.0.1:0", "--publish-every", "1", "--samples-per-insert", "5"], "give both, or none"),
        (["127.0.0.1:0", "--publish-every", "1", "--samples-error", "5"], "--samples-per-insert and --samples-error"),
    ):
        assert main([*command, *options]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_options_of_writers_need_writable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server without --writable would serve the dataset, and never publish or evict."""
    with Writer(tmp_path / "d") as writer:
        add(writer, 0)
    options = ["--publish-every", "5", "--max-steps", "100"]
    assert main(["serve", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *options]) == 2
    assert "only with --writable: --publish-every, --max-steps" in capsys.readouterr().err


def test_a_url_is_no_folder_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be recorded in ./s3:/bucket/d."""
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "s3://bucket/d", "--writable", "--listen", "127.0.0.1:0", "--max-steps", "0"]) == 2
    assert "not at a URL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_messages_that_are_refused(
    server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to, good = connection(server), episode(0)

    def refusal(expected: str, *episodes: OutgoingEpisode, columns: Sequence[ColumnSpec] = COLUMNS) -> None:
        with pytest.raises(NodeRefusedError, match=expected):
            to.put(columns, episodes)

    refusal("an episode of another writer", replace(good, facts=episode(0, "b").facts))
    refusal("damaged episode: an episode differs from its checksum", replace(good, batch=episode(1).batch))
    refusal("damaged episode", replace(good, facts=b"{}"))
    header = connections.EpisodeHeader
    for change, expected in (
        ({"rows": 6}, "another size than the declared 6 rows"),
        ({"rows": 4}, "another size than the declared 4 rows"),
        ({"rows": 0}, "malformed EpisodeHeader"),
        ({"bytes": -1}, "malformed EpisodeHeader"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(connections, "EpisodeHeader", lambda *fields, c=change: replaced(header(*fields), c))
            refusal(expected, good)
    with monkeypatch.context() as patch:
        patch.setattr(messages, "describe_columns", lambda _: b'[{"name": 1}]')
        refusal("its columns cannot be read", good)
    with monkeypatch.context() as patch:
        patch.setattr(connections, "arrow_schema", lambda _: episode(0).batch.schema.remove(0))
        with pytest.raises(GearError):
            to.put(COLUMNS, [good])
    for client, expected in (("", "malformed WriterHello"), ("a/b", "malformed WriterHello")):
        with pytest.raises(NodeRefusedError, match=expected):
            connection(server, client).hello(())
    with monkeypatch.context() as patch:
        patch.setattr(messages, "VERSION", 7)
        message = messages.writer_hello("a", ())
    with pytest.raises(NodeRefusedError, match=r"takes episodes by version 1 \(.*\), not version 7"):
        to._act(message)
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    for call in (client.list_flights, lambda: client.do_action(flight.Action("file", b""))):
        with pytest.raises(flight.FlightServerError, match="answers only the action writer"):
            list(call())
    assert log.taken == [] and "Traceback" not in caplog.text
    assert to.put(COLUMNS, [good]) == 0


def replaced(header: Any, change: Mapping[str, int]) -> Any:
    return msgspec.structs.replace(header, **change)


def test_an_unexpected_error_shows_no_secrets(server: WriteServer, log: MemoryLog) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("/secret/folder")

    log.fail = fail
    with pytest.raises(NodeFailedError, match="unexpected error, id") as error:
        connection(server).put(COLUMNS, [episode(0)])
    assert "secret" not in str(error.value)

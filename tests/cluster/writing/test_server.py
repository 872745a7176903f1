"""The server refuses what it must, and takes each episode exactly once. Real Flight servers, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyarrow import flight

import gear_data
from gear_data.cli import main
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.writing import connection as connections
from gear_data.cluster.writing import messages
from gear_data.cluster.writing.connection import OutgoingEpisode, WriteConnection, outgoing
from gear_data.cluster.writing.intake import EpisodeIntake, IntakeLimits
from gear_data.cluster.writing.server import WriteServer
from gear_data.errors import (
    DestinationExistsError,
    GearError,
    InvalidArgumentError,
    NodeFailedError,
    NodeRefusedError,
    NodeUnreachableError,
    StorageFullError,
)
from gear_data.recording.earlier_episodes import earlier_episodes, only_server
from gear_data.recording.journal_sink import JournalSink
from gear_data.recording.sealing import SealOptions
from gear_data.recording.writer import Writer
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.episode_log import EarlierEpisodes
from gear_data.storage.journal.record import EpisodeOrigin, RecordedEpisode
from tests.support.cluster.certificates import self_signed
from tests.support.running.eventually import eventually

LIMITS = IntakeLimits(episode_bytes=64 << 20, memory_bytes=128 << 20, calls=8)
NONE = EarlierEpisodes()
NO_CREDENTIALS = ServerCredentials()


@dataclass
class MemoryLog:
    """A log in memory, whose calls can fail or take long."""

    episodes: list[RecordedEpisode] = field(default_factory=list)
    fail: Callable[[str], None] = lambda _: None

    def begin(self, columns: Sequence[ColumnSpec]) -> None:
        self.fail("begin")

    def append(self, episode: RecordedEpisode) -> None:
        self.fail("append")
        values = {name: each.copy() for name, each in episode.columns.items()}
        self.episodes.append(replace(episode, columns=values))

    def sync(self) -> None:
        self.fail("sync")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def server(log: MemoryLog) -> Iterator[WriteServer]:
    server = WriteServer(EpisodeIntake(log, NONE, LIMITS), Address("127.0.0.1", 0), NO_CREDENTIALS)
    yield server
    server.shutdown()


def url(server: WriteServer) -> str:
    return f"gear://127.0.0.1:{server.port}"


def add(writer: Writer, number: int, steps: int = 3) -> None:
    for t in range(steps):
        writer.append(actions=10 * number + t)
    writer.end_episode(terminated=True)


def numbers(log: MemoryLog) -> list[int]:
    return [int(each.columns["actions"][0]) // 10 for each in log.episodes]


def test_other_columns_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sent"
    for killed in (True, False, False):  # a restarted server knows the columns, from a journal or from the dataset
        sink = JournalSink(folder, SealOptions(), None)
        intake = EpisodeIntake(sink, earlier_episodes(folder), LIMITS)
        server = WriteServer(intake, Address("127.0.0.1", 0), NO_CREDENTIALS)
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


def test_sequence_numbers_of_journals_and_of_the_dataset(tmp_path: Path) -> None:
    """A restarted server knows what earlier ones took, whatever became of their journals."""
    folder = tmp_path / "sent"
    for run in range(4):
        # The first writer's journal is taken over by a plain Writer, and so on.
        with only_server(folder):
            with pytest.raises(DestinationExistsError, match="another process is writing here"), only_server(folder):
                pass
            sink = JournalSink(folder, SealOptions(), None)
            server = WriteServer(
                EpisodeIntake(sink, earlier_episodes(folder), LIMITS), Address("127.0.0.1", 0), NO_CREDENTIALS
            )
            to = connection(server)
            assert to.hello(COLUMNS).last == run - 1
            assert to.put(COLUMNS, [episode(number) for number in range(run + 1)]) == run
            server.shutdown()
            if run == 1:
                sink.seal()
            sink._journals._stack.close()  # as if the process had died
        if run == 2:
            Writer(folder).close()
    JournalSink(folder, SealOptions(), None).close()
    ds = gear_data.open(folder)
    assert [int(ds[number]["actions"][0]) for number in range(len(ds))] == [0, 10, 20, 30]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


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


def test_an_episode_that_is_too_large(log: MemoryLog) -> None:
    limits = IntakeLimits(episode_bytes=12 << 20, memory_bytes=12 << 20, calls=8)
    server = WriteServer(EpisodeIntake(log, NONE, limits), Address("127.0.0.1", 0), NO_CREDENTIALS)
    with Writer(url(server)) as writer:
        image = np.arange(1 << 20, dtype=np.uint8)
        for _ in range(14):
            writer.append(image=image)
        with pytest.raises(InvalidArgumentError, match="14,680,064 bytes, and the server takes at most"):
            writer.end_episode(terminated=True)
        writer.discard()
        for t in range(10):  # in two messages
            writer.append(image=image + t)
        writer.end_episode(terminated=True)
    [episode] = log.episodes
    assert np.array_equal(episode.columns["image"], [image + t for t in range(10)])
    server.shutdown()


def test_a_lost_acknowledgement(server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode that is sent again after its acknowledgement was lost makes no second copy."""
    put, lost = WriteServer.do_put, []

    class NoAnswer:
        def write(self, data: object) -> None:
            lost.append(data)
            raise flight.FlightUnavailableError("the connection broke")

    def put_without_answer(self: WriteServer, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        put(self, context, descriptor, reader, NoAnswer() if len(lost) < 2 else writer)

    monkeypatch.setattr(WriteServer, "do_put", put_without_answer)
    monkeypatch.setattr("gear_data.cluster.writing.server.as_flight_errors", lambda: _no_conversion())
    with Writer(url(server)) as writer:
        for number in range(4):
            add(writer, number)
    assert len(lost) == 2
    assert numbers(log) == [0, 1, 2, 3]


class _no_conversion:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_full_disk(server: WriteServer, log: MemoryLog) -> None:
    """The writer gets the server's error. It keeps the episode, and sends it again."""
    full = [True]

    def fail(call: str) -> None:
        if call == "append" and full[0]:
            raise StorageFullError("the disk is full", file="/secret/folder/journal", hint="free some space")

    log.fail = fail
    with Writer(url(server)) as writer:
        for _ in range(2):
            with pytest.raises(StorageFullError, match=r"the disk is full\n.*free some space") as error:
                add(writer, 0) if not writer.episodes else writer.flush()
            assert error.value.file == url(server)
        full[0] = False
        writer.flush()
        add(writer, 1)
    assert numbers(log) == [0, 1]


def test_an_error_that_the_writer_does_not_wait_for(server: WriteServer, log: MemoryLog) -> None:
    """The next episode raises it, and stays open."""
    full = [True]

    def fail(call: str) -> None:
        if call == "append" and full[0]:
            raise StorageFullError("the disk is full")

    log.fail = fail
    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        assert eventually(lambda: writer._sink._sender._error is not None)
        with pytest.raises(StorageFullError):
            add(writer, 1)
        assert writer.open_episodes() == [0] and writer.episodes == 1
        full[0] = False
        writer.end_episode(terminated=True)
    assert numbers(log) == [0, 1]


def test_a_disk_that_fails(server: WriteServer, log: MemoryLog) -> None:
    """After a failed `fsync`, nobody knows what is on the disk. The server takes nothing until it is restarted."""
    calls = []

    def fail(call: str) -> None:
        calls.append(call)
        if calls.count("sync") == 1 and call == "sync":
            raise StorageFullError("the disk is full")

    log.fail = fail
    writer = Writer(url(server))
    for _ in range(3):
        with pytest.raises(StorageFullError):
            add(writer, 0) if not writer.episodes else writer.flush()
    assert calls.count("sync") == 1


def test_a_slow_disk_makes_writers_wait(server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the writer stays bounded, and everything arrives."""
    monkeypatch.setenv("GEAR_DATA_WRITE_BUFFER", str(40 << 10))
    log.fail = lambda call: time.sleep(0.01) if call == "append" else None
    begin = time.monotonic()
    with Writer(url(server), durability="os") as writer:
        for number in range(50):
            writer.append(actions=10 * number, observations=np.zeros(1 << 10))
            writer.end_episode(terminated=True)
            assert writer._sink._sender._bytes <= 40 << 10
        # At most the buffer and the call in flight are missing.
        assert len(log.episodes) >= 50 - 5
    assert time.monotonic() - begin >= 0.45
    assert numbers(log) == list(range(50))


def test_writers_that_send_at_the_same_time(log: MemoryLog) -> None:
    """There are more than the server serves at once. Its memory has room for one episode of each two."""
    limits = IntakeLimits(episode_bytes=1 << 20, memory_bytes=1 << 20, calls=2)
    intake = EpisodeIntake(log, NONE, limits)
    server = WriteServer(intake, Address("127.0.0.1", 0), NO_CREDENTIALS)
    largest = []
    log.fail = lambda _: largest.append(intake._used_bytes)

    def record(writer_number: int) -> None:
        with Writer(url(server), durability="os") as writer:
            for number in range(10):
                writer.append(actions=10 * (10 * writer_number + number), observations=np.zeros(80 << 10))
                writer.end_episode(terminated=True)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(log)
    assert sorted(found) == list(range(50))
    for number in range(5):
        assert [each for each in found if each // 10 == number] == list(range(10 * number, 10 * number + 10))
    assert max(largest) <= 1 << 20
    server.shutdown()


def test_tokens_and_tls(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that may write is another one than the token that may read."""
    self_signed(tmp_path)
    for name in ("write", "read"):
        (tmp_path / name).write_text(f"{name}-0123456789abcdef")
    credentials = ServerCredentials.from_files(
        read_token(tmp_path / "write"), tmp_path / "node.pem", tmp_path / "node.key"
    )
    server = WriteServer(EpisodeIntake(log, NONE, LIMITS), Address("127.0.0.1", 0), credentials)
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
        (["127.0.0.1:0", "--token-file", str(tmp_path / "token")], "leave out --shards and --token-file"),
        (["127.0.0.1:0", "--max-writers", "0"], "must be at least 1"),
    ):
        assert main([*command, *options]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


COLUMNS = (ColumnSpec("actions", "int64"),)


def connection(server: WriteServer, client: str = "a") -> WriteConnection:
    options = ClientOptions(None, None, 10.0)
    return WriteConnection(Endpoint(Address("127.0.0.1", server.port), options), client)


def episode(sequence: int, client: str = "a", steps: int = 5) -> OutgoingEpisode:
    recorded = RecordedEpisode({"actions": np.arange(10 * sequence, 10 * sequence + steps)}, True, False)
    return outgoing(recorded, EpisodeOrigin(client, sequence), COLUMNS)


def test_sequence_numbers(server: WriteServer, log: MemoryLog) -> None:
    to = connection(server)
    assert to.hello(COLUMNS).last == -1
    assert to.put(COLUMNS, [episode(0), episode(1)]) == 1
    assert to.put(COLUMNS, [episode(0), episode(1), episode(2)]) == 2
    assert to.put(COLUMNS, [episode(1)]) == 2
    assert connection(server, "b").put(COLUMNS, [episode(0, "b")]) == 0
    assert (to.hello(()).last, connection(server, "b").hello(()).last) == (2, 0)
    assert numbers(log) == [0, 1, 2, 0]


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
        patch.setattr(connections, "describe_columns", lambda _: b'[{"name": 1}]')
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
        message = messages.writer_hello("a", None)
    with pytest.raises(NodeRefusedError, match=r"takes episodes by version 1 \(.*\), not version 7"):
        to._act(message)
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    for call in (client.list_flights, lambda: client.do_action(flight.Action("file", b""))):
        with pytest.raises(flight.FlightServerError, match="answers only the action writer"):
            list(call())
    assert log.episodes == [] and "Traceback" not in caplog.text
    assert to.put(COLUMNS, [good]) == 0


def test_a_call_that_breaks_before_its_end(server: WriteServer, log: MemoryLog) -> None:
    """What the server took before is acknowledged later, but only after the disk has it."""
    calls: list[str] = []
    log.fail = calls.append
    to = connection(server)
    with pytest.raises(NodeRefusedError):
        to.put(COLUMNS, [episode(0), replace(episode(1), facts=b"{}")])
    assert calls == ["begin", "append"]
    assert to.hello(COLUMNS).last == 0
    assert calls == ["begin", "append", "sync"]


def replaced(header: Any, change: Mapping[str, int]) -> Any:
    return msgspec.structs.replace(header, **change)


def test_an_unexpected_error_shows_no_secrets(server: WriteServer, log: MemoryLog) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("/secret/folder")

    log.fail = fail
    with pytest.raises(NodeFailedError, match="unexpected error, id") as error:
        connection(server).put(COLUMNS, [episode(0)])
    assert "secret" not in str(error.value)


def test_a_closed_intake(log: MemoryLog) -> None:
    intake = EpisodeIntake(log, NONE, LIMITS)
    server = WriteServer(intake, Address("127.0.0.1", 0), NO_CREDENTIALS)
    connection(server).put(COLUMNS, [episode(0)])
    intake.close()
    with pytest.raises(NodeUnreachableError, match="is shutting down"):
        connection(server).put(COLUMNS, [episode(1)])
    assert numbers(log) == [0]
    server.shutdown()

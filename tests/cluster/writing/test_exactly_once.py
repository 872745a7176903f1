"""Whatever breaks, the server takes each episode once. Real Flight servers, in this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import flight

import gear_data
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.writing import sender
from gear_data.cluster.writing.connection import WriteConnection
from gear_data.cluster.writing.intake import EpisodeIntake
from gear_data.cluster.writing.server import WriteServer
from gear_data.errors import (
    DestinationExistsError,
    NodeFailedError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.earlier_episodes import earlier_episodes, only_server
from gear_data.recording.sealing import FolderPublisher
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.recording.writer import Writer
from gear_data.storage.journal.episode_log import EarlierEpisodes
from tests.support.cluster.cutting_proxy import CuttingProxy
from tests.support.cluster.write_server import COLUMNS, LIMITS, MemoryLog, add, connection, episode, numbers, serve, url


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
    monkeypatch.setattr("gear_data.cluster.writing.server.as_flight_errors", lambda _: _no_conversion())
    with Writer(url(server)) as writer:
        for number in range(4):
            add(writer, number)
    assert len(lost) == 2
    assert numbers(log) == [0, 1, 2, 3]


@pytest.mark.parametrize(("forgotten", "arrived"), [(False, 0), (True, 0), (True, 1)])
def test_a_server_that_forgot_a_writer(
    forgotten: bool, arrived: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart, a server that remembers 1,000 others warns of nothing that did not happen."""
    log, answers = MemoryLog(), WriteServer.do_put
    server = serve(log)
    with Writer(url(server), durability="flush") as writer:
        for number in range(2):
            add(writer, number)
        writer.flush()

        def take(self: WriteServer, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            if arrived:
                answers(self, context, descriptor, reader, writer)
            monkeypatch.setattr(WriteServer, "do_put", answers)
            server_was_asked.set()
            raise flight.FlightUnavailableError("the connection broke")

        server_was_asked, restarted = threading.Event(), threading.Event()
        hello = WriteConnection.hello

        def hello_to_the_next_server(self: WriteConnection, columns: Any) -> Any:
            """The Writer tries again a moment later, when the first server may still run."""
            assert restarted.wait(60)
            return hello(self, columns)

        monkeypatch.setattr(WriteConnection, "hello", hello_to_the_next_server)
        monkeypatch.setattr(WriteServer, "do_put", take)
        add(writer, 2)
        assert server_was_asked.wait(30)
        port = server.port
        server.shutdown()
        client = writer._sink._connection.client  # type: ignore[attr-defined]
        earlier = EarlierEpisodes(forgotten=client if forgotten else "")
        server = WriteServer(EpisodeIntake(log, earlier, LIMITS), Address("127.0.0.1", port), ServerCredentials())
        restarted.set()
        writer.flush()
        add(writer, 3)
    server.shutdown()
    assert numbers(log) == [0, 1, 2, *([2] if arrived else []), 3]
    assert ("has lost 2 episodes" in caplog.text) == (not forgotten)
    assert ("1 episodes may be in the dataset twice" in caplog.text) == forgotten


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_machine_that_was_copied_while_its_writer_ran(ahead: int, server: WriteServer, log: MemoryLog) -> None:
    """Two Writers of one id send other episodes: one of them notices it, and no episode is acknowledged in vain."""
    first, second = Writer(url(server)), Writer(url(server))
    second._sink._connection._client_id = first._sink._connection.client  # type: ignore[attr-defined]
    for number in range(1 + ahead):
        add(first, number)
    with pytest.raises(NodeRefusedError, match=r"of this Writer.*the machine of the Writer was copied while it ran"):
        add(second, 7)
    with pytest.raises(NodeRefusedError, match="the machine of the Writer was copied"):
        second.flush()
    add(first, 1 + ahead)
    first.close()
    assert numbers(log) == list(range(2 + ahead))
    second._sink._sender.stop()  # type: ignore[attr-defined]
    second._closed = True


class _no_conversion:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("seed", [1, 2])
def test_connections_that_break(
    server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Episodes and acknowledgements are lost at random points. Every episode arrives once, in order."""
    monkeypatch.setattr(sender, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(sender, "LAST_DELAY", 0.01)
    proxy = CuttingProxy(server.port, cuts=20, most_bytes=40_000, seed=seed)
    while proxy.cuts:
        try:
            writer = Writer(f"gear://127.0.0.1:{proxy.port}", durability="flush")
            break
        except NodeUnreachableError:
            pass
    number = 0
    with writer:
        while proxy.cuts > 0 or number < 30:
            writer.append(actions=10 * number, observations=np.full(400, number, np.float64))
            writer.end_episode(terminated=True)
            number += 1
            if number % 5 == 0:
                writer.flush()
    assert numbers(log) == list(range(number))
    assert [int(each.columns["observations"][0][399]) for each in log.taken] == list(range(number))
    proxy.close()


def test_sequence_numbers(server: WriteServer, log: MemoryLog) -> None:
    to = connection(server)
    assert to.hello(COLUMNS).last == -1
    assert to.put(COLUMNS, [episode(0), episode(1)]) == 1
    assert to.put(COLUMNS, [episode(0), episode(1), episode(2)]) == 2
    assert to.put(COLUMNS, [episode(1)]) == 2
    assert connection(server, "b").put(COLUMNS, [episode(0, "b")]) == 0
    assert (to.hello(()).last, connection(server, "b").hello(()).last) == (2, 0)
    assert numbers(log) == [0, 1, 2, 0]


def test_sequence_numbers_of_journals_and_of_the_dataset(tmp_path: Path) -> None:
    """A restarted server knows what earlier ones took, whatever became of their journals."""
    folder = tmp_path / "sent"
    for run in range(4):
        # The first writer's journal is taken over by a plain Writer, and so on.
        with only_server(folder):
            with pytest.raises(DestinationExistsError, match="another process is writing here"), only_server(folder):
                pass
            sink = JournalSink(FolderPublisher(folder, SealOptions()), None)
            server = serve(EpisodeIntake(sink, earlier_episodes(folder), LIMITS))
            to = connection(server)
            assert to.hello(COLUMNS).last == run - 1
            assert to.put(COLUMNS, [episode(number) for number in range(run + 1)]) == run
            server.shutdown()
            if run == 1:
                sink.seal()
            sink._journals._stack.close()  # as if the process had died
        if run == 2:
            Writer(folder).close()
    JournalSink(FolderPublisher(folder, SealOptions()), None).close()
    ds = gear_data.open(folder)
    assert [int(ds[number]["actions"][0]) for number in range(len(ds))] == [0, 10, 20, 30]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


def test_the_dataset_forgets_writers_that_leave(tmp_path: Path) -> None:
    """Else its manifest would grow with each Writer that ever sent an episode. A Writer that died stays known."""
    folder = tmp_path / "sent"
    with only_server(folder):
        sink = JournalSink(FolderPublisher(folder, SealOptions()), None)
        server = serve(EpisodeIntake(sink, earlier_episodes(folder), LIMITS))
        connection(server, "dead").put(COLUMNS, [episode(0, "dead"), episode(1, "dead")])
        known = []
        for number in range(12):
            with Writer(url(server)) as writer:
                add(writer, number)
                if number % 3 == 0:
                    sink.seal()  # while the Writer is there
            if number % 3 == 2:
                sink.seal()
            if sink._publisher.newest() is not None:
                known.append(len(sink._publisher.newest().growth.sequences))  # type: ignore[union-attr]
        assert max(known) == 2
        server.shutdown()
        sink.close()
    growth = gear_data.open(folder).manifest.growth
    assert growth is not None and dict(growth.sequences) == {"dead": 1}
    found = [int(each["actions"][0]) // 10 for each in gear_data.open(folder)]
    assert sorted(found) == sorted([0, 1, *range(12)])


def test_a_broken_call_is_read_after_its_writer_left(server: WriteServer, log: MemoryLog) -> None:
    """Its episodes were sent again before, and acknowledged."""
    to = connection(server)
    assert to.put(COLUMNS, [episode(0), episode(1)]) == 1
    to.goodbye()
    to.put(COLUMNS, [episode(0), episode(1)])
    assert numbers(log) == [0, 1]


def test_a_call_that_breaks_before_its_end(server: WriteServer, log: MemoryLog) -> None:
    """What the server took before is acknowledged later, but only after the disk has it."""
    calls: list[str] = []
    log.fail = calls.append
    to = connection(server)
    with pytest.raises(NodeRefusedError):
        to.put(COLUMNS, [episode(0), replace(episode(1), facts=b"{}")])
    assert calls == ["begin", "append", "appended"]
    assert to.hello(COLUMNS).last == 0
    assert calls == ["begin", "append", "appended", "sync"]


@pytest.mark.parametrize("known", [False, True])
def test_an_error_after_the_log_has_an_episode(
    known: bool, server: WriteServer, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory ends between the write and the last line of `append`. The episode is not taken again."""
    if known:
        connection(server).put(COLUMNS, [episode(0)])

    def fail(call: str) -> None:
        if call == "appended":
            raise MemoryError

    log.fail = fail
    connection(server).put(COLUMNS, [episode(int(known))])
    assert "was recorded, with an error" in caplog.text
    log.fail = lambda _: None
    connection(server).put(COLUMNS, [episode(int(known))])
    assert numbers(log) == list(range(known + 1))


def test_an_error_before_the_log_has_an_episode(server: WriteServer, log: MemoryLog) -> None:
    """The episode is sent again, and taken. So is one that the server knew before."""

    def fail(call: str) -> None:
        if call == "append":
            raise MemoryError

    for known in (False, True):
        log.fail = fail
        with pytest.raises(NodeFailedError):
            connection(server).put(COLUMNS, [episode(int(known))])
        assert connection(server).hello(COLUMNS).last == known - 1
        log.fail = lambda _: None
        if known:
            assert connection(server).put(COLUMNS, [episode(0)]) == 0
        assert connection(server).put(COLUMNS, [episode(int(known))]) == known
    assert numbers(log) == [0, 1]


def test_a_closed_intake(log: MemoryLog) -> None:
    intake = EpisodeIntake(log, EarlierEpisodes(), LIMITS)
    server = serve(intake)
    connection(server).put(COLUMNS, [episode(0)])
    intake.close()
    with pytest.raises(NodeUnreachableError, match="is shutting down"):
        connection(server).put(COLUMNS, [episode(1)])
    assert numbers(log) == [0]
    server.shutdown()

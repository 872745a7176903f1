"""A Writer drops an episode only if the server has refused this very episode. Real Flight servers, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cluster.writing.intake import EpisodeIntake
from gear_data.cluster.writing.server import WriteServer
from gear_data.errors import EpisodeRefusedError, InvalidArgumentError, NodeUnreachableError
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.sealing import FolderPublisher
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.recording.writer import Writer
from gear_data.storage.journal.episode_log import EarlierEpisodes
from tests.support.cluster.write_server import LIMITS, MemoryLog, add, numbers, serve, url
from tests.support.running.eventually import eventually


def refusing(log: MemoryLog, *places: int) -> Callable[[str], None]:
    """Returns a function that makes a log refuse its calls of `append` with these numbers."""
    calls: list[str] = []

    def fail(call: str) -> None:
        if call == "append":
            calls.append(call)
            if len(calls) - 1 in places:
                raise EpisodeRefusedError("the fact a is 'x': it is of text", hint="give the fact another name")

    return fail


def has_error(writer: Writer) -> Callable[[], bool]:
    return lambda: writer._sink._sender._error is not None  # type: ignore[attr-defined]


def test_a_server_of_another_dataset_drops_nothing(
    server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator starts it again with the right one, and the Writer goes on."""

    def check_columns(intake: EpisodeIntake, columns: object) -> None:
        raise InvalidArgumentError("is int64 [], and the server's other episodes have float32 [2]", column="actions")

    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        writer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(EpisodeIntake, "check_columns", check_columns)
            add(writer, 1)
            assert eventually(has_error(writer))
            for _ in range(2):
                with pytest.raises(InvalidArgumentError, match="other episodes have float32"):
                    writer.flush()
        writer.flush()
        add(writer, 2)
    assert numbers(log) == [0, 1, 2]


def test_a_failed_publication_drops_nothing(tmp_path: Path) -> None:
    """The server's journal raises the error of the thread that publishes, at whichever episode is next."""
    sink = JournalSink(FolderPublisher(tmp_path / "sent", SealOptions()), None)
    server = serve(EpisodeIntake(sink, EarlierEpisodes(), LIMITS))
    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        writer.flush()
        sink._error = InvalidArgumentError("small weight leave, and the column has text")
        add(writer, 1)
        assert eventually(has_error(writer))
        writer.flush()
        add(writer, 2)
    server.shutdown()
    sink.close()
    assert [int(episode["actions"][0]) for episode in gear_data.open(tmp_path / "sent")] == [0, 10, 20]


def test_the_hint_about_a_large_episode_holds(server: WriteServer, log: MemoryLog) -> None:
    """A server with a larger limit takes it."""
    intake = server._intake
    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        writer.flush()
        intake.limits = replace(LIMITS, episode_bytes=30)
        add(writer, 1, steps=4)
        with pytest.raises(InvalidArgumentError, match="32 bytes, and the server takes at most 30"):
            writer.flush()
        intake.limits = LIMITS
        writer.flush()
    assert numbers(log) == [0, 1]


def test_the_error_names_the_episode_that_is_dropped(server: WriteServer, log: MemoryLog) -> None:
    log.fail = refusing(log, 1)
    with Writer(url(server)) as writer:
        add(writer, 0)
        with pytest.raises(EpisodeRefusedError) as error:
            add(writer, 1)
        assert error.value.sequence == 1 and writer.open_episodes() == []
        assert str(error.value) == (
            f"{url(server)}: refused episode 1 of this Writer: the fact a is 'x': it is of text\n"
            "  the Writer drops this episode: record it again, and give the fact another name"
        )
        add(writer, 2)
    assert numbers(log) == [0, 2]


def test_exactly_the_refused_episode_is_dropped(server: WriteServer, log: MemoryLog) -> None:
    """It is in the middle of a call. The server that answers next does not know what came before it."""
    begun, go_on = threading.Event(), threading.Event()
    refuse = refusing(log, 2)

    def fail(call: str) -> None:
        if call == "begin":
            begun.set()
            assert go_on.wait(30)
        refuse(call)

    log.fail = fail
    intake = server._intake
    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        assert begun.wait(30)
        for number in range(1, 5):  # one call
            add(writer, number)
        go_on.set()
        assert eventually(has_error(writer))
        with pytest.raises(EpisodeRefusedError) as error:
            writer.flush()
        assert error.value.sequence == 2
        del log.taken[1:]
        intake._sequences = {writer._sink._connection.client: 0}  # type: ignore[attr-defined]
        writer.flush()
    assert numbers(log) == [0, 1, 3, 4]


@pytest.mark.parametrize("call", ["flush", "end_episode", "close"])
def test_a_refusal_is_raised_though_nobody_waited_for_it(call: str, server: WriteServer, log: MemoryLog) -> None:
    log.fail = refusing(log, 0)
    writer = Writer(url(server), durability="flush")
    add(writer, 0)
    assert eventually(has_error(writer))
    calls: dict[str, Callable[[], Any]] = {
        "flush": writer.flush, "end_episode": lambda: add(writer, 1), "close": writer.close
    }  # fmt: skip
    with pytest.raises(EpisodeRefusedError, match="refused episode 0 of this Writer"):
        calls[call]()
    writer.close()
    assert numbers(log) == ([1] if call == "end_episode" else [])


def test_close_sends_the_episodes_behind_refused_ones(server: WriteServer, log: MemoryLog) -> None:
    """The end of a `with` block calls it only once."""
    go_on, refuse = threading.Event(), refusing(log, 1, 3)

    def fail(call: str) -> None:
        if call == "begin":
            assert go_on.wait(30)
        refuse(call)

    log.fail = fail
    with (
        pytest.raises(EpisodeRefusedError, match="refused episode 1 of this Writer"),
        Writer(url(server), durability="flush") as writer,
    ):
        for number in range(5):
            add(writer, number)
        writer.append(actions=50)
        go_on.set()
    assert numbers(log) == [0, 2, 4, 5]
    writer.close()
    assert numbers(log) == [0, 2, 4, 5]


def test_close_names_all_refused_episodes(server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they were open, and if the server cannot be reached meanwhile."""
    log.fail = refusing(log, 0, 2)
    writer = Writer(url(server), durability="flush")
    writer.append_batch(actions=[0, 10, 20, 30])
    wait, errors = writer._sink.before_close, [NodeUnreachableError("did not acknowledge")]

    def before_close() -> None:
        wait()
        if errors and not writer.open_episodes():
            raise errors.pop()

    monkeypatch.setattr(writer._sink, "before_close", before_close)
    with pytest.raises(NodeUnreachableError):
        writer.close()
    with pytest.raises(EpisodeRefusedError, match="refused episode 0 of this Writer") as error:
        writer.close()
    (note,) = error.value.__notes__
    assert "refused episode 2 of this Writer" in note
    assert numbers(log) == [1, 3] and writer.close() is None

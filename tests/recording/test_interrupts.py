"""Interrupts and signals whose handlers raise, at any moment of a Writer."""

from __future__ import annotations

import functools
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.growing.folder.generations import FolderGenerations
from gear_data.recording.journal_folder import JournalFolder
from gear_data.storage.writing import folder_lock
from tests.support.running.interrupts import interrupted


def test_interrupts_of_end_episode_lose_and_double_nothing(tmp_path: Path) -> None:
    """An episode that is still open afterwards is not in the journal, and is ended again."""
    writer = gear_data.Writer(tmp_path / "live", durability="os")
    ended = 0
    for moment in itertools.count():
        writer.append(actions=moment)
        end = functools.partial(writer.end_episode, terminated=True, number=moment)
        is_interrupted = interrupted(end, moment)
        if writer.open_episodes():
            assert is_interrupted
            end()
        else:
            ended += is_interrupted
        assert writer.episodes == moment + 1
        if not is_interrupted:
            break
    assert ended > 10
    writer.close()
    ds = gear_data.open(tmp_path / "live")
    assert list(ds.episodes["number"]) == list(range(moment + 1))
    assert ds.num_steps == moment + 1


def test_no_interrupt_finds_a_lock_that_it_could_leave_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication takes and releases locks in another thread than the one that gets interrupts."""
    writer = gear_data.Writer(tmp_path / "live")
    threads = []

    def call(real: Any, *arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*arguments)

    for name in ("_try_lock", "_release"):
        monkeypatch.setattr(folder_lock, name, functools.partial(call, getattr(folder_lock, name)))
    for last in (writer.seal, writer.close):
        writer.append(actions=1)
        writer.end_episode(terminated=True)
        last()
    assert len(threads) > 4 and threading.main_thread() not in threads


@pytest.fixture
def interruptible() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt, also if another test or library has changed this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.processes
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", ["seal", "close"])
def test_an_interrupted_publication_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """`close` waits for a publication that `seal` began."""
    begun, may_go_on = threading.Event(), threading.Event()
    real = FolderGenerations.replace

    def replace(*arguments: Any) -> None:
        begun.set()
        assert may_go_on.wait(60)
        real(*arguments)

    monkeypatch.setattr(FolderGenerations, "replace", replace)

    def interrupt() -> None:
        assert begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    writer = gear_data.Writer(tmp_path / "live")
    writer.append(actions=1)
    writer.end_episode(terminated=True, number=0)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(writer, how)()
    thread.join()
    threading.Timer(0.2, may_go_on.set).start()
    writer.close()
    deadline = time.monotonic() + 60  # an interrupted `close` goes on in another thread
    while tmp_path.joinpath("live.journal").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(gear_data.open(tmp_path / "live").episodes["number"]) == [0]
    assert not (tmp_path / "live.journal").exists()


def test_a_handler_that_calls_the_writer_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever for a lock of the call that it interrupts."""
    writer, calls = gear_data.Writer(tmp_path / "live"), list[str]()

    def sync(journals: JournalFolder) -> None:
        for name in ("append", "append_batch", "end_episode", "discard", "flush", "seal", "close"):
            with pytest.raises(InvalidArgumentError, match="a signal handler"):
                getattr(writer, name)()
            calls.append(name)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFolder, "sync", sync)
        writer.append(actions=1)
        writer.end_episode(terminated=True, number=0)
    assert len(calls) == 7
    writer.close()
    assert list(gear_data.open(tmp_path / "live").episodes["number"]) == [0]

"""Locks of folders that other processes create and remove."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gear_data.errors import DestinationExistsError, ForkedProcessError, UnwritableError
from gear_data.storage.writing.folder_lock import LOCK_NAME, LockHolder, folder_lock
from gear_data.storage.writing.heartbeat import STALE_SECONDS


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path.mkdir` says that the folder exists, and looks at it when another process has removed it."""
    mkdir, calls = Path.mkdir, []

    def late(self: Path, *arguments: Any, **options: Any) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise FileExistsError(17, "File exists")
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    with folder_lock(tmp_path / "locked", name="here", hint="wait"):
        assert (tmp_path / "locked").is_dir()
    assert not (tmp_path / "locked").exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_file_of_that_name_is_an_error(tmp_path: Path, link: bool) -> None:
    path = tmp_path / "locked"
    if link:
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.touch()
    with pytest.raises(UnwritableError, match="File exists"), folder_lock(path, name="here", hint="wait"):
        pass


def no_flock(*arguments: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def flock_of_nothing(*arguments: Any) -> None:
    """Says yes to every process, as some file systems do."""


@pytest.mark.parametrize("flock", [no_flock, flock_of_nothing])
def test_without_flock_a_second_process_is_kept_out(
    flock: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "locked"
    with folder_lock(folder, name="here", hint="wait") as lock:
        with pytest.raises(DestinationExistsError, match=f"process {os.getpid()} on"):  # noqa: SIM117
            with folder_lock(folder, name="here", hint="wait"):
                pass
        lock.check()
    assert not folder.exists()
    with folder_lock(folder, name="here", hint="wait"):
        pass


def test_without_flock_a_process_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    folder, order = tmp_path / "locked", []
    has_lock, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with folder_lock(folder, name="here", hint="wait"):
            has_lock.set()
            may_end.wait(60)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert has_lock.wait(60)
    threading.Timer(0.3, may_end.set).start()
    with folder_lock(folder, name="here", hint="wait", wait=True):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("text", ['{"pid": 1, "host": "elsewhere", "since": "long ago"}', ""])
def test_without_flock_a_lock_without_heartbeat_is_taken(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / LOCK_NAME).write_text(text)
    if text:
        with pytest.raises(DestinationExistsError, match="on elsewhere"), folder_lock(folder, name="here", hint="wait"):
            pass
    old = os.stat(folder).st_mtime - STALE_SECONDS - 10
    os.utime(folder / LOCK_NAME, (old, old))
    with folder_lock(folder, name="here", hint="wait"):
        assert [path.name for path in folder.iterdir()] == [LOCK_NAME]


def test_without_flock_a_stopped_process_notices_that_it_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    monkeypatch.setattr(LockHolder, "is_here", property(lambda _: False))
    folder = tmp_path / "locked"
    with folder_lock(folder, name="here", hint="wait") as first:
        os.utime(folder / LOCK_NAME, (0, 0))
        with folder_lock(folder, name="here", hint="wait") as second:
            second.check()
            with pytest.raises(UnwritableError, match="removed or replaced"):
                first.check()
        assert not folder.exists()


def test_heartbeats_renew_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    monkeypatch.setattr("gear_data.storage.writing.heartbeat._BEAT_SECONDS", 0.01)
    with folder_lock(tmp_path / "locked", name="here", hint="wait"):
        path = tmp_path / "locked" / LOCK_NAME
        os.utime(path, (0, 0))
        limit = time.monotonic() + 60
        while path.stat().st_mtime == 0 and time.monotonic() < limit:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_file_system_where_no_lock_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no flock, and each process sees files of its own."""
    monkeypatch.setattr(fcntl, "flock", no_flock)
    monkeypatch.setattr(os.path, "samestat", lambda first, second: False)
    with pytest.raises(UnwritableError, match="has no locks"), folder_lock(tmp_path / "a", name="here", hint="wait"):
        pass


@pytest.mark.processes
@pytest.mark.parametrize("has_flock", [True, False])
def test_a_forked_child_does_not_release_the_lock(
    has_flock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is its parent's, whose next check would say that the folder was removed."""
    if not has_flock:
        monkeypatch.setattr(fcntl, "flock", no_flock)
    folder = tmp_path / "locked"
    with ExitStack() as stack:
        lock = stack.enter_context(folder_lock(folder, name="here", hint="wait"))
        if not (child := os.fork()):
            code = 1
            try:
                lock.check()
            except ForkedProcessError:
                code = 0
            finally:
                stack.close()
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        lock.check()
        with pytest.raises(DestinationExistsError), folder_lock(folder, name="here", hint="wait"):
            pass
    assert not folder.exists()

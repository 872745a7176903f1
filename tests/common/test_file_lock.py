"""Locks of files that other processes remove."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from gear_data.common.file_lock import locked, remove_unlocked


def before_the_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Acts once between the next opening and its lock, as another process may."""
    flock, actions = fcntl.flock, [act]

    def act_first(descriptor: int, operation: int) -> None:
        while actions:
            actions.pop()()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", act_first)


def test_a_file_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    before_the_lock(monkeypatch, lambda: remove_unlocked(path))
    with locked(path):
        # This process holds the file that others open.
        assert not remove_unlocked(path)
    assert remove_unlocked(path) and not path.exists()


def test_a_file_that_took_the_place_of_the_opened_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()

    def replace() -> None:
        # The old file stays open until it is locked, so that the new one has another inode.
        path.unlink()
        path.touch()

    before_the_lock(monkeypatch, replace)
    assert not remove_unlocked(path) and path.exists()


def test_a_file_stays_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    assert not remove_unlocked(path, lambda: False)
    # The lock was released.
    assert remove_unlocked(path, lambda: True)

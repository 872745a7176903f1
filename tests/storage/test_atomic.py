"""Atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gear_data.storage import atomic


def test_data_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("replace"), replace(a, b)))
    atomic.write_text(tmp_path / "folder" / "name", "text")
    assert steps == [".name.tmp", "replace", "folder"]
    assert (tmp_path / "folder" / "name").read_text() == "text"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "name"
    atomic.write_text(path, "old")
    with pytest.raises(KeyError), atomic.atomic_file(path) as temporary:
        temporary.write_text("new")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

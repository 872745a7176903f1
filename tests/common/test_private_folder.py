"""Tests scratch folders, also of processes that are killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gear_data.common.private_folder import scratch_folder
from gear_data.errors import GearError, StorageFullError, UnwritableError
from tests.support.docs.examples import ROOT


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


_HOLDER = """
import sys
from gear_data.common.private_folder import scratch_folder
from gear_data.errors import GearError, StorageFullError, UnwritableError
with scratch_folder() as folder:
    (folder / "data").write_bytes(b"data")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_scratch_folder_is_private_and_removed_at_the_end() -> None:
    with scratch_folder() as first, scratch_folder() as second:
        assert first != second
        assert first.stat().st_mode & 0o777 == 0o700
        (first / "data").write_bytes(b"data")
    assert not first.exists()
    assert not second.exists()


@pytest.mark.processes
def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path) -> None:
    command = [sys.executable, "-c", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())  # type: ignore[union-attr]
        with scratch_folder():
            assert (folder / "data").exists()
        process.send_signal(signal.SIGKILL)
    assert (folder / "data").exists()
    with scratch_folder() as other:
        assert list(temporary.iterdir()) == [other]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFullError), (errno.EACCES, UnwritableError)])
def test_a_folder_that_cannot_be_made(number: int, kind: type[GearError], monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(kind, match=r"temporary files(.|\n)*TMPDIR"), scratch_folder():
        pass


def test_a_folder_for_temporary_files_that_is_gone(temporary: Path) -> None:
    assert tempfile.gettempdir() == str(temporary)
    temporary.rmdir()
    with pytest.raises(UnwritableError, match="TMPDIR"), scratch_folder():
        pass


def test_other_folders_are_left_in_peace(temporary: Path) -> None:
    kept = [temporary / "gear-data-scratch-of-mine", temporary / "gear-data-abcd1234"]
    for path in kept:
        path.mkdir()
    link = temporary / "gear-data-scratch-abcd1234"
    link.symlink_to(kept[0])
    with scratch_folder():
        pass
    assert sorted(temporary.iterdir()) == sorted([*kept, link])
    assert os.readlink(link) == str(kept[0])


def test_nothing_else_makes_folders_that_a_killed_process_leaves() -> None:
    """`dir=` is a folder of the user, which whoever writes there cleans."""
    calls = [
        (file.relative_to(ROOT).as_posix(), call)
        for folder in ("gear_data", "loaders", "kernels")
        for file in (ROOT / folder).rglob("*.py")
        for call in re.findall(r"\b(?:TemporaryDirectory|mkdtemp)\(([^)\n]*)", file.read_text())
    ]
    assert [file for file, call in calls if "dir=" not in call] == ["gear_data/common/private_folder.py"]
    assert len(calls) > 1

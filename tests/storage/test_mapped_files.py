"""Mapped files: truncation and changes in place are noticed before a read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gear_data.errors import CorruptShardError, DatasetReplacedError
from gear_data.storage import mapped_files
from gear_data.storage.atomic import checksum
from gear_data.storage.manifest import FileEntry
from gear_data.storage.mapped_files import FILES_PER_CHECK, MappedFiles
from tests.support.replacement.datasets import OLD, convert


def nothing() -> None:
    """Explains nothing."""


def file_of(folder: Path, name: str, text: bytes = b"contents") -> tuple[FileEntry, Path]:
    path = folder / name
    path.write_bytes(text)
    return FileEntry(name, len(text), checksum(path)), path


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every call of `check` look at files."""
    monkeypatch.setattr(mapped_files, "CHECK_SECONDS", 0.0)


@pytest.mark.processes
def test_no_reader_dies_of_a_truncated_file(tmp_path: Path) -> None:
    """Every way of reading, in a process of its own: SIGBUS would end it."""
    folder = convert(tmp_path / "d", OLD)
    command = [sys.executable, "-m", "tests.support.replacement.truncating", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    lines = done.stdout.splitlines()
    assert sum(line.startswith("truncate, ") for line in lines) == 10
    assert sum(line.startswith("overwrite_bytes, ") for line in lines) == 9
    for line in lines:
        assert "the file has 0 bytes" in line or "was changed in place" in line, line


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("size", [0, 7, 9])
def test_another_size(size: int, tmp_path: Path) -> None:
    files = MappedFiles(nothing)
    entry, path = file_of(tmp_path, "a")
    files.add(entry, path)
    files.check()
    os.truncate(path, size)
    with pytest.raises(CorruptShardError, match=f"has {size} bytes now; it had 8 when it was mapped"):
        files.check()
    with pytest.raises(CorruptShardError):
        files.check_file("a")
    files.check_file("b")  # not mapped


@pytest.mark.usefixtures("always")
def test_a_change_in_place_is_told_from_a_new_time(tmp_path: Path) -> None:
    files = MappedFiles(nothing)
    entry, path = file_of(tmp_path, "a")
    files.add(entry, path)
    os.utime(path, ns=(1, 1))
    files.check()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(2, 2))
    with pytest.raises(CorruptShardError, match="changed in place"):
        files.check()
    of_cache = MappedFiles(nothing, times=False)
    of_cache.add(entry, path)
    os.utime(path, ns=(3, 3))
    of_cache.check()


@pytest.mark.usefixtures("always")
def test_replaced_and_removed_files_do_not_matter(tmp_path: Path) -> None:
    """The mapping keeps the old file."""
    files = MappedFiles(nothing)
    for name in ("a", "b"):
        files.add(*file_of(tmp_path, name))
    (tmp_path / "new").write_bytes(b"short")
    (tmp_path / "new").replace(tmp_path / "a")
    (tmp_path / "b").unlink()
    files.check()


def test_a_bad_file_is_an_error_at_every_call(tmp_path: Path) -> None:
    """A caller that goes on after an error must not reach the file either."""
    files = MappedFiles(nothing)
    for number in range(FILES_PER_CHECK + 5):
        files.add(*file_of(tmp_path, str(number)))
    os.truncate(tmp_path / "3", 0)
    for _ in range(3):
        with pytest.raises(CorruptShardError, match="/3: "):
            files.check()
        with pytest.raises(CorruptShardError, match="/3: "):
            files.check_file("3")


@pytest.mark.usefixtures("always")
def test_the_explanation_comes_first(tmp_path: Path) -> None:
    def explain() -> None:
        raise DatasetReplacedError("the dataset was replaced")

    files = MappedFiles(explain)
    entry, path = file_of(tmp_path, "a")
    files.add(entry, path)
    files.check()
    os.truncate(path, 0)
    with pytest.raises(DatasetReplacedError):
        files.check()


@pytest.mark.usefixtures("always")
def test_checks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check looks at a bounded number of files."""
    files = MappedFiles(nothing)
    count = 2 * FILES_PER_CHECK + 5
    for number in range(count):
        files.add(*file_of(tmp_path, str(number)))
    seen: list[str] = []
    monkeypatch.setattr(files, "_check_now", lambda file: seen.append(file.entry.file))
    for _ in range(3):
        before = len(seen)
        files.check()
        assert len(seen) - before <= FILES_PER_CHECK
    assert seen == [str(number) for number in range(count)]
    files.check()
    assert seen[count:] == [str(number) for number in range(FILES_PER_CHECK)]


def test_most_calls_do_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check within `CHECK_SECONDS` of the last one costs a look at the clock."""
    clock = np.array([100.0])
    monkeypatch.setattr(mapped_files.time, "monotonic", lambda: float(clock[0]))
    files = MappedFiles(nothing)
    files.add(*file_of(tmp_path, "a"))
    seen: list[object] = []
    monkeypatch.setattr(files, "_check_now", seen.append)
    for check in (files.check, lambda: files.check_file("a")):
        seen.clear()
        for now in (100.0, 100.05, 100.09, 100.11, 100.2, 100.22):
            clock[0] = now
            check()
        assert len(seen) == 3
        clock[0] = 100

"""Tests that invalid paths, arguments and episodes raise typed errors.

Nothing is written before the error.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptShardError,
    CorruptSourceError,
    DestinationExistsError,
    GearError,
    InvalidArgumentError,
    SourceNotFoundError,
    UnknownFormatError,
    UnsupportedColumnError,
    UnwritableError,
)
from gear_data.storage.mapped_shards import map_file
from tests.support.hangs import SPECIAL_FILES, no_hang


def an_episode(**more: Any) -> dict[str, Any]:
    """Returns an episode of five steps."""
    return {"observations": np.arange(5.0)[:, None], "actions": np.zeros((5, 1)), "rewards": np.zeros(5), **more}


# Unusable paths.


def test_invalid_paths(sources: Any, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(1))
    for bad in (None, 5, b"d", "", "d\udcff"):
        for use in (gear_data.open, gear_data.verify, lambda place: gear_data.convert(source, place)):
            with pytest.raises(InvalidArgumentError):
                use(bad)
        with pytest.raises(InvalidArgumentError):
            gear_data.lint(bad)


def test_names_that_are_not_utf8(sources: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    source = sources.write_episodes(folder / "s.parquet", sources.make_rollouts(1))
    bad = os.fsencode(folder) + b"/b\xff.parquet"
    shutil.copy(source, bad)
    with pytest.raises(CorruptSourceError, match="not UTF-8") as error:
        gear_data.convert(folder, tmp_path / "d")
    assert error.value.file == "b\\udcff.parquet"
    for place in (bad, os.fsencode(tmp_path) + b"/d\xff"):
        with pytest.raises(InvalidArgumentError, match="not UTF-8") as other:
            gear_data.convert(source, os.fsdecode(place))
        assert str(other.value).encode()
    os.remove(bad)
    # Other names are valid.
    odd = sources.write_episodes(tmp_path / "with space" / "é (1)#%20.parquet", sources.make_rollouts(3))
    gear_data.convert(odd, tmp_path / "out put #1")
    assert gear_data.open(tmp_path / "out put #1").episodes["source"].to_list() == [odd.name] * 3


def test_digits_that_are_no_numbers_in_names(sources: Any, tmp_path: Path) -> None:
    """Python calls ² a digit, and cannot read it as a number."""
    names = ["1²3.parquet", "2²3.parquet", "10²3.parquet"]
    for name in names:
        sources.write_episodes(tmp_path / "in" / name, sources.make_rollouts(1))
    gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["source"].to_list() == names


@pytest.mark.parametrize(
    ("place", "advice"), [("in/*.parquet", "patterns"), ("~/in", "expanduser"), ("in/no", "check the path")]
)
def test_paths_that_a_shell_would_change(place: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError) as error:
        gear_data.convert(place, tmp_path / "d")
    assert str(error.value).startswith(f"{place}: no such file or folder")
    assert advice in str(error.value)
    assert bool(error.value.hint) == bool(advice)


@pytest.mark.parametrize("kind", ["FIFO", "device", "socket"])
@pytest.mark.parametrize("name", ["x.parquet", "x.npz", "rewards.npy", "x.hdf5", "info.json", "x.tfrecord-0-of-1", "x"])
def test_special_files_are_not_read(kind: str, name: str, sources: Any, tmp_path: Path) -> None:
    """A reader would wait forever, or a column would be lost in silence."""
    folder = tmp_path / "in"
    sources.write_episodes(folder / "s.parquet", sources.make_rollouts(3))
    SPECIAL_FILES[kind](folder / name)
    with no_hang(), pytest.raises(SourceNotFoundError, match="neither a file nor a folder"):
        gear_data.convert(folder / name, tmp_path / "d")
    with no_hang(), pytest.raises(CorruptSourceError, match="is a pipe, a device or a socket") as error:
        gear_data.convert(folder, tmp_path / "d")
    assert (error.value.file, error.value.hint) == (name, "remove it")
    with no_hang(), pytest.raises(CorruptSourceError, match="is a pipe, a device or a socket"):
        gear_data.convert(f"file://{folder}", tmp_path / "d")
    (folder / name).rename(folder / f".{name}")
    assert gear_data.convert(folder, tmp_path / "d").episodes == 3


def test_unreadable_folders_are_errors(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error the folder would seem empty, and its episodes would be lost."""
    source = sources.write_episodes(tmp_path / "in" / "a" / "s.parquet", sources.make_rollouts(3))
    sources.write_episodes(tmp_path / "in" / "b" / "s.parquet", sources.make_rollouts(3))
    scandir, open_ = os.scandir, builtins.open
    monkeypatch.setattr(os, "scandir", lambda path: _denied(path) if str(path).endswith("/b") else scandir(path))
    with pytest.raises(CorruptSourceError, match="Permission denied") as error:
        gear_data.convert(tmp_path / "in", tmp_path / "d")
    assert error.value.file == str(tmp_path / "in" / "b")
    monkeypatch.undo()

    def refusing(path: Any, *arguments: Any, **options: Any) -> Any:
        return _denied(path) if str(path).endswith(".npz") else open_(path, *arguments, **options)

    np.savez(tmp_path / "s.npz", actions=np.zeros(3), rewards=np.zeros(3))
    monkeypatch.setattr(builtins, "open", refusing)
    with pytest.raises(CorruptSourceError, match="Permission denied") as error:
        gear_data.convert(tmp_path / "s.npz", tmp_path / "d")
    assert (error.value.file, error.value.hint) == ("s.npz", "check its permissions")
    assert source.exists()


def _denied(path: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_unusable_destinations(sources: Any, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(1))
    for bad in (tmp_path / ("x" * 300), source / "d"):
        with pytest.raises(UnwritableError) as error:
            gear_data.convert(source, bad)
        assert str(bad) in str(error.value)
    with pytest.raises(DestinationExistsError) as error_:
        gear_data.convert(source, "/")
    assert "--overwrite" not in str(error_.value)  # it replaces only datasets


def test_files_of_no_format_get_advice(sources: Any, tmp_path: Path) -> None:
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    with pytest.raises(UnknownFormatError, match="holds no files"):
        gear_data.convert(tmp_path / "empty", tmp_path / "d")
    for name, advice in (("a.zip", "unpack"), ("a.pkl", "never loaded"), ("a.csv", "its columns are x")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UnknownFormatError, match=advice):
            gear_data.convert(tmp_path / name, tmp_path / "d")
    # Next to other data, the file is not the source.
    sources.write_parquet(tmp_path / "both" / "s.parquet", pa.table({"x": [1.0]}))
    (tmp_path / "both" / "a.csv").write_text("x\n1\n")
    with pytest.raises(UnknownFormatError, match="its columns are x: double"):
        gear_data.convert(tmp_path / "both", tmp_path / "d")


def test_later_failures_of_the_file_system(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system becomes read-only, or a shard cannot be read."""
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(3))
    gear_data.convert(source, tmp_path / "d")

    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        with pytest.raises(UnwritableError, match="Read-only"):
            gear_data.convert(source, tmp_path / "d", overwrite=True)
    os_open = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        return _denied(path) if Path(path).parent.name == "shards" else os_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    report = gear_data.verify(tmp_path / "d")
    assert [(check.ok, "Permission denied" in str(check.error)) for check in report.shards] == [
        (True, False),
        (False, True),
    ]


# Arguments and episodes of wrong types.


@pytest.mark.parametrize(
    "options",
    [
        {"columns": 5},
        {"columns": [1]},
        {"rename": ["a=b"]},
        {"rename": "a=b"},
        {"rename": {"rewards": None}},
        {"episodes": "run"},
        {"videos": ("keep",)},
        {"shard_bytes": "512M"},
        {"shard_bytes": 1e6},
        {"jobs": "2"},
        {"jobs": True},
    ],
)
def test_arguments_of_the_wrong_type(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        gear_data.convert([an_episode()], tmp_path / "d", **options)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"rewards": list("abcde")}, UnsupportedColumnError),
        ({"terminated": list("abcde")}, UnsupportedColumnError),
        ({"x": []}, BadEpisodeError),
        ({"x": 2**70}, UnsupportedColumnError),
        ({"x": "a\udc80"}, UnsupportedColumnError),
        ({"x": ["a\udc80", *"abcd"]}, BadEpisodeError),
        ({"a\udc80": np.zeros(5)}, UnsupportedColumnError),
        ({"a\udc80": 3}, UnsupportedColumnError),
        ({"a\0": np.zeros(5)}, UnsupportedColumnError),
        ({"\0source_row": 3}, UnsupportedColumnError),
    ],
)
def test_episodes_of_the_wrong_kind(more: dict[str, Any], kind: type[GearError], tmp_path: Path) -> None:
    with pytest.raises(kind) as error:
        gear_data.convert([an_episode(**more)], tmp_path / "d")
    assert error.value.column == next(iter(more)).replace("\udc80", "\\udc80")
    assert str(error.value).encode()


@pytest.mark.parametrize("source", [[None], lambda: 5])
def test_no_episodes_at_all(source: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"an episode must be|iterable of episodes"):
        gear_data.convert(source, tmp_path / "d")


def export_batches_of(dataset: Any, to: Any) -> Any:
    return gear_data.export_batches(gear_data.SequenceLoader(dataset, 4, prefetch=0), to, batches=1)


@pytest.mark.parametrize("write", [gear_data.export, export_batches_of])
def test_export_argument_errors(write: Any, rollouts_path: Path, tmp_path: Path) -> None:
    dataset = gear_data.open(rollouts_path)
    for place in (None, 3, ""):
        with pytest.raises(InvalidArgumentError, match="a path"):
            write(dataset, place)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableError, match="cannot be written"):
        write(dataset, tmp_path / "file" / "out")


def test_only_datasets_are_exported(rollouts_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="takes a Dataset"):
        gear_data.export(str(rollouts_path), tmp_path / "out")  # type: ignore[arg-type]


def test_a_shard_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CorruptShardError, match="cannot be read"):
        map_file(tmp_path)

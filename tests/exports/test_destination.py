"""Destinations of exports: names, existing files, links and mount points."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import (
    DestinationExistsError,
    InvalidArgumentError,
    MissingColumnError,
    UnknownNameError,
)
from gear_data.exports import parquet
from gear_data.exports.destination import LISTING
from tests.support.exports import FORMATS
from tests.support.stopped_process import Stop, stoppable


def test_export_refuses_a_destination_that_is_not_empty(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(DestinationExistsError):
        gear_data.export(ds, tmp_path / "out")
    with pytest.raises(DestinationExistsError):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "out", batches=1)
    with pytest.raises(UnknownNameError, match="parquet"):
        gear_data.export(ds, tmp_path / "new", format="xlsx")
    with pytest.raises(UnknownNameError, match="safetensors"):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), tmp_path / "new", batches=1, format="csv")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]


def test_export_into_a_linked_empty_folder(rollouts_path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    ds = gear_data.open(rollouts_path)
    report = gear_data.export(ds, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert all((tmp_path / "real" / name).is_file() for name in report.files)
    gear_data.convert(tmp_path / "link", tmp_path / "again")
    assert gear_data.open(tmp_path / "again").fingerprint == ds.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "link", "real"]


@pytest.mark.parametrize("name", ["a.parquet", "a.npz", "a.hdf5"])
def test_a_file_does_not_replace_a_folder(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    """It is refused before anything is written."""
    (tmp_path / name).mkdir()
    format = {".parquet": "parquet", ".npz": "npz", ".hdf5": "d4rl"}[Path(name).suffix]
    for overwrite in (False, True):
        with pytest.raises(DestinationExistsError, match="the destination is a folder"):
            gear_data.export(gear_data.open(rollouts_path), tmp_path / name, format=format, overwrite=overwrite)
    assert [path.name for path in tmp_path.rglob("*")] == [name]


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_export_needs_a_name(path: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export would take the place of the current folder: this process would stay in the one that is removed."""
    ds = gear_data.open(rollouts_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="end in a name"):
        gear_data.export(ds, path)
    with pytest.raises(InvalidArgumentError, match="end in a name"):
        gear_data.export_batches(gear_data.SequenceLoader(ds, 2, context=2), path, batches=1)
    assert gear_data.export(ds, "../" + tmp_path.name + "/out").files and Path("out").is_dir()


def test_export_refuses_a_mount_point_first(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "disk")
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), 2, context=2, transform=lambda batch, rng: 1 / 0)
    with pytest.raises(DestinationExistsError, match="a folder inside it"):
        gear_data.export_batches(loader, tmp_path / "disk", batches=1)
    assert list(tmp_path.rglob("*")) == [tmp_path / "disk"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["out", "out.parquet"])
@pytest.mark.parametrize("after", [False, True])
def test_two_exports_to_one_destination(after: bool, name: str, rollouts_path: Path, tmp_path: Path) -> None:
    destination = tmp_path / name
    with stoppable(_export, rollouts_path, destination, stop=Stop("gear_data.exports.parquet:_write", after)) as first:
        first.expect("stopped")
        with pytest.raises(DestinationExistsError, match=f"process {first.pid} on "):
            _export(rollouts_path, destination)
        assert first.end()[0] == "done"
    _check_export(rollouts_path, destination)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_an_export_before_the_lock_of_another(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    destination = tmp_path / name
    with stoppable(
        _export, rollouts_path, destination, stop=Stop("gear_data.exports.destination:folder_lock")
    ) as first:
        first.expect("stopped")
        _export(rollouts_path, destination)
        assert isinstance(first.end()[1], DestinationExistsError)
    _check_export(rollouts_path, destination)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_killed_export_is_cleaned_up_by_the_next(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    destination = tmp_path / name
    with stoppable(_export, rollouts_path, destination, stop=Stop("gear_data.exports.parquet:_write", True)) as first:
        first.expect("stopped")
        first.kill()
    assert not destination.exists()
    _export(rollouts_path, destination)
    _check_export(rollouts_path, destination)


def _export(dataset: Path, destination: Path) -> None:
    gear_data.export(gear_data.open(dataset), destination)


def _check_export(dataset: Path, destination: Path) -> None:
    assert [path.name for path in destination.parent.iterdir()] == [destination.name]
    report = gear_data.convert(destination, destination.with_name("again"))
    assert report.fingerprint == gear_data.open(dataset).fingerprint


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("x.foo", "parquet", r"ends in \.foo, .* a folder or a file that ends in \.parquet"),
        ("x.csv", "d4rl", r"ends in \.csv, .* \.hdf5 or \.h5"),
        ("x.hdf5", "parquet", r"ends in \.hdf5, .*\n  --format d4rl writes \.hdf5"),
        ("x.PARQUET", "parquet", r"ends in \.PARQUET"),
        ("x-v0.hdf5", "minari", r"ends in \.hdf5, but the format minari writes a folder\n"),
        ("x.parquet", "lerobot", r"ends in \.parquet, but the format lerobot writes a folder\n"),
        ("s3://bucket/x", "parquet", r"written to a URL"),
    ],
)
def test_a_name_that_is_no_destination_is_refused(
    name: str, format: str, message: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: Any = {"fps": 10} if format == "lerobot" else {}
    with pytest.raises(InvalidArgumentError, match=message):
        gear_data.export(gear_data.open(rollouts_path), name, format, **options)
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_it_too(rollouts_path: Path, tmp_path: Path, capsys: Any) -> None:
    for further in ([], ["--batches", "2"]):
        assert main(["export", str(rollouts_path), str(tmp_path / "x.foo"), *further]) != 0
        assert "the name ends in .foo" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_batches_are_a_folder(rollouts_path: Path, tmp_path: Path) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(rollouts_path), 2, context=2, steps=1)
    with pytest.raises(InvalidArgumentError, match="the format npz writes a folder"):
        gear_data.export_batches(loader, tmp_path / "eval.npz", batches=1, format="npz")


def test_folders_may_have_dots(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    (tmp_path / "existing.out").mkdir()
    for name in ("hopper-v2.1", "existing.out", "new.out/"):
        report = gear_data.export(ds, f"{tmp_path}/{name}")
        assert all((tmp_path / name / file).is_file() for file in report.files)


def test_the_lock_of_a_killed_export_is_removed(rollouts_path: Path, tmp_path: Path) -> None:
    """An export that was killed after its last rename leaves a complete file and its lock."""
    ds = gear_data.open(rollouts_path)
    gear_data.export(ds, tmp_path / "out.npz", "npz")
    lock = tmp_path / ".out.npz.gear-export/.lock"
    lock.parent.mkdir()
    lock.touch()
    with pytest.raises(DestinationExistsError, match="already exists"):
        gear_data.export(ds, tmp_path / "out.npz", "npz")
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def _bytes(path: Path) -> dict[str, bytes]:
    """Returns the name and the bytes of a file, or of each file of a folder."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path.parent)): each.read_bytes() for each in files}


@pytest.mark.parametrize("format", [*FORMATS, "d4rl folder", "npz folder", "parquet file"])
def test_an_export_replaces_an_export(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    format, _, kind = format.partition(" ")
    name, arguments = FORMATS[format]
    target = tmp_path / "new" / {"": name, "folder": "folder", "file": "out.parquet"}[kind]
    ds = gear_data.open(rollouts_path)
    gear_data.export(ds, target, format, **arguments)
    with pytest.raises(DestinationExistsError, match=r"replace it: overwrite=True \(--overwrite\)"):
        gear_data.export(ds[:10], target, format, **arguments)
    before = _bytes(target)
    if format in ("d4rl", "npz", "minari"):
        with pytest.raises(MissingColumnError):
            gear_data.export(ds.drop("rewards"), target, format, overwrite=True)
    assert _bytes(target) == before
    report = gear_data.export(ds[:10], target, format, overwrite=True, **arguments)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    fresh = tmp_path / "fresh" / target.name
    expected = gear_data.export(ds[:10], fresh, format, **arguments)
    assert (report, _bytes(target).keys()) == (expected, _bytes(fresh).keys())
    gear_data.convert(target, tmp_path / "again", progress=False)
    assert gear_data.open(tmp_path / "again").fingerprint == ds[:10].fingerprint
    assert "gear_data_export" not in str(gear_data.open(tmp_path / "again").manifest.to_text())


def test_batches_replace_batches(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    for seed in (1, 2):
        loader = gear_data.SequenceLoader(ds, 2, context=2, seed=seed)
        gear_data.export_batches(loader, tmp_path / "out", batches=3 - seed, overwrite=True)
    assert json.loads((tmp_path / "out/batches.json").read_text())["seed"] == 2
    assert not (tmp_path / "out/batch-000001.safetensors").exists()


@pytest.mark.parametrize(
    "what", ["added", "added folder", "changed", "link", "no listing", "damaged listing", "dataset"]
)
def test_nothing_but_an_export_is_replaced(what: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds, out = gear_data.open(rollouts_path), tmp_path / "out"
    gear_data.export(ds, out)
    file = min((out / "data").iterdir())
    if what == "added":
        (out / "notes.md").write_text("mine")
    elif what == "added folder":
        (out / "data/more").mkdir()
        (out / "data/more/.hidden").write_text("mine")
    elif what == "changed":
        file.write_bytes(file.read_bytes() + b"1")
    elif what == "link":
        (out / "elsewhere").symlink_to(rollouts_path)
    elif what == "no listing":
        (out / LISTING).unlink()
    elif what == "damaged listing":
        (out / LISTING).write_text("[]")
    else:
        out = tmp_path / "dataset"
        shutil.copytree(rollouts_path, out)
    before = _bytes(out)
    with pytest.raises(DestinationExistsError, match="overwrite replaces only exports"):
        gear_data.export(ds[:3], out, overwrite=True)
    assert _bytes(out) == before and sorted(path.name for path in tmp_path.iterdir()) == sorted({"out", out.name})


@pytest.mark.parametrize("name", ["x.parquet", "x.npz", "x.hdf5", "x"])
def test_a_file_that_is_no_export_is_kept(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    """A valid file of the same format, and a damaged one."""
    path, format = tmp_path / name, {".npz": "npz", ".hdf5": "d4rl"}.get(Path(name).suffix, "parquet")
    rewards = np.ones(3)
    if format == "npz":
        np.savez(path, rewards=rewards)
    elif format == "d4rl":
        with h5py.File(path, "w") as file:
            file["rewards"] = rewards
    else:
        pq.write_table(pa.table({"rewards": rewards}), path)
    for data in (path.read_bytes(), b"", b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(DestinationExistsError, match="this file is none"):
            gear_data.export(gear_data.open(rollouts_path), path, format, overwrite=True)
        assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_file_that_is_added_during_the_export_is_kept(
    name: str, rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, path = gear_data.open(rollouts_path), tmp_path / name
    gear_data.export(ds, path)
    before, write = _bytes(path), parquet._write

    def interfere(*arguments: Any) -> None:
        write(*arguments)
        if path.is_dir():
            (path / "notes.md").write_text("mine")
        else:
            path.write_text("mine")

    monkeypatch.setattr(parquet, "_write", interfere)
    with pytest.raises(DestinationExistsError, match=f"{path}: overwrite replaces only exports"):
        gear_data.export(ds[:3], path, overwrite=True)
    assert _bytes(path) == ({**before, "out/notes.md": b"mine"} if path.is_dir() else {name: b"mine"})
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_link_to_an_export_stays(rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    for name in ("out", "out.npz"):
        format: Any = "npz" if name == "out.npz" else "parquet"
        gear_data.export(ds, tmp_path / "real" / name, format)
        (tmp_path / name).symlink_to(f"real/{name}")
        gear_data.export(ds[:3], tmp_path / name, format, overwrite=True)
        assert (tmp_path / name).is_symlink()
        gear_data.convert(tmp_path / "real" / name, tmp_path / f"again-{name}", progress=False)
        assert len(gear_data.open(tmp_path / f"again-{name}")) == 3


def test_the_command_replaces_an_export(rollouts_path: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    for further in ([], ["--batches", "2"]):
        assert main(["export", str(rollouts_path), str(out), "--overwrite", *further]) == 0
    assert main(["export", str(rollouts_path), str(out)]) == 1
    assert "replace it: overwrite=True (--overwrite)" in capsys.readouterr().err
    assert (out / "batches.json").exists() and not (out / "data").exists()

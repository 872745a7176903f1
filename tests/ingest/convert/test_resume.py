"""Tests conversions that stop and are resumed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import (
    DatasetNotFoundError,
    DestinationExistsError,
    GearError,
    ResumeError,
    StorageFullError,
    UnwritableError,
)
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.remote.range_reader import filesystem_of
from gear_data.storage.writing import staging
from gear_data.storage.writing.file_store import put_text
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.hangs import SPECIAL_FILES, no_hang
from tests.support.manifests import signed


def test_resume_counts_bad_episodes_once(sources: Any, rollouts: list[Any], stop_at: Any, tmp_path: Path) -> None:
    """The count is right even if the whole read before the resumed position was bad."""
    nothing = sources.Rollout({name: values[:0] for name, values in rollouts[0].columns.items()}, rollouts[0].final)
    flawed = [nothing if i % 3 != 1 else rollout for i, rollout in enumerate(rollouts)]
    source = sources.write_episodes(tmp_path / "s.parquet", flawed, row_group=1)
    options: dict[str, Any] = {"shard_bytes": 1024, "on_bad_episode": "skip"}
    shards = gear_data.convert(source, tmp_path / "whole", **options).shards
    assert shards > 2
    for stop in range(1, shards):
        stop_at(stop)
        with pytest.raises(StorageFullError):
            gear_data.convert(source, tmp_path / f"d{stop}", **options)
        stop_at(None)
        report = gear_data.convert(source, tmp_path / f"d{stop}", **options, resume=True)
        assert any(f"({sum(i % 3 != 1 for i in range(len(rollouts)))}x" in warning for warning in report.warnings)
        assert sources.folder_contents(tmp_path / f"d{stop}") == sources.folder_contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"shard_bytes": 4096}, "shard_bytes"),
        ({"columns": ["rewards"]}, "columns"),
        ({"rename": {"actions": "infos.actions"}}, "rename"),
        ({"strict": True}, "strict"),
        ({"on_bad_episode": "skip"}, "on_bad_episode"),
        ({}, None),
    ],
    ids=str,
)
def test_resume_with_other_options(
    options: dict[str, Any], name: str | None, half_done: Path, source: Path, sources: Any, rollouts: list[Any]
) -> None:
    before = sources.folder_contents(half_done)
    if name is not None:
        with pytest.raises(ResumeError, match=name) as error:
            gear_data.convert(source, half_done, **{"shard_bytes": 2048, **options}, resume=True)
        assert error.value.file == str(half_done)
        assert sources.folder_contents(half_done) == before
    gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
    sources.check_dataset(half_done, rollouts)


def test_resume_with_another_source(half_done: Path, source: Path, sources: Any, rollouts: list[Any]) -> None:
    other = sources.write_episodes(source.with_name("other.parquet"), rollouts)
    with pytest.raises(ResumeError, match="source"):
        gear_data.convert(other, half_done, shard_bytes=2048, resume=True)
    sources.write_episodes(source, rollouts[1:])
    with pytest.raises(ResumeError, match="source_files"):
        gear_data.convert(source, half_done, shard_bytes=2048, resume=True)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("name", ["options.json", "000000.json", "000000.episodes"])
def test_special_files_in_place_of_progress_files(kind: str, name: str, half_done: Path, source: Path) -> None:
    path = half_done / ".progress" / name
    path.unlink()
    SPECIAL_FILES[kind](path)
    with no_hang(), pytest.raises(GearError) as error:
        gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
    assert error.value.file == str(path)
    assert f"it is a {kind}, not a regular file" in str(error.value)


@pytest.mark.parametrize("name", ["options.json", "000000.json", "000000.episodes"])
def test_a_progress_file_of_a_terabyte(name: str, half_done: Path, source: Path) -> None:
    path = half_done / ".progress" / name
    os.truncate(path, 1 << 40)
    with no_hang(), pytest.raises(ResumeError, match=r"1099511627776 bytes, more than the limit") as error:
        gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
    assert error.value.file == str(path)


def test_a_manifest_that_readers_would_refuse_is_not_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "JSON_BYTES", 3000)
    with pytest.raises(UnwritableError, match="more than readers accept") as error:
        gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    assert "raise shard_bytes" in str(error.value.hint)
    assert not (tmp_path / "d/manifest.json").exists()


def _remove(path: Path) -> None:
    path.unlink()


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _garble(path: Path) -> None:
    path.write_text("{")


def _hollow(path: Path) -> None:
    path.write_text(signed({}))


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("shards/000000.arrow", _remove),
        ("shards/000001.arrow", _lengthen),
        (".progress/options.json", _remove),
        (".progress/options.json", _garble),
        (".progress/000000.json", _garble),
        (".progress/000001.json", _hollow),
        (".progress/000001.episodes", _remove),
        (".progress/000001.episodes", _garble),
    ],
)
def test_resume_from_changed_files(file: str, spoil: Any, half_done: Path, source: Path) -> None:
    spoil(half_done / file)
    with pytest.raises(GearError) as error:
        gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
    assert Path(file).name in str(error.value) or "overwrite" in str(error.value)
    with pytest.raises(DatasetNotFoundError):
        gear_data.open(half_done)


@pytest.mark.parametrize("name", ["options.json", "000001.json", "000001.episodes"])
def test_a_flipped_bit_of_a_progress_file(name: str, half_done: Path, source: Path) -> None:
    """A changed sum would be in the statistics, and a changed return in a table."""
    path = half_done / ".progress" / name
    whole = path.read_bytes()
    rng = random.Random(9)
    for place in rng.sample(range(len(whole)), 25):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(ResumeError) as error:
            gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
        assert error.value.file == str(path)


def test_resume_does_not_touch_foreign_files(source: Path, sources: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    before = sources.folder_contents(tmp_path)
    for name in ("file", "folder"):
        with pytest.raises(DestinationExistsError):
            gear_data.convert(source, tmp_path / name, resume=True)
    assert sources.folder_contents(tmp_path) == before


def test_resume_starts_from_nothing(source: Path, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """A job that always resumes may find nothing, or no options of an earlier run."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "stopped" / ".progress").mkdir(parents=True)
    (tmp_path / "stopped" / ".progress" / ".options.json.tmp").write_text("{")
    for name in ("nothing", "empty", "stopped"):
        gear_data.convert(source, tmp_path / name, resume=True)
        sources.check_dataset(tmp_path / name, rollouts)


def test_resume_of_a_finished_dataset(source: Path, sources: Any, tmp_path: Path) -> None:
    report = gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    before = sources.folder_contents(tmp_path)
    again = gear_data.convert(source, tmp_path / "d", shard_bytes=2048, resume=True)
    assert {**again.to_json(), "seconds": 0} == {**report.to_json(), "seconds": 0, "reason": again.reason}
    with pytest.raises(ResumeError, match="another shard_bytes: 2048, now 4096"):
        gear_data.convert(source, tmp_path / "d", shard_bytes=4096, resume=True)
    assert sources.folder_contents(tmp_path) == before


def test_an_unfinished_conversion_is_not_a_free_destination(
    half_done: Path, source: Path, sources: Any, rollouts: list[Any]
) -> None:
    with pytest.raises(gear_data.errors.DestinationExistsError, match=r"--resume \(resume=True\) continues it"):
        gear_data.convert(source, half_done, shard_bytes=2048)
    with pytest.raises(DatasetNotFoundError, match="--resume"):
        gear_data.open(half_done)
    gear_data.convert(source, half_done, overwrite=True)
    sources.check_dataset(half_done, rollouts)
    assert sorted(path.name for path in half_done.parent.iterdir()) == ["d", "s.parquet"]


def test_an_interrupt_names_resume(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard = ShardWriter._write_shard

    def interrupt(writer: ShardWriter) -> Any:
        if writer.finished_shards == 2:
            raise KeyboardInterrupt
        return write_shard(writer)

    monkeypatch.setattr(ShardWriter, "_write_shard", interrupt)
    assert main(["convert", str(source), str(tmp_path / "d"), "--shard-bytes", "2048"]) == 1
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "gear-data: interrupted",
        "  2 finished shards are kept: --resume (resume=True) continues from there",
    ]


@pytest.mark.parametrize("finished", [False, True])
def test_a_relative_path_is_the_same_source(
    finished: bool, source: Path, half_done: Path, sources: Any, rollouts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if finished:
        gear_data.convert(source, half_done, shard_bytes=2048, resume=True)
    monkeypatch.chdir(source.parent)
    gear_data.convert(source.name, half_done, shard_bytes=2048, resume=True)
    sources.check_dataset(half_done, rollouts)


def test_a_relative_path_among_several_sources(
    source: Path, stop_at: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes(source.read_bytes())
    stop_at(2)
    with pytest.raises(StorageFullError):
        gear_data.convert([source, other], tmp_path / "d", shard_bytes=2048)
    stop_at(None)
    monkeypatch.chdir(tmp_path)
    gear_data.convert([source.name, f"../{tmp_path.name}/other.parquet"], "d", shard_bytes=2048, resume=True)
    assert set(gear_data.open("d").episodes["embodiment"]) == {"s", "other"}


def test_advice_for_a_destination_at_a_url(source: Path, memory_url: str) -> None:
    """No run replaces it: `overwrite` is refused."""
    gear_data.convert(source, memory_url, shard_bytes=2048)
    with pytest.raises(ResumeError, match="another shard_bytes") as error:
        gear_data.convert(source, memory_url, shard_bytes=4096, resume=True)
    assert error.value.hint == "remove the destination, and convert again"
    store = open_file_store(memory_url)
    store.remove("manifest.json")
    put_text(store, ".progress/options.json", "{")
    with pytest.raises(ResumeError, match=r"options\.json") as error:
        gear_data.convert(source, memory_url, shard_bytes=4096, resume=True)
    assert error.value.hint == "start again after you removed the destination"
    filesystem, place = filesystem_of(memory_url)
    filesystem.rm(place, recursive=True)
    assert gear_data.convert(source, memory_url, shard_bytes=4096, resume=True).episodes > 0

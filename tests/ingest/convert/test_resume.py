"""Tests conversions that are killed, resumed, out of space, or replace a dataset."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    DatasetNotFoundError,
    DestinationExistsError,
    GearError,
    ResumeError,
    StorageFullError,
)
from gear_data.ingest import convert as convert_module
from gear_data.ingest.sources.d4rl import reader as d4rl
from gear_data.ingest.sources.tables import parquet_stream
from gear_data.storage.writing.shard_writer import ShardWriter

_READ_BYTES = 2000
_OPTIONS: dict[str, Any] = {"shard_bytes": 4096, "on_bad_episode": "skip"}

# Forks a process per kill, so that modules are imported once. A process kills itself before one of the calls that
# change files (`calls`), or is killed from outside after a part of a whole conversion's time.
_KILLER = """
import json, os, random, signal, sys, time
import pyarrow
from gear_data.ingest.convert import convert
from gear_data.ingest.sources.d4rl import reader as d4rl
from gear_data.ingest.sources.registry import known_formats
from gear_data.ingest.sources.tables import parquet_stream

known_formats()
pyarrow.array([0])  # looks for pandas, which takes its time
source, folder, options, read_bytes, calls, moments = json.loads(sys.argv[1])
parquet_stream._BATCH_BYTES = d4rl._CHUNK_BYTES = read_bytes

def run(name, kill_before=None, kill_after=None):
    started = time.perf_counter()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0
        def counted(call):
            def before(*args, **kwargs):
                nonlocal count
                if count == kill_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return call(*args, **kwargs)
            return before
        os.fsync = lambda descriptor: None
        for call in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
            setattr(os, call, counted(getattr(os, call)))
        convert(source, os.path.join(folder, name), **options)
        os.write(writer, str(count).encode())
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    total = os.read(reader, 100).decode()
    os.close(reader)
    return os.WIFSIGNALED(status), total, time.perf_counter() - started

killed, total, seconds = run("whole")
assert not killed
rng = random.Random(5)
places = sorted(rng.sample(range(int(total)), calls - 2) + [0, int(total) - 1])
for place in places:
    assert run(f"call{place}", kill_before=place)[0]
for i in range(moments):
    run(f"moment{i}", kill_after=rng.uniform(0, seconds))
"""


@dataclass(frozen=True)
class Killed:
    """A source, the folder of its whole conversion, and folders of killed ones."""

    source: Path
    whole: Path
    folders: list[Path]


def _read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_stream, "_BATCH_BYTES", _READ_BYTES)
    monkeypatch.setattr(d4rl, "_CHUNK_BYTES", _READ_BYTES)


def _flawed_source(sources: Any, folder: Path, kind: str) -> Path:
    """Writes rollouts with findings of several kinds everywhere."""
    rollouts = sources.make_rollouts(60, seed=11, max_length=30)
    for i in range(0, 60, 7):
        observations = rollouts[i].columns["observations"].copy()
        observations[-1, 0] = np.nan
        both = rollouts[i].columns["terminated"] | rollouts[i].columns["truncated"]
        rollouts[i] = rollouts[i].with_columns(observations=observations, truncated=both)
    if kind == "d4rl":
        return sources.write_d4rl(folder / "s.hdf5", rollouts)  # type: ignore[no-any-return]
    if kind == "steps":
        return sources.write_steps(folder / "s.parquet", rollouts, row_group=20)  # type: ignore[no-any-return]
    empty = sources.make_rollouts(1)[0]
    nothing = sources.Rollout({name: values[:0] for name, values in empty.columns.items()}, empty.final)
    for i in (0, 13, 14, 30, 59):
        rollouts[i] = nothing
    return sources.write_episodes(folder / "s.parquet", rollouts, row_group=4)  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=["episodes", "steps", "d4rl"])
def killed(request: pytest.FixtureRequest, sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    source = _flawed_source(sources, folder, request.param)
    (folder / "out").mkdir()
    arguments = json.dumps([str(source), str(folder / "out"), _OPTIONS, _READ_BYTES, 16, 4])
    subprocess.run([sys.executable, "-c", _KILLER, arguments], check=True, timeout=120)
    folders = sorted(path for path in (folder / "out").iterdir() if path.name != "whole")
    return Killed(source, folder / "out" / "whole", folders)


def test_killed_at_any_moment_resumes_to_the_same_bytes(
    killed: Killed, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_little(monkeypatch)
    expected = sources.folder_contents(killed.whole)
    assert gear_data.verify(killed.whole).ok
    assert json.loads(expected["manifest.json"])["findings"]
    resumed = 0
    for folder in killed.folders:
        copy = tmp_path / folder.name
        shutil.copytree(folder, copy)
        try:
            gear_data.convert(killed.source, copy, **_OPTIONS, resume=True)
            resumed += 1
        except ResumeError as error:  # killed before it wrote its options
            assert "overwrite" in str(error)
            assert not list(copy.rglob("*.arrow"))
            gear_data.convert(killed.source, copy, **_OPTIONS, overwrite=True)
        assert sources.folder_contents(copy) == expected, folder.name
    assert resumed > len(killed.folders) // 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name for folder in killed.folders]


def test_an_unfinished_conversion_never_opens(killed: Killed) -> None:
    finished = 0
    for folder in killed.folders:
        if (folder / "manifest.json").exists():
            # Killed during the final cleanup: the dataset is complete.
            assert gear_data.verify(folder).ok
            assert gear_data.open(folder).fingerprint == gear_data.open(killed.whole).fingerprint
            finished += 1
        else:
            with pytest.raises(DatasetNotFoundError) as error:
                gear_data.open(folder)
            assert "did not finish" in str(error.value) or not (folder / ".progress").exists()
    assert finished < len(killed.folders)


# In one process: a conversion that fails at some shard.


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Makes writing of a shard fail. None lets all shards succeed."""
    write_shard = ShardWriter._write_shard

    def stop(shard: int | None) -> None:
        def write(writer: ShardWriter) -> Any:
            if writer.finished_shards == shard:
                raise StorageFullError("no space left on the device")
            return write_shard(writer)

        monkeypatch.setattr(ShardWriter, "_write_shard", write)

    return stop


@pytest.fixture
def source(sources: Any, rollouts: list[Any], tmp_path: Path) -> Path:
    return sources.write_episodes(tmp_path / "s.parquet", rollouts)  # type: ignore[no-any-return]


@pytest.fixture
def half_done(source: Path, stop_at: Any, tmp_path: Path) -> Path:
    """Returns an unfinished conversion of `source` with two finished shards."""
    stop_at(2)
    with pytest.raises(StorageFullError):
        gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    stop_at(None)
    return tmp_path / "d"


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


def _remove(path: Path) -> None:
    path.unlink()


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _garble(path: Path) -> None:
    path.write_text("{")


def _hollow(path: Path) -> None:
    path.write_text("{}")


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
    with pytest.raises(gear_data.errors.DestinationExistsError, match="--resume continues it"):
        gear_data.convert(source, half_done, shard_bytes=2048)
    with pytest.raises(DatasetNotFoundError, match="--resume"):
        gear_data.open(half_done)
    gear_data.convert(source, half_done, overwrite=True)
    sources.check_dataset(half_done, rollouts)
    assert sorted(path.name for path in half_done.parent.iterdir()) == ["d", "s.parquet"]


# Replacing a dataset.


def test_overwrite_keeps_the_old_until_the_new_is_whole(
    source: Path, sources: Any, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gear_data.convert(source, tmp_path / "d")
    replace = convert_module.swap_folders
    seen = []

    def watched(folder: Path, target: Path) -> None:
        sources.check_dataset(tmp_path / "d", rollouts)
        seen.append(folder)
        replace(folder, target)

    monkeypatch.setattr(convert_module, "swap_folders", watched)
    sources.write_episodes(source, rollouts[:3])
    gear_data.convert(source, tmp_path / "d", overwrite=True)
    assert len(seen) == 1
    sources.check_dataset(tmp_path / "d", rollouts[:3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "s.parquet"]


@pytest.mark.parametrize("stop", [0, 2])
def test_overwrite_that_fails_leaves_the_old(
    stop: int, source: Path, sources: Any, rollouts: list[Any], stop_at: Any, tmp_path: Path
) -> None:
    gear_data.convert(source, tmp_path / "d")
    before = sources.folder_contents(tmp_path)
    stop_at(stop)
    with pytest.raises(StorageFullError) as error:
        gear_data.convert(source, tmp_path / "d", shard_bytes=2048, overwrite=True)
    assert "--resume" not in str(error.value)
    assert sources.folder_contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "s.parquet"]


def test_overwrite_with_a_source_that_cannot_be_read(source: Path, sources: Any, tmp_path: Path) -> None:
    gear_data.convert(source, tmp_path / "d")
    before = sources.folder_contents(tmp_path / "d")
    source.write_bytes(b"")
    with pytest.raises(CorruptSourceError):
        gear_data.convert(source, tmp_path / "d", overwrite=True)
    assert sources.folder_contents(tmp_path / "d") == before


def test_overwrite_removes_files_of_a_killed_run(
    source: Path, sources: Any, rollouts: list[Any], half_done: Path, tmp_path: Path
) -> None:
    half_done.rename(tmp_path / ".e.gear-new")
    gear_data.convert(source, tmp_path / "e")
    gear_data.convert(source, tmp_path / "e", overwrite=True)
    sources.check_dataset(tmp_path / "e", rollouts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "s.parquet"]


def test_a_bad_episode_after_finished_shards_can_be_repaired(
    source: Path, sources: Any, rollouts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming needs the same source by name and size. A repair in place keeps both."""
    _read_little(monkeypatch)
    table = sources.episode_table([r.columns for r in rollouts])
    sources.write_parquet(source, table, row_group=2)
    whole = source.read_bytes()
    nothing = sources.Rollout({name: values[:0] for name, values in rollouts[0].columns.items()}, rollouts[0].final)
    sources.write_episodes(source, [*rollouts[:-1], nothing], row_group=2)
    with pytest.raises(BadEpisodeError, match=r"finished shards? (is|are) kept") as error:
        gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    assert error.value.row == len(rollouts) - 1
    with pytest.raises(DatasetNotFoundError):
        gear_data.open(tmp_path / "d")
    source.write_bytes(whole)
    gear_data.convert(source, tmp_path / "d", shard_bytes=1024, overwrite=True)
    sources.check_dataset(tmp_path / "d", rollouts)


# Failures of the thread that writes shards.


def test_a_shard_that_cannot_be_finished(
    source: Path, rollouts: list[Any], sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at any shard raises an error and leaves no dataset.

    It also leaves no part of that shard for a resumed run.
    """
    finish = ShardWriter._finish
    shards = gear_data.convert(source, tmp_path / "whole", shard_bytes=2048).shards
    for bad in range(shards):

        def fail(writer: ShardWriter, unfinished: Any, *rest: Any, bad: int = bad) -> Any:
            if writer.finished_shards == bad:
                with unfinished.stack:
                    raise StorageFullError("no space left on the device")
            return finish(writer, unfinished, *rest)

        folder = tmp_path / f"d{bad}"
        with monkeypatch.context() as patch:
            patch.setattr(ShardWriter, "_finish", fail)
            with pytest.raises(StorageFullError):
                gear_data.convert(source, folder, shard_bytes=2048)
        with pytest.raises(DatasetNotFoundError):
            gear_data.open(folder)
        assert len(list((folder / "shards").glob("*.arrow"))) == bad if bad else not folder.exists()
        assert not list(tmp_path.rglob("*.tmp"))
        gear_data.convert(source, folder, shard_bytes=2048, resume=True)
        sources.check_dataset(folder, rollouts)


def test_a_shard_being_written_is_kept_when_the_source_fails(
    source: Path, rollouts: list[Any], sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_little(monkeypatch)
    nothing = sources.Rollout({name: values[:0] for name, values in rollouts[0].columns.items()}, rollouts[0].final)
    sources.write_episodes(source, [*rollouts[:-1], nothing], row_group=1)
    begun, finish = [], ShardWriter._finish

    def slow(writer: ShardWriter, unfinished: Any, *rest: Any) -> Any:
        begun.append(unfinished.name)
        time.sleep(0.1)
        return finish(writer, unfinished, *rest)

    monkeypatch.setattr(ShardWriter, "_finish", slow)
    with pytest.raises(BadEpisodeError):
        gear_data.convert(source, tmp_path / "d", shard_bytes=1024)
    assert len(begun) > 1
    assert sorted(str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*.arrow")) == sorted(begun)


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def large_source(sources: Any, tmp_path: Path) -> Path:
    """Writes about 300 KB of steps."""
    rollouts = sources.make_rollouts(200, seed=1, max_length=120)
    return sources.write_episodes(tmp_path / "large.parquet", rollouts, row_group=10)  # type: ignore[no-any-return]


@pytest.mark.parametrize("free", [0, 40_000])
def test_disk_full_before_the_first_shard(free: int, small_disk: Path, large_source: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(256 * 1024 - free))
    with pytest.raises(StorageFullError, match="no space left") as error:
        gear_data.convert(large_source, small_disk / "d")
    assert isinstance(error.value, OSError)
    assert str(small_disk / "d") in str(error.value.file)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_disk_full_at_a_later_shard(small_disk: Path, large_source: Path, sources: Any, tmp_path: Path) -> None:
    options = {"shard_bytes": 16 << 10}
    gear_data.convert(large_source, tmp_path / "whole", **options)
    target = small_disk / "d"
    for space in (60_000, 130_000):  # full twice, the second time at a later shard
        (small_disk / "filler").write_bytes(bytes(256 * 1024 - space))
        with pytest.raises(StorageFullError, match=r"finished shards? (is|are) kept: --resume"):
            gear_data.convert(large_source, target, **options, resume=target.exists())
        assert not list(target.rglob("*.tmp"))
        with pytest.raises(DatasetNotFoundError, match="did not finish"):
            gear_data.open(target)
        (small_disk / "filler").unlink()
    finished = {path.name: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}
    assert len(finished) > 3
    # The dataset is larger than the disk, so the conversion continues in another folder.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(target, elsewhere)
    gear_data.convert(large_source, elsewhere, **options, resume=True)
    assert sources.folder_contents(elsewhere) == sources.folder_contents(tmp_path / "whole")
    assert {name: (elsewhere / "shards" / name).stat().st_mtime_ns for name in finished} == finished

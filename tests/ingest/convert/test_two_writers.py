"""Tests two processes that write one destination at the same time.

One process stops between two of its steps, the other runs, then the first continues. The destination must hold one
whole dataset, of one source.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import DestinationExistsError, GearError, ResumeError
from gear_data.ingest.convert import convert
from gear_data.ingest.engine import tasks
from gear_data.ingest.repair import repair
from gear_data.ingest.sources.tables import read_units
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.progress_files import LOCK, PROGRESS
from tests.support.stopped_process import Stop, stoppable

pytestmark = pytest.mark.processes

_OPTIONS: dict[str, Any] = {"shard_bytes": 4096}

#: Between the first check of the destination and its lock.
CHECKED = Stop("gear_data.ingest.convert:choose_target", after=True)
#: After the lock, before the second check.
LOCKED = Stop("gear_data.ingest.destination:choose_target")
#: After the first shard.
SHARD = Stop("gear_data.storage.writing.shard_writer:ShardWriter._finish", after=True)
#: Before the removal of what an earlier overwrite left.
REMOVAL = Stop("gear_data.storage.writing.file_store:LocalFileStore.clear")
MANIFEST = Stop("gear_data.storage.writing.staging:StagedDataset.finish")
#: Before the removal of the progress files, with the manifest in place.
PROGRESS_FILES = Stop("gear_data.storage.writing.staging:put_text", after=True, argument=MANIFEST_NAME)
SWAP = Stop("gear_data.ingest.convert:swap_folders")
SWAPPED = Stop("gear_data.ingest.convert:swap_folders", after=True)


class Sources:
    """Two sources, and what each converts to."""

    def __init__(self, folder: Path, sources: Any) -> None:
        self.names: list[Path] = []
        self.contents: list[dict[str, Any]] = []
        self._read = sources.folder_contents
        for seed in (1, 2, 3):
            rollouts = sources.make_rollouts(20, seed=seed, max_length=20)
            self.names.append(sources.write_episodes(folder / f"{seed}.parquet", rollouts, row_group=5))
            convert(self.names[-1], folder / str(seed), **_OPTIONS)
            self.contents.append(self._read(folder / str(seed)))

    def number(self, destination: Path) -> int:
        """Returns the number of the source that the destination holds, whole and with no other file."""
        found = self._read(destination)
        for path in destination.parent.iterdir():
            assert path == destination, f"left behind: {path}"
        return self.contents.index(found)


@pytest.fixture(scope="module", autouse=True)
def no_syncs() -> Iterator[None]:
    """Leaves out what only a power failure would show, and takes the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, sources: Any) -> Sources:
    return Sources(tmp_path_factory.mktemp("sources"), sources)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "data"


def _names_holder(error: GearError, pid: int) -> bool:
    return isinstance(error, DestinationExistsError) and f"process {pid} on {os.uname().nodename} since 20" in str(
        error
    )


@pytest.mark.parametrize("second", ["plain", "overwrite"])
def test_a_conversion_before_the_lock_of_another(second: str, two: Sources, destination: Path) -> None:
    """The destination was free when the first process checked it, and is not when it has the lock."""
    options = {"overwrite": True} if second == "overwrite" else {}
    with stoppable(convert, two.names[0], destination, **_OPTIONS, stop=CHECKED) as first:
        first.expect("stopped")
        convert(two.names[1], destination, **_OPTIONS, **options)
        kind, error = first.end()
    assert kind == "error"
    assert isinstance(error, DestinationExistsError)
    assert two.number(destination) == 1


@pytest.mark.parametrize("first_options", [{}, {"resume": True}])
@pytest.mark.parametrize("stop", [LOCKED, SHARD, MANIFEST, PROGRESS_FILES])
def test_a_second_conversion_is_refused(
    stop: Stop, first_options: dict[str, bool], two: Sources, destination: Path
) -> None:
    with stoppable(convert, two.names[0], destination, **_OPTIONS, **first_options, stop=stop) as first:
        first.expect("stopped")
        for options in ({}, {"overwrite": True}):
            with pytest.raises(DestinationExistsError) as error:
                convert(two.names[1], destination, **_OPTIONS, **options)
            started = not options and stop is not LOCKED  # the second process sees files before it tries the lock
            assert started or _names_holder(error.value, first.pid)
        assert first.end()[0] == "done"
    assert two.number(destination) == 0


@pytest.mark.parametrize("stop", [LOCKED, REMOVAL, SHARD, MANIFEST, PROGRESS_FILES, SWAP, SWAPPED])
def test_an_overwrite_beside_others(stop: Stop, two: Sources, destination: Path) -> None:
    convert(two.names[2], destination, **_OPTIONS)
    with stoppable(convert, two.names[0], destination, **_OPTIONS, overwrite=True, stop=stop) as first:
        first.expect("stopped")
        with pytest.raises(DestinationExistsError) as error:
            convert(two.names[1], destination, **_OPTIONS, overwrite=True)
        assert _names_holder(error.value, first.pid)
        with pytest.raises(DestinationExistsError):
            convert(two.names[1], destination, **_OPTIONS)
        assert gear_data.verify(destination).ok  # the old dataset or the new one, whole
        assert first.end()[0] == "done"
    assert two.number(destination) == 0


def test_an_overwrite_after_the_check_of_another(two: Sources, destination: Path) -> None:
    convert(two.names[2], destination, **_OPTIONS)
    with stoppable(convert, two.names[0], destination, **_OPTIONS, overwrite=True, stop=CHECKED) as first:
        first.expect("stopped")
        convert(two.names[1], destination, **_OPTIONS, overwrite=True)
        assert first.end()[0] == "done"
    assert two.number(destination) == 0


@pytest.mark.parametrize("stop", [LOCKED, SHARD, MANIFEST, PROGRESS_FILES])
def test_resuming_waits_for_a_running_conversion(stop: Stop, two: Sources, destination: Path) -> None:
    with stoppable(convert, two.names[0], destination, **_OPTIONS, resume=True, stop=stop) as first:
        first.expect("stopped")
        with (
            stoppable(convert, two.names[0], destination, **_OPTIONS, resume=True) as same,
            stoppable(convert, two.names[1], destination, **_OPTIONS, resume=True) as other,
        ):
            for waiting in (same, other):
                assert f"process {first.pid} on" in waiting.expect("log")
            done, report = first.end()
            assert done == "done"
            assert same.expect("done").fingerprint == report.fingerprint
            assert isinstance(other.expect("error"), ResumeError)
    assert two.number(destination) == 0


def test_ranks_of_one_job(two: Sources, destination: Path) -> None:
    """All ranks convert at once: with resume, all have the same dataset."""
    with stoppable(convert, two.names[0], destination, **_OPTIONS, resume=True, stop=CHECKED) as late:
        late.expect("stopped")
        ranks = [stoppable(convert, two.names[0], destination, **_OPTIONS, resume=True) for _ in range(3)]
        fingerprints = set()
        for rank in ranks:
            with rank as process:
                fingerprints.add(process.end()[1].fingerprint)
        fingerprints.add(late.end()[1].fingerprint)
    assert fingerprints == {gear_data.open(destination).fingerprint}
    assert two.number(destination) == 0


def test_a_killed_holder_holds_nothing(two: Sources, destination: Path) -> None:
    with stoppable(convert, two.names[0], destination, **_OPTIONS, stop=SHARD) as first:
        first.expect("stopped")
        first.kill()
    convert(two.names[1], destination, **_OPTIONS, overwrite=True)
    assert two.number(destination) == 1


def test_workers_of_a_killed_conversion_hold_its_lock(two: Sources, destination: Path) -> None:
    """A worker outlives its parent by the time of one write. Until then nobody else writes."""
    stop = Stop("gear_data.ingest.engine.worker_pool:PoolEngine.run")
    with stoppable(_convert_in_two_processes, two.names[0], destination, stop=stop) as one:
        one.expect("stopped")
        (worker,) = _children(one.pid)
        os.kill(worker, signal.SIGSTOP)
        one.kill()
    with stoppable(convert, two.names[1], destination, **_OPTIONS, overwrite=True) as second:
        time.sleep(0.5)
        assert f'"pid": {one.pid}' in (destination / LOCK).read_text()
        os.kill(worker, signal.SIGCONT)
        second.expect("done")
    assert two.number(destination) == 1


def _convert_in_two_processes(source: Path, destination: Path) -> None:
    tasks.UNIT_BYTES = read_units.UNIT_BYTES = 1
    convert(source, destination, shard_bytes=1024, jobs=2)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def test_a_removed_lock_file_is_not_a_lock(destination: Path) -> None:
    """Whoever opened the lock file before its removal tries again with the new file."""
    store = LocalFileStore(destination)
    with stoppable(_lock_once, destination, stop=Stop("fcntl:flock")) as second:
        second.expect("stopped")  # it has opened the file, or will create it
        with store.locked(PROGRESS):
            pass  # removes the file at the end
        with store.locked(PROGRESS):
            kind, error = second.end()
            assert kind == "error"
            assert _names_holder(error, os.getpid())


def _lock_once(folder: Path) -> None:
    with LocalFileStore(folder).locked(PROGRESS):
        pass


def test_a_destination_removed_meanwhile(two: Sources, destination: Path) -> None:
    """A conversion whose folder was removed does not finish what is left of it."""
    with stoppable(convert, two.names[0], destination, **_OPTIONS, stop=SHARD) as first:
        first.expect("stopped")
        shutil.rmtree(destination)
        kind, error = first.end()
    assert kind == "error"
    assert isinstance(error, GearError)
    assert not (destination / MANIFEST_NAME).exists()


def test_repair_beside_an_overwrite(two: Sources, destination: Path) -> None:
    convert(two.names[0], destination, **_OPTIONS)
    shard = next((destination / "shards").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    with stoppable(convert, two.names[1], destination, **_OPTIONS, overwrite=True, stop=SWAP) as first:
        first.expect("stopped")
        with pytest.raises(DestinationExistsError) as error:
            repair(destination, two.names[0])
        assert _names_holder(error.value, first.pid)
        assert first.end()[0] == "done"
    assert two.number(destination) == 1
    shard = next((destination / "shards").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    stop = Stop("gear_data.ingest.repair:_rebuild")
    with stoppable(repair, destination, two.names[1], stop=stop) as first:
        first.expect("stopped")
        with pytest.raises(DestinationExistsError) as error:
            convert(two.names[0], destination, **_OPTIONS, overwrite=True)
        assert _names_holder(error.value, first.pid)
        assert first.end()[0] == "done"
    assert two.number(destination) == 1


def test_an_overwrite_between_verification_and_repair(two: Sources, destination: Path) -> None:
    convert(two.names[0], destination, **_OPTIONS)
    shard = next((destination / "shards").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    stop = Stop("gear_data.ingest.repair:verify", after=True)
    with stoppable(repair, destination, two.names[0], stop=stop) as first:
        first.expect("stopped")
        convert(two.names[1], destination, **_OPTIONS, overwrite=True)
        kind, error = first.end()
    assert kind == "error"
    assert "was replaced" in str(error)
    assert two.number(destination) == 1


def test_the_command_and_python_resume_each_other(two: Sources, destination: Path) -> None:
    command = ["convert", str(two.names[0]), str(destination), "--shard-bytes", "4096", "--resume"]
    assert main(command) == 0
    convert(two.names[0], destination, **_OPTIONS, resume=True)
    assert main(command) == 0
    assert two.number(destination) == 0

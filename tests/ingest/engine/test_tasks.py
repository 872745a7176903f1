"""Tests that all engines write the same bytes, also after workers died."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    DatasetNotFoundError,
    InvalidArgumentError,
    StorageFullError,
    WorkerError,
)
from gear_data.ingest.engine import tasks
from gear_data.ingest.source import Unit
from gear_data.ingest.sources.registry import known_formats
from gear_data.ingest.sources.tables import file_stream
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position
from gear_data.storage.writing.shard_writer import ShardWriter
from gear_data.storage.writing.staging import TaskResult
from tests.support.integrations.ray_cluster import ray_cluster

_OPTIONS: dict[str, Any] = {"shard_bytes": 4096, "progress": False}
_WORKER = "gear_data.ingest.engine.worker"


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tasks of a few KB. Only this process plans tasks."""
    known_formats()  # imports them all: a module that is imported now would keep the small size
    for name, module in list(sys.modules.items()):
        if name.startswith("gear_data.ingest.") and hasattr(module, "UNIT_BYTES"):
            monkeypatch.setattr(module, "UNIT_BYTES", 1)


@pytest.fixture
def source(sources: Any, rollouts: list[Any], tmp_path: Path) -> Path:
    """Writes eight files with a finding in each. The rollouts are in order."""
    marked = [
        r if i % 5 else r.with_columns(observations=np.full_like(r.columns["observations"], np.nan))
        for i, r in enumerate(rollouts)
    ]
    for i in range(8):
        sources.write_episodes(tmp_path / "source" / f"part-{i}.parquet", marked[i * 5 : i * 5 + 5])
    return tmp_path / "source"


@pytest.fixture
def whole(source: Path, tmp_path: Path) -> Path:
    """Converts the source in this process, one task after another."""
    gear_data.convert(source, tmp_path / "whole", jobs=1, **_OPTIONS)
    return tmp_path / "whole"


def _descendants(name: str) -> Iterator[psutil.Process]:
    """Yields descendants of this process whose command line or title has `name`."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has exited
            if name in " ".join(process.cmdline()):
                yield process


@pytest.fixture
def kill_one() -> Iterator[Callable[[str], list[int]]]:
    """Kills the first process of a name that appears.

    Returns a list that will hold its process id.
    """
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(name: str) -> list[int]:
        killed: list[int] = []

        def watch() -> None:
            while not killed and not stop.is_set():
                for process in _descendants(name):
                    time.sleep(0.3)  # by then it runs a task, or is about to
                    process.kill()
                    killed.append(process.pid)
                    return

        threads.append(threading.Thread(target=watch))
        threads[-1].start()
        return killed

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_plan_groups_units() -> None:
    units = [Unit(Position(i, 0), 10) for i in range(7)]
    planned = tasks.plan_tasks(units, shard_bytes=50)
    assert [(task.start.file, task.stop.file, task.bytes) for task in planned[:-1]] == [(0, 3, 30), (3, 6, 30)]
    assert planned[-1] == tasks.Task("00002-", Position(6, 0), END, 10)
    assert tasks.plan_tasks(units, shard_bytes=1 << 20) == (tasks.Task("", BEGIN, END, 70),)


@pytest.mark.parametrize(
    ("source_mb", "shard_mib", "workers"),
    [
        (100, 512, 0),
        (315, 512, 0),  # tasks of 268 and 47 MB
        (420, 512, 1),  # 268 and 152
        (945, 512, 3),  # 268, 268, 268 and 141
        (100, 64, 0),  # two tasks of 33, and 34: as small as the start of a worker
        (300, 64, 2),
        (300, 8192, 0),  # one task
    ],
)
def test_workers_that_are_worth_their_start(source_mb: int, shard_mib: int, workers: int) -> None:
    assert tasks.useful_workers(source_mb * 1_000_000, shard_mib << 20) == workers


@pytest.mark.processes
def test_shards_do_not_depend_on_the_number_of_processes(
    source: Path, whole: Path, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = gear_data.open(whole).manifest
    assert len(manifest.provenance["tasks"]) > 2
    assert [finding["count"] for finding in manifest.findings if finding["code"] == "non-finite"] == [
        sum(gear_data.open(whole).lengths[::5]) * 3
    ]
    assert gear_data.verify(whole).ok
    _hold_own_tasks(monkeypatch, lambda: any(tmp_path.rglob("*done.json")))
    gear_data.convert(source, tmp_path / "two", jobs=2, **_OPTIONS)
    assert sources.folder_contents(tmp_path / "two") == sources.folder_contents(whole)


def test_tasks_make_one_dataset(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """Episode ids, shards, rows, statistics and finals belong to the whole dataset."""
    source = sources.write_d4rl(tmp_path / "s.hdf5", rollouts)
    gear_data.convert(source, tmp_path / "d", jobs=1, **_OPTIONS)
    sources.check_dataset(tmp_path / "d", rollouts, final=True)


@pytest.mark.processes
def test_the_first_task_that_fails_gives_the_error(
    sources: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = sources.make_rollouts(1)[0]
    nothing = sources.Rollout({name: values[:0] for name, values in empty.columns.items()}, empty.final)
    for i in (3, 6):
        sources.write_episodes(source / f"part-{i}.parquet", [empty, nothing])
    for jobs in (1, 2):
        if jobs == 2:
            _hold_own_tasks(monkeypatch, lambda: any((tmp_path / "d2").rglob("*done.json")))
        with pytest.raises(BadEpisodeError, match="no steps") as error:
            gear_data.convert(source, tmp_path / f"d{jobs}", jobs=jobs, **_OPTIONS)
        assert (error.value.file, error.value.row) == ("part-3.parquet", 1)
        assert "--resume" in str(error.value)
        with pytest.raises(DatasetNotFoundError, match="did not finish"):
            gear_data.open(tmp_path / f"d{jobs}")


@pytest.mark.processes
def test_a_worker_that_dies(source: Path, whole: Path, sources: Any, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _replace_worker(patch, tmp_path, "parent.recv(); parent.send('ready'); parent.recv(); os.kill(os.getpid(), 9)")
        _hold_own_tasks(patch, lambda: not any(_descendants(_WORKER)))
        with pytest.raises(WorkerError, match="status -9"):
            gear_data.convert(source, tmp_path / "d", jobs=2, **_OPTIONS)
    gear_data.convert(source, tmp_path / "d", jobs=2, resume=True, **_OPTIONS)
    assert sources.folder_contents(tmp_path / "d") == sources.folder_contents(whole)


@pytest.mark.processes
def test_workers_that_never_begin_are_not_waited_for(
    source: Path, whole: Path, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _replace_worker(monkeypatch, tmp_path, "parent.recv(); time.sleep(1000)")
    gear_data.convert(source, tmp_path / "d", jobs=3, **_OPTIONS)
    assert sources.folder_contents(tmp_path / "d") == sources.folder_contents(whole)
    assert not any(_descendants(_WORKER))
    assert not [thread for thread in threading.enumerate() if thread.name == "gear-worker"]


def _replace_worker(patch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """Makes workers run some lines of Python, in which `parent` is the connection to this process."""
    program = folder / "python"
    head = "import os, sys, time\nfrom multiprocessing.connection import Connection\n"
    program.write_text(f"#!{sys.executable}\n{head}parent = Connection(int(sys.argv[3]))\n{lines}\n")
    program.chmod(0o700)
    patch.setattr("gear_data.ingest.engine.worker_pool.sys.executable", str(program))


def _hold_own_tasks(patch: pytest.MonkeyPatch, is_time: Callable[[], bool]) -> None:
    """Makes this process wait for an event before it runs a task, so that workers run tasks too."""

    def run(*arguments: Any) -> TaskResult:
        while not is_time():
            time.sleep(0.01)
        return tasks.run_task(*arguments)

    patch.setattr("gear_data.ingest.engine.worker_pool.run_task", run)


def test_an_error_of_writing_comes_before_a_later_one_of_reading(
    sources: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is written while the next one is read."""
    whole = sources.make_rollouts(1)[0]
    nothing = sources.Rollout({name: values[:0] for name, values in whole.columns.items()}, whole.final)
    sources.write_episodes(source / "part-3.parquet", [whole, nothing])
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 1)
    with pytest.raises(BadEpisodeError, match="no steps"):
        gear_data.convert(source, tmp_path / "read", jobs=1)
    append = ShardWriter.append

    def fail(writer: ShardWriter, block: EpisodeBlock, state: Any, skip: int = 0) -> None:
        if block.position.file == 2:
            raise StorageFullError("no space left on the device")
        append(writer, block, state, skip)

    monkeypatch.setattr(ShardWriter, "append", fail)
    with pytest.raises(StorageFullError):
        gear_data.convert(source, tmp_path / "written", jobs=1)


def test_one_task_starts_no_worker(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise OSError("started")

    monkeypatch.setattr("gear_data.ingest.engine.worker_pool.subprocess.Popen", start)
    rollouts = sources.make_rollouts(5)
    gear_data.convert(sources.write_episodes(tmp_path / "s.parquet", rollouts), tmp_path / "d", jobs=64)
    sources.check_dataset(tmp_path / "d", rollouts)


def test_a_source_in_memory_stays_in_this_process(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    import datasets

    columns = sources.episode_table([r.columns for r in rollouts])
    gear_data.convert(datasets.Dataset(columns), tmp_path / "d", jobs=2)
    sources.check_dataset(tmp_path / "d", rollouts)
    with pytest.raises(InvalidArgumentError, match="memory"):
        gear_data.convert(datasets.Dataset(columns), tmp_path / "r", engine="ray")
    assert not (tmp_path / "r").exists()


# Ray.


@pytest.fixture(scope="module", name="ray_cluster")
def cluster() -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with ray_cluster():
        yield


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
def test_ray_writes_the_same_bytes(
    source: Path, whole: Path, sources: Any, kill_one: Callable[[str], list[int]], tmp_path: Path
) -> None:
    gear_data.convert(source, tmp_path / "ray", engine="ray", **_OPTIONS)
    assert sources.folder_contents(tmp_path / "ray") == sources.folder_contents(whole)


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("videos", ["keep", "jpeg"])
def test_ray_reads_cameras(sources: Any, videos: Any, tmp_path: Path) -> None:
    robots = pytest.importorskip("tests.support.cameras.robots")
    robots.write_robot(tmp_path / "robot", sources.make_rollouts(3), [robots.FRONT])
    for engine in ("local", "ray"):
        gear_data.convert(tmp_path / "robot", tmp_path / engine, engine=engine, jobs=1, videos=videos, **_OPTIONS)
    assert len(gear_data.open(tmp_path / "ray").manifest.provenance["tasks"]) == 3
    assert sources.folder_contents(tmp_path / "ray") == sources.folder_contents(tmp_path / "local")


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
def test_ray_survives_a_worker_that_dies(sources: Any, kill_one: Callable[[str], list[int]], tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(60, max_length=2000)
    for i in range(20):
        sources.write_episodes(tmp_path / "source" / f"part-{i}.parquet", rollouts[i * 3 : i * 3 + 3])
    killed = kill_one("ray::_convert_task")
    gear_data.convert(tmp_path / "source", tmp_path / "d", engine="ray", jobs=1, **_OPTIONS)
    assert killed
    sources.check_dataset(tmp_path / "d", rollouts)


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
def test_ray_returns_errors(sources: Any, source: Path, tmp_path: Path) -> None:
    empty = sources.make_rollouts(1)[0]
    nothing = sources.Rollout({name: values[:0] for name, values in empty.columns.items()}, empty.final)
    sources.write_episodes(source / "part-5.parquet", [empty, nothing])
    with pytest.raises(BadEpisodeError, match="no steps") as error:
        gear_data.convert(source, tmp_path / "d", engine="ray", **_OPTIONS)
    assert (error.value.file, error.value.row) == ("part-5.parquet", 1)


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
def test_ray_prints_nothing(source: Path, whole: Path, sources: Any, tmp_path: Path) -> None:
    """Ray does not report the connection or the dashboard."""
    import ray

    command = [sys.executable, "-m", "gear_data.cli", "convert", str(source), str(tmp_path / "d"), "--engine", "ray"]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run([*command, "--shard-bytes", "4K"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert gear_data.open(tmp_path / "d").fingerprint == gear_data.open(whole).fingerprint

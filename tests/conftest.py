"""Fixtures that the tests of several packages share."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Set before the hub client is imported: no test uses the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# TorchRL changes the default to spawn when it is imported. Later tests in the process would start workers so.
multiprocessing.set_start_method("fork")


def _has_room(folder: str) -> bool:
    """Returns whether the files of all tests fit in a file system, which is in memory."""
    try:
        found = os.statvfs(folder)
        free = int(re.findall(r"MemAvailable: *([0-9]+) kB", Path("/proc/meminfo").read_text())[0]) << 10
    except (OSError, IndexError):
        return False
    # A container's may refuse to run programs.
    return min(found.f_bavail * found.f_frsize, free // 2) >= 6 << 30 and not found.f_flag & os.ST_NOEXEC


# Tests make and remove a million small files. On a disk this takes a quarter of their time.
if "TMPDIR" not in os.environ and _has_room("/dev/shm"):
    os.environ["TMPDIR"] = "/dev/shm"
    # What was imported before may have asked for the folder.
    tempfile.tempdir = None
# Processes that tests start must import this gear_data and tests.support.
_ROOT = str(Path(__file__).resolve().parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import settings

import gear_data
from tests.support.checks import check_dataset, check_units, folder_contents
from tests.support.feed import data as feed_data
from tests.support.rollouts import (
    Rollout,
    episode_numbers,
    episode_table,
    make_rollouts,
    nested,
    step_table,
    write_d4rl,
    write_episodes,
    write_lerobot,
    write_parquet,
    write_steps,
)
from tests.support.running import kernels_ahead
from tests.support.running.no_processes import no_processes
from tests.support.running.warm_python import python

# No deadline, because the first example may compile a kernel. Every run has the same examples.
settings.register_profile("feed", deadline=None, derandomize=True)
settings.load_profile("feed")


def _starts_workers(config: pytest.Config) -> bool:
    """Returns whether this process of pytest only starts others, which run the tests."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def _in_folders(file: Path, folders: Sequence[str]) -> bool:
    return file.relative_to(Path(__file__).parent).as_posix().startswith(tuple(f"{folder}/" for folder in folders))


#: Folders whose tests all belong to the second tier. Elsewhere, the marker `processes` says it of a module or a test.
#: The library that reads RLDS takes a quarter of a minute to import.
SECOND_TIER = (
    "benchmarks", "chaos", "cluster", "docs", "fuzz", "gpu", "ingest/sources/rlds", "integration", "integrations",
    "rdma", "recording/object_store", "storage/remote",
)  # fmt: skip


#: The QEMU guests. Needs minutes.
SLOWEST = "test_guest.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders of the second tier where only the first one runs: their imports take seconds."""
    first_only = "not processes" in config.getoption("markexpr")
    return True if first_only and _in_folders(collection_path / "", SECOND_TIER) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of some folders, before `-m` chooses the tests of a tier by their markers.

    The slowest module comes first: at the end, one process would run it alone.
    """
    for item in items:
        if _in_folders(item.path, SECOND_TIER):
            item.add_marker("processes")
    items.sort(key=lambda item: item.path.name != SLOWEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lets a test of the first tier fail if it starts a process, also in its fixtures."""
    first = not {"processes", "nightly"} & {marker.name for marker in item.iter_markers()}
    with no_processes() if first else nullcontext():
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    if _starts_workers(config):
        kernels_ahead.begin()
    else:
        # Imports leave a million objects, and no garbage.
        gc.disable()


def pytest_collection_finish() -> None:
    # Each collection of garbage would look at the million objects, which takes half a second.
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _starts_workers(config):
        kernels_ahead.end()


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Waits for the kernels that are compiled for all processes."""
    kernels_ahead.wait()


@dataclass(frozen=True)
class Sources:
    """Writers of every source layout, and checks of converted datasets."""

    Rollout: type[Rollout] = Rollout
    make_rollouts: Callable[..., list[Rollout]] = make_rollouts
    nested: Callable[..., pa.Array] = nested
    episode_table: Callable[..., pa.Table] = episode_table
    step_table: Callable[..., pa.Table] = step_table
    episode_numbers: Callable[..., npt.NDArray[np.int64]] = episode_numbers
    write_parquet: Callable[..., Path] = write_parquet
    write_episodes: Callable[..., Path] = write_episodes
    write_steps: Callable[..., Path] = write_steps
    write_d4rl: Callable[..., Path] = write_d4rl
    write_lerobot: Callable[..., Path] = write_lerobot
    check_dataset: Callable[..., None] = check_dataset
    check_units: Callable[..., int] = check_units
    folder_contents: Callable[..., dict[str, bytes]] = folder_contents


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Disables `fsync`, which takes most of the time of a small conversion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the GPU kernels that a process of tests compiles for the CPU."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def sources() -> Sources:
    """Rollouts, writers of every source layout, and `check_dataset`."""
    return Sources()


@pytest.fixture(scope="session")
def rollouts() -> list[Rollout]:
    """A few dozen episodes of up to 12 steps: 3 observations, 2 actions."""
    return make_rollouts(40, seed=7)


@pytest.fixture(scope="session")
def converted_rollouts(rollouts: list[Rollout], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that `rollouts_path` copies: a dataset and its source."""
    folder = tmp_path_factory.mktemp("rollouts")
    source = write_d4rl(folder / "source.hdf5", rollouts)
    assert gear_data.convert(source, folder / "dataset", shard_bytes=2048).shards > 2
    return folder


@pytest.fixture
def rollouts_path(converted_rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rollouts` converted into several shards, with final observations.

    Each test gets its own copy.
    """
    folder = tmp_path_factory.mktemp("rollouts")
    shutil.copytree(converted_rollouts, folder, dirs_exist_ok=True)
    return folder / "dataset"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data; tests are skipped without it.

    The folder is $GEAR_DATA_SHARED, or shared/data next to the repository.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("GEAR_DATA_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder; set GEAR_DATA_SHARED")
    return folder


@pytest.fixture
def memory_url(tmp_path: Path) -> Iterator[str]:
    """URL of a folder in fsspec's in-memory file system, removed at the end."""
    import fsspec

    name = f"/{tmp_path.name}"
    yield f"memory:/{name}"
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(name):
        filesystem.rm(name, recursive=True)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Limits torch to one thread.

    Tests fork DataLoader workers and start threads; torch's thread pool would compete with them for cores.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def quick_spawn() -> Iterator[None]:
    """Lets spawned processes start with torch imported."""
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(python())
    yield
    multiprocessing.set_executable(before)


#: Folders whose tests let the packages start many interpreters, for videos and the tasks of a conversion; and chaos.
_QUICK_FOLDERS = (
    "chaos", "dataset/curation", "exports/lerobot", "ingest/cached", "ingest/engine", "ingest/videos", "recording",
    "storage/videos",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick_interpreters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets interpreters that the packages start be forks of one that has imported torch."""
    if _in_folders(request.path, _QUICK_FOLDERS) and "processes" in request.keywords:
        monkeypatch.setattr(sys, "executable", python())


Make = Callable[..., gear_data.Dataset]


@pytest.fixture
def make_dataset(tmp_path: Path) -> Make:
    """`make_dataset(episodes, **options)` converts episodes and opens them."""
    count = 0

    def make(episodes: Sequence[Mapping[str, Any]], **options: Any) -> gear_data.Dataset:
        nonlocal count
        count += 1
        return feed_data.convert_episodes(episodes, tmp_path / f"dataset-{count}", **options)

    return make


@pytest.fixture(scope="session")
def episodes() -> list[dict[str, np.ndarray]]:
    """Nine episodes of 1 to 40 steps; all numbers are different.

    The columns are observations, actions and rewards, float32.
    """
    return feed_data.locomotion([7, 1, 23, 40, 2, 20, 19, 21, 5], seed=11)


@pytest.fixture(scope="session")
def dataset(episodes: list[dict[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """`episodes`, converted into several shards."""
    opened = feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("feed") / "dataset", shard_bytes=1024)
    assert opened.episodes["shard"].n_unique() > 2
    return opened

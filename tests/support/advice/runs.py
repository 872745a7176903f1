"""Errors of conversions that stopped, destinations at URLs, the cache, journals and several sources."""

from __future__ import annotations

import errno
import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pytest

import gear_data
from gear_data import ConvertOptions
from gear_data.cli import main
from gear_data.errors import (
    CorruptSourceError,
    DestinationExistsError,
    HostMemoryError,
    InvalidArgumentError,
    ResumeError,
    SourceChangedError,
    StorageFullError,
    UnknownFormatError,
    UnsupportedColumnError,
    UnwritableError,
)
from gear_data.ingest import convert as conversions
from gear_data.ingest import repair as repairing
from gear_data.ingest.cached.entries import find_entries, list_entries, prune
from gear_data.ingest.destination import CONTINUE
from gear_data.ingest.sources.zarr.array import ZarrReader
from gear_data.schema import ColumnSpec
from gear_data.storage import atomic
from gear_data.storage.episode_block import BEGIN, Position
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.folder_lock import folder_lock
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.advice.arrays import given, npz_files, value
from tests.support.advice.places import ARRAYS_OF_STEPS, convert, converted, damaged, repair, verified
from tests.support.advice.rows import END, Advice, Scene, npz, steps
from tests.support.advice.stores import store

WIDE = npz(**{**ARRAYS_OF_STEPS, "observations": np.ones((12, 100))})
EACH = {"shard_bytes": 2048}


def patched(target: Any, name: str, replacement: Any, action: Callable[[], Any]) -> Any:
    """Runs an action while a name has another value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, replacement)
        return action()


def stopped(folder: Path, destination: str | Path = "dataset") -> Any:
    """Converts until the disk is full, after the first of two shards."""
    write_shard = ShardWriter._write_shard

    def fail(writer: ShardWriter, **kwargs: Any) -> Any:
        if writer.shards:
            raise StorageFullError("no space left on the device")
        return write_shard(writer, **kwargs)

    convert_it = lambda: gear_data.convert(WIDE(folder), destination, progress=False, **EACH)  # noqa: E731
    return patched(ShardWriter, "_write_shard", fail, convert_it)


def unfinished(folder: Path, destination: str | Path = "dataset") -> Path:
    with pytest.raises(StorageFullError):
        stopped(folder, folder / destination if destination == "dataset" else destination)
    return folder / "data.npz"


def resumed(folder: Path, **arguments: Any) -> Path:
    return convert(folder, source=folder / "data.npz", **EACH, **(arguments or {"resume": True}))


def as_the_hint_says(folder: Path) -> Path:
    command = ["convert", str(folder / "data.npz"), str(folder / "dataset"), "--resume"]
    assert main([*command, "--shard-bytes", "2048"]) == 0
    return folder / "dataset"


def at_a_url(folder: Path, name: str = "dataset") -> str:
    return f"memory:/{folder}/{name}"


def convert_to_url(folder: Path, name: str = "dataset", **arguments: Any) -> Any:
    gear_data.convert(ARRAYS_OF_STEPS, at_a_url(folder, name), progress=False, **arguments)
    return gear_data.open(at_a_url(folder, name))


def remove_it(folder: Path) -> Any:
    fsspec.filesystem("memory").rm(at_a_url(folder), recursive=True)
    return convert_to_url(folder)


def resumed_at_url(folder: Path) -> Any:
    gear_data.convert(folder / "data.npz", at_a_url(folder), progress=False, resume=True, **EACH)
    return gear_data.open(at_a_url(folder))


def unreadable(folder: Path) -> Any:
    """Converts a folder with a file that this process may not read."""
    status = os.stat

    def denied(path: Any, **options: Any) -> Any:
        if str(path).endswith("data.npz"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return status(path, **options)

    WIDE(folder)
    return patched(os, "stat", denied, lambda: convert(folder, source=folder))


def shortened(folder: Path) -> Any:
    """Converts a Zarr store of which a file becomes shorter while it is read."""
    source, decode = store()(folder), ZarrReader._decode

    def slow(*arguments: Any) -> Any:
        os.truncate(source / "data/action/1.0", 3)
        return decode(*arguments)

    return patched(ZarrReader, "_decode", slow, lambda: convert(folder, source=source))


def removed_meanwhile(folder: Path) -> Any:
    """Resumes a dataset whose manifest is removed between two looks at it."""
    dataset = converted(folder)

    def missing(*_: Any) -> bytes:
        raise FileNotFoundError

    return patched(LocalFileStore, "read", missing, lambda: convert(dataset.parent, resume=True))


def locked(folder: Path) -> Any:
    """Repairs a dataset while another repair does."""
    dataset = repair(folder)
    with folder_lock(dataset / PROGRESS, name="other", hint=""):
        gear_data.repair(dataset, folder / "data.npz", progress=False)


def replaced(folder: Path) -> Any:
    """Repairs a dataset that another process replaces before the repair begins."""
    dataset = repair(folder)

    @contextmanager
    def slow(*arguments: Any, **options: Any) -> Iterator[Any]:
        convert(folder, source=folder / "data.npz", overwrite=True, columns=["observations"])
        with folder_lock(*arguments, **options) as lock:
            yield lock

    return patched(repairing, "folder_lock", slow, lambda: gear_data.repair(dataset, folder / "data.npz"))


def repaired(folder: Path) -> Path:
    gear_data.repair(folder / "dataset", folder / "data.npz", progress=False)
    return verified(folder / "dataset")


def grown(folder: Path) -> Path:
    """Records two episodes, a shard each, and damages a shard, of which there is a copy."""
    with gear_data.Writer(folder / "dataset", durability="os", shard_bytes=1024) as writer:
        for i in range(2):
            for t in range(6):
                writer.append(observations=np.full(100, i), actions=np.zeros(1), rewards=float(t))
            writer.end_episode(terminated=True)
    shard = max((folder / "dataset/shards").iterdir())
    shutil.copy(shard, folder / shard.name)
    return damaged(folder / "dataset", shard.name)


def from_backup(folder: Path) -> Path:
    (shard,) = folder.glob("*.arrow")
    shutil.copy(shard, folder / "dataset/shards")
    return verified(folder / "dataset")


def cached(folder: Path, cache: str = "cache", **options: Any) -> gear_data.Dataset:
    if not (folder / "data.npz").exists():
        npz(**ARRAYS_OF_STEPS)(folder)
    return gear_data.open(folder / "data.npz", cache_dir=folder / cache, **options)


def with_full_disk(folder: Path) -> Any:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return patched(atomic.os, "replace", full, lambda: cached(folder))


def with_other_steps(folder: Path) -> Any:
    """Opens a source that changes while it is converted."""
    run = conversions.run_conversion

    def changing(*arguments: Any, **options: Any) -> Any:
        result = run(*arguments, **options)
        npz(**{**ARRAYS_OF_STEPS, "rewards": np.zeros(12)})(folder)
        return result

    return patched(conversions, "run_conversion", changing, lambda: cached(folder))


def pruned(folder: Path) -> gear_data.Dataset:
    """Runs the command of the hint: the cache is not the default one."""
    with pytest.raises(StorageFullError) as error:
        with_full_disk(folder)
    command = shlex.split(str(error.value.hint).split("`")[1])
    assert command[0] == "gear-data" and main(command[1:]) == 0
    return cached(folder)


def listed(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEAR_DATA_CACHE", str(folder / "cache"))
        assert main(["cache", "list"]) == 0
    (entry,) = find_entries(folder / "cache", list_entries(folder / "cache")[0].key)
    return next(entry.folder.glob("*/manifest.json")).parent


def journals(folder: Path) -> Path:
    """Writes two journals of an episode each, of which one has rewards."""
    (folder / "journals").mkdir()
    columns = [ColumnSpec("observations", "float32", (2,)), ColumnSpec("actions", "float32", (1,))]
    for name, more in (("a", []), ("b", [ColumnSpec("rewards", "float32")])):
        writer = JournalWriter(folder / f"journals/{name}.arrows", [*columns, *more])
        values = {each.name: np.ones((6, *each.shape), np.float32) for each in (*columns, *more)}
        writer.append(RecordedEpisode(values, True, False))
        writer.close()
    return folder / "journals"


def merged(folder: Path, sources: list[Any], **arguments: Any) -> Path:
    """Converts sources, the last one with these arguments, and merges the datasets."""
    for i, source in enumerate(sources):
        convert(folder, f"part-{i}", source, **(arguments if i == len(sources) - 1 else {}))
    gear_data.merge([folder / f"part-{i}" for i in range(len(sources))], folder / "both", progress=False)
    return folder / "both"


def with_camera(rows: int) -> list[dict[str, Any]]:
    return [{"observations": np.zeros((7, 2)), "actions": np.zeros((6, 1)), "observations.top": np.zeros((rows, 3))}]


def read_twice(folder: Path) -> Any:
    source, _, _ = ConvertOptions().spec(iter([{"actions": np.zeros(6)}] * 2)).open()
    return [list(source.blocks(BEGIN, Position(0, 9))) for _ in range(2)]


def too_large(size: int) -> Callable[[], Any]:
    """Returns a maker of a function that yields episodes of this size, for a memory of ten steps."""

    def episodes() -> Iterator[dict[str, Any]]:
        for _ in range(12 // size):
            if size > 10:
                raise MemoryError
            yield {"observations": np.zeros((size, 2)), "actions": np.zeros((size, 1))}

    return lambda: episodes


class ReplayBuffer:
    """Stands for the replay buffer of Stable-Baselines3."""


@contextmanager
def stable_baselines3() -> Iterator[None]:
    """Makes `ReplayBuffer` a class of Stable-Baselines3, which is not installed."""
    names = ("stable_baselines3", "stable_baselines3.common", "stable_baselines3.common.buffers")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setattr(sys.modules[names[-1]], "ReplayBuffer", ReplayBuffer, raising=False)
        patch.setattr(ReplayBuffer, "__module__", names[-1])
        yield


def pickled(folder: Path) -> Path:
    buffer: Any = ReplayBuffer()
    buffer.observations, buffer.next_observations = np.zeros((12, 1, 2)), np.ones((12, 1, 2))
    buffer.actions, buffer.rewards, buffer.dones = np.zeros((12, 1, 1)), np.ones((12, 1)), END[:, None]
    buffer.pos, buffer.full = 0, True
    with stable_baselines3():
        (folder / "buffer.pkl").write_bytes(pickle.dumps(buffer))
    return folder / "buffer.pkl"


def saved_by_statements(source: Path) -> Path:
    """Executes the statements of the hint, and returns the archive that they write."""
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, source.parent / "none", progress=False)
    with stable_baselines3():
        exec(str(error.value.hint).partition("\n\n")[2], {})
    return source.parent / "buffer.npz"


def returns(folder: Path) -> list[Path]:
    """Writes a source with rewards, and one with returns to go."""
    rows = {"observations": np.ones((12, 3)), "actions": np.ones((12, 1)), "timeouts": END}
    npz_files(steps(timeouts=END), {**rows, "returns_to_go": np.ones(12)})(folder)
    return [folder / "0.npz", folder / "1.npz"]


RUNS: dict[str, Advice | Scene] = {
    "a conversion that stopped": Scene(
        lambda folder: stopped(folder, folder / "dataset"), StorageFullError, CONTINUE, resumed
    ),
    "an unfinished conversion is there: resumed": Scene(
        lambda folder: convert(folder, source=unfinished(folder), **EACH), DestinationExistsError,
        "--resume (resume=True) continues it", resumed,
    ),
    "an unfinished conversion is there: replaced": Scene(
        lambda folder: convert(folder, source=unfinished(folder), **EACH), DestinationExistsError,
        "--overwrite (overwrite=True) starts again", lambda folder: resumed(folder, overwrite=True),
    ),
    "an unfinished conversion is the source": Scene(
        lambda folder: (unfinished(folder), convert(folder, "again", folder / "dataset")), UnknownFormatError,
        "resume it: gear-data convert SRC", as_the_hint_says,
    ),
    "a finished dataset of other options": Scene(
        lambda folder: convert(converted(folder).parent, columns=["observations"], resume=True), ResumeError,
        "use --overwrite (overwrite=True) to convert again",
        lambda folder: convert(folder, columns=["observations"], overwrite=True),
    ),
    "a dataset that is removed meanwhile": Scene(
        removed_meanwhile, ResumeError, "run the same command again", lambda folder: convert(folder, resume=True)
    ),
    "a file without permission": Scene(
        unreadable, CorruptSourceError, "check its permissions",
        lambda folder: ((folder / "data.npz").chmod(0o644), resumed(folder, overwrite=True))[1],
    ),
    "Zarr, a file that becomes shorter": Scene(
        shortened, CorruptSourceError, "do not change the source while it is read",
        lambda folder: convert(folder, source=store()(folder)),
    ),
    "a dataset at a mount point": Scene(
        lambda folder: patched(
            Path, "is_mount", lambda _: True, lambda: convert(converted(folder).parent, overwrite=True)
        ),
        DestinationExistsError, "convert into a folder inside it", lambda folder: convert(folder, "dataset/inside"),
    ),
    "a folder at a URL is there: another": Scene(
        lambda folder: [convert_to_url(folder) for _ in range(2)], DestinationExistsError,
        "choose another destination", lambda folder: convert_to_url(folder, "another"),
    ),
    "a folder at a URL is there: removed": Scene(
        lambda folder: [convert_to_url(folder) for _ in range(2)], DestinationExistsError, "or remove it", remove_it
    ),
    "a folder at a URL that --overwrite does not replace": Scene(
        lambda folder: (convert_to_url(folder), convert_to_url(folder, overwrite=True)), DestinationExistsError,
        "remove it yourself", remove_it,
    ),
    "an unfinished conversion is at a URL": Scene(
        lambda folder: (unfinished(folder, at_a_url(folder)), convert_to_url(folder)), DestinationExistsError,
        "it is an unfinished conversion: --resume (resume=True) continues it", resumed_at_url,
    ),
    "a repair beside another": Scene(
        locked, DestinationExistsError, "wait until it has finished, then run repair again", repaired
    ),
    "a repair of what is replaced": Scene(
        replaced, DestinationExistsError, "run repair again", repaired
    ),
    "a repair of a recording: from a backup": Scene(
        lambda folder: gear_data.repair(grown(folder), folder / "none"), InvalidArgumentError,
        "copy the damaged shards from a backup", from_backup,
    ),
    "a repair of a recording: without the shards": Scene(
        lambda folder: gear_data.repair(grown(folder), folder / "none"), InvalidArgumentError,
        "open the dataset with on_bad_shard='skip'",
        lambda folder: gear_data.open(folder / "dataset", on_bad_shard="skip"), 6,
    ),
    "the cache, a full disk: space": Scene(
        with_full_disk, StorageFullError, "free some space, such as by `gear-data cache prune --max-bytes 0 --folder ",
        pruned,
    ),
    "the cache, a full disk: another folder": Scene(
        with_full_disk, StorageFullError, "set $GEAR_DATA_CACHE (cache_dir=) to another folder",
        lambda folder: cached(folder, "other"),
    ),
    "the cache is a file": Scene(
        lambda folder: ((folder / "cache").write_text(""), cached(folder)), UnwritableError,
        "set $GEAR_DATA_CACHE (cache_dir=) to another folder", lambda folder: cached(folder, "other"),
    ),
    "the cache, a source that changes": Scene(
        with_other_steps, SourceChangedError, "open it again when nothing writes to it", cached
    ),
    "the cache, an unknown conversion": Scene(
        lambda folder: (cached(folder), find_entries(folder / "cache", "none")), InvalidArgumentError,
        "gear-data cache list shows all", listed,
    ),
    "the cache, a negative size": Scene(
        lambda folder: prune(folder / "cache", -1), InvalidArgumentError, "give 0 or more",
        lambda folder: (prune(folder / "cache", 0), cached(folder))[1],
    ),
    "the cache, options that are no mapping": Scene(
        lambda _: ConvertOptions.parse("train"), InvalidArgumentError, "such as {split: train}",
        lambda folder: cached(folder, convert=ConvertOptions.parse({"format": "npz"})),
    ),
    "journals of other columns": Scene(
        lambda folder: convert(folder, source=journals(folder)), UnsupportedColumnError,
        "convert the journals one by one, and merge the datasets",
        lambda folder: merged(folder, sorted((folder / "journals").iterdir())),
    ),
    "two datasets, final observations of another column: without": Scene(
        lambda folder: merged(folder, [with_camera(7), with_camera(6)]), UnsupportedColumnError,
        "convert one of them again without the column",
        lambda folder: merged(folder / "again", [with_camera(7), with_camera(6)], columns=["observations", "actions"]),
    ),
    "two datasets, final observations of another column: renamed": Scene(
        lambda folder: merged(folder, [with_camera(7), with_camera(6)]), UnsupportedColumnError, "(--rename)",
        lambda folder: merged(
            folder / "again", [with_camera(7), with_camera(6)], rename={"observations.top": "infos.top"}
        ),
    ),
    "two sources, returns to go of one: renamed": Scene(
        lambda folder: convert(folder, source=returns(folder)), UnsupportedColumnError,
        "convert this source by itself, with --rename returns_to_go=NAME",
        lambda folder: merged(folder, returns(folder), rename={"returns_to_go": "infos.returns"}), 24,
    ),
    "two sources, returns to go of one: without": Scene(
        lambda folder: convert(folder, source=returns(folder)), UnsupportedColumnError,
        "or without the column (--columns), and merge the datasets",
        lambda folder: merged(folder, returns(folder), columns=["observations", "actions"]), 24,
    ),
    "an iterator that is read twice": Scene(
        read_twice, InvalidArgumentError, "pass a list, or the generator function itself",
        lambda folder: convert(folder, source=[{"actions": np.zeros(6)}] * 2),
    ),
    "episodes that do not fit the memory": Advice(
        value(too_large(12)), HostMemoryError, "else split its episodes", source=given(too_large(6))
    ),
    "Stable-Baselines3, a pickle": Advice(
        pickled, UnknownFormatError, "if you trust the file, save its arrays, and convert buffer.npz",
        source=saved_by_statements,
    ),
}  # fmt: skip

"""Residency `host`: the same bytes, which only the same dataset finds."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import logging
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.common.file_lock import locked
from gear_data.errors import CorruptShardError, HostMemoryError, OpenFilesError
from gear_data.residency import available_memory as memory
from gear_data.residency import host
from gear_data.residency import shared_memory as segment
from gear_data.residency import shared_memory_registry as registries
from gear_data.residency.shared_memory import HEADER_BYTES, Segment, create_segment
from gear_data.residency.shared_memory_registry import Holder, find_or_create
from gear_data.storage.dataset_files import FolderFiles

SIZE = HEADER_BYTES + 100
SEGMENT = Segment("key", SIZE)


_of_earlier_tests: set[int] = set()


@pytest.fixture(autouse=True)
def segments_of_earlier_tests() -> None:
    """Frees what datasets of earlier tests hold in reference cycles, and sets aside what is still mapped."""
    gc.collect()
    _of_earlier_tests.clear()
    _of_earlier_tests.update(inodes())


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test a separate registry."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def registry(runtime: Path) -> Path:
    return runtime / f"gear-data-host-{os.geteuid()}"


def inodes() -> set[int]:
    """Returns the inodes of the segments that this process has mapped since the test began."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:gear-data-" in line]
    return {int(fields[4]) for fields in maps} - _of_earlier_tests


def open_files() -> int:
    gc.collect()  # the traceback of an error may hold a dataset, which holds its manifest
    return len(os.listdir("/proc/self/fd"))


def check_same(left: Any, right: Any) -> None:
    assert left.num_episodes == right.num_episodes
    for index in range(left.num_episodes):
        for name, values in left.episode(index).items():
            other = right.episode(index)[name]
            assert (values.dtype, values.shape) == (other.dtype, other.shape)
            assert values.tobytes() == other.tobytes()


def test_every_column_has_the_bytes_of_the_files(rollouts_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pieces and chunks of a few bytes, so that their edges lie everywhere.
    monkeypatch.setattr(host, "_PIECE", 100)
    monkeypatch.setattr(host, "_CHUNK", 33)
    mapped, shared = (gear_data.open(rollouts_path, residency=residency) for residency in ("mmap", "host"))
    check_same(mapped, shared)
    assert len(inodes()) == 1
    values = shared.episode(1)["observations"]
    assert not values.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        values.flags.writeable = True


def test_columns_begin_at_multiples_of_256_bytes(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path, residency="host")
    manifest = ds.manifest
    shards = host.host_shards(FolderFiles(rollouts_path), manifest.schema, manifest.shards)
    assert shards.all_mapped
    assert not (shards.addresses % 256).any()
    # Nothing overlaps.
    sizes = np.array([[s.steps * c.row_bytes for c in manifest.schema] for s in manifest.shards]).ravel()
    starts = shards.addresses.ravel()
    order = np.argsort(starts)
    assert (starts[order][:-1] + sizes[order][:-1] <= starts[order][1:]).all()


def test_text_and_bytes_are_there_too(tmp_path: Path, sources: Any) -> None:
    texts = [["a", "", "åß∂"], ["long " * 100], ["x", "y"]]
    columns = [{"rewards": np.arange(len(text), dtype=np.float32), "texts": np.array(text, object)} for text in texts]
    rows = [{name: values.tolist() for name, values in episode.items()} for episode in columns]
    import pyarrow as pa

    sources.write_parquet(tmp_path / "source.parquet", pa.Table.from_pylist(rows))
    gear_data.convert(tmp_path / "source.parquet", tmp_path / "dataset", format="episode-rows")
    ds = gear_data.open(tmp_path / "dataset", residency="host")
    assert [ds.episode(i)["texts"].tolist() for i in range(3)] == texts


def test_arrays_outlive_the_dataset_and_all_memory_is_freed(rollouts: list[Any], rollouts_path: Path) -> None:
    before = open_files()
    ds = gear_data.open(rollouts_path, residency="host")
    values = ds.episode(3)["observations"]
    del ds
    gc.collect()
    assert len(inodes()) == 1
    np.testing.assert_array_equal(values, rollouts[3].columns["observations"])
    del values
    gc.collect()
    assert inodes() == set()
    assert open_files() == before


def test_two_datasets_share_one_copy_until_both_are_closed(rollouts_path: Path) -> None:
    first = gear_data.open(rollouts_path, residency="host")
    second = gear_data.open(str(rollouts_path), residency="host")
    (before,) = inodes()
    del first
    gc.collect()
    third = gear_data.open(rollouts_path, residency="host")
    assert inodes() == {before}
    del second, third
    gc.collect()
    fourth = gear_data.open(rollouts_path, residency="host")
    assert inodes() != {before}
    check_same(fourth, gear_data.open(rollouts_path))


def test_different_datasets_have_different_copies(rollouts_path: Path, tmp_path: Path) -> None:
    """A copy with the same files and checksums is another dataset, too."""
    shutil.copytree(rollouts_path, tmp_path / "copy")
    kept = [gear_data.open(path, residency="host") for path in (rollouts_path, tmp_path / "copy")]
    assert len(inodes()) == len(kept)


def test_different_users_have_different_copies(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user has a separate folder, as far as one user can check."""
    kept = [gear_data.open(rollouts_path, residency="host")]
    (tmp_path / "another").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "another"))
    kept.append(gear_data.open(rollouts_path, residency="host"))
    assert len(inodes()) == 2
    check_same(*kept)


def test_another_dataset_in_the_same_place(tmp_path: Path, sources: Any) -> None:
    """The new dataset has columns of the same sizes."""
    first, second = (sources.make_rollouts(5, seed=1), [])
    for rollout in first:
        second.append(rollout.with_columns(rewards=rollout.columns["rewards"] + 1))
    path = tmp_path / "dataset"
    for rollouts, overwrite in ((first, False), (second, True)):
        source = sources.write_d4rl(tmp_path / "source.hdf5", rollouts)
        gear_data.convert(source, path, overwrite=overwrite)
        kept = gear_data.open(path, residency="host")
        if not overwrite:
            old = kept
    for ds, rollouts in ((old, first), (kept, second)):
        for i, rollout in enumerate(rollouts):
            np.testing.assert_array_equal(ds.episode(i)["rewards"], rollout.columns["rewards"])
    assert len(inodes()) == 2


def test_shards_rewritten_under_the_old_manifest_are_read_again(rollouts_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    shutil.copytree(rollouts_path, path)
    old = gear_data.open(path, residency="host")
    shard = path / old.manifest.shards[0].entry.file
    data = shard.read_bytes()
    shard.unlink()
    place = old.manifest.shards[0].buffers["observations"]
    shard.write_bytes(data[:place] + b"\1\2\3\4" + data[place + 4 :])
    new = gear_data.open(path, residency="host")
    assert new.episode(0)["observations"].tobytes()[:4] == b"\1\2\3\4"
    assert old.episode(0)["observations"].tobytes()[:4] != b"\1\2\3\4"


def _spoil_mode(folder: Path) -> None:
    folder.mkdir(mode=0o755)


def _spoil_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def _spoil_file(folder: Path) -> None:
    folder.touch()


def _spoil_owner(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("spoil", [_spoil_mode, _spoil_link, _spoil_file, _spoil_owner])
def test_a_folder_that_is_not_private_is_not_used(
    rollouts_path: Path, runtime: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(registry(runtime))
    kept = [gear_data.open(rollouts_path, residency="host") for _ in range(2)]
    assert len(inodes()) == len(kept)
    assert sum("not shared" in record.message for record in caplog.records) == 2
    check_same(kept[0], gear_data.open(rollouts_path))
    assert not list(runtime.rglob("*.json"))


def make(key: str = "key", fill: bytes = b"") -> int:
    return create_segment(Segment(key, SIZE), lambda descriptor: os.pwrite(descriptor, fill, HEADER_BYTES) and None)


def note(runtime: Path, descriptor: int) -> list[list[int]]:
    """Registers this process as a holder of a segment, and returns the rows."""
    os.close(find_or_create(SEGMENT, make))
    (path,) = registry(runtime).glob("key-*.json")
    (row,) = json.loads(path.read_text())
    row[2:] = [descriptor, os.fstat(descriptor).st_ino]
    path.write_text(json.dumps([row]))
    return [row]


def unsealed() -> int:
    """A copy that is not complete."""
    descriptor = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    finished = make()
    os.pwrite(descriptor, os.pread(finished, SIZE, 0), 0)
    os.close(finished)
    return descriptor


def a_file() -> int:
    return os.open(__file__, os.O_RDONLY)


def shorter() -> int:
    return create_segment(Segment("key", SIZE - 1), lambda descriptor: None)


def test_a_holder_is_found(runtime: Path) -> None:
    held = make(fill=b"held")
    note(runtime, held)
    found = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert os.pread(found, 4, HEADER_BYTES) == b"held"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(found, b"x", HEADER_BYTES)
    for seal in (lambda: os.pwrite(held, b"x", HEADER_BYTES), lambda: os.ftruncate(held, 0)):
        with pytest.raises(PermissionError):
            seal()
    for descriptor in (held, found):
        os.close(descriptor)


@pytest.mark.parametrize("other", [unsealed, a_file, shorter, lambda: make("other")])
def test_the_open_file_must_be_the_segment(
    runtime: Path, other: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    descriptor = other()
    note(runtime, descriptor)
    made = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert os.pread(made, 4, HEADER_BYTES) == b"made"
    assert any("this process cannot open it" in record.message for record in caplog.records)
    for number in (made, descriptor):
        os.close(number)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_row_must_fit_a_living_process(runtime: Path, place: int) -> None:
    """A row has the id, the start time, the descriptor and the inode."""
    held = make(fill=b"held")
    (row,) = note(runtime, held)
    row[place] += 1 << 20
    (path,) = registry(runtime).glob("key-*.json")
    path.write_text(json.dumps([row]))
    made = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert os.pread(made, 4, HEADER_BYTES) == b"made"
    # The stale row was removed.
    assert [row[2] for row in json.loads(path.read_text())] == [made]
    for number in (made, held):
        os.close(number)


def test_a_holder_that_ends_meanwhile_is_no_holder(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = make()
    note(runtime, held)
    checks = []

    def check_and_free(holder: Holder) -> bool:
        checks.append(alive(holder))
        if len(checks) == 1:
            os.close(held)
        return checks[-1]

    alive = Holder.is_alive
    monkeypatch.setattr(Holder, "is_alive", check_and_free)
    made = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert checks == [True, False] and os.pread(made, 4, HEADER_BYTES) == b"made"
    assert not caplog.records
    (path,) = registry(runtime).glob("key-*.json")
    assert [row[2] for row in json.loads(path.read_text())] == [made]
    os.close(made)


@pytest.mark.parametrize("text", ["", "{", "[[1, 2]]", '[["a", "b", "c", "d"]]', "7", "\x00"])
def test_damaged_rows_are_ignored(runtime: Path, text: str) -> None:
    os.close(find_or_create(SEGMENT, make))
    (path,) = registry(runtime).glob("key-*.json")
    path.write_text(text)
    made = find_or_create(SEGMENT, make)
    assert len(json.loads(path.read_text())) == 1
    os.close(made)


def test_a_holder_in_another_pid_namespace(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = find_or_create(SEGMENT, lambda: make(fill=b"held"))
    with monkeypatch.context() as patch:
        patch.setattr("gear_data.residency.shared_memory_registry._pid_namespace", lambda: 1)
        made = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert os.pread(made, 4, HEADER_BYTES) == b"made"
    assert any("this process cannot open it" in record.message for record in caplog.records)
    found = find_or_create(SEGMENT, lambda: make(fill=b"anew"))
    assert os.pread(found, 4, HEADER_BYTES) == b"held"
    for number in (held, made, found):
        os.close(number)


def test_files_of_segments_that_nobody_holds_are_removed(runtime: Path) -> None:
    """A growing dataset has another segment for each generation."""
    os.close(find_or_create(SEGMENT, make))
    held = find_or_create(Segment("held", SIZE), lambda: make("held"))
    folder, rows = registry(runtime), f"-{os.stat('/proc/self/ns/pid').st_ino}.json"
    # Left by a process that could not load, and by one of another PID namespace.
    (folder / "failed.lock").touch()
    (folder / "other-1.json").write_text("[]")
    (folder / "other.lock").touch()
    with locked(folder / "loading.lock"):
        made = find_or_create(Segment("made", SIZE), lambda: make("made"))
    assert {path.name for path in folder.iterdir()} == {
        "held.lock", f"held{rows}", "made.lock", f"made{rows}", "loading.lock", "other.lock", "other-1.json",
    }  # fmt: skip
    for number in (held, made):
        os.close(number)


def test_a_process_without_free_descriptors_removes_no_living_rows(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = find_or_create(SEGMENT, make)
    (path,) = registry(runtime).glob("key-*.json")
    (row,) = json.loads(path.read_text())

    def exhausted(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(registries, "_start_time", exhausted)
    assert Holder(*row).is_alive()
    os.close(held)


def test_without_a_writable_registry_copies_are_not_shared(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.close(find_or_create(SEGMENT, make))
    (path,) = registry(runtime).glob("key-*.json")
    path.unlink()
    path.mkdir()
    (path / "in the way").touch()
    with caplog.at_level(logging.WARNING):
        made = find_or_create(SEGMENT, lambda: make(fill=b"made"))
    assert os.pread(made, 4, HEADER_BYTES) == b"made"
    assert "not shared" in caplog.text
    os.close(made)


def test_too_little_memory(rollouts_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "available_memory", lambda: 1000)
    before = open_files()
    with pytest.raises(HostMemoryError, match=r"takes [\d,]+ bytes of memory, 1,000 are available") as error:
        gear_data.open(rollouts_path, residency="host")
    assert "mmap" in str(error.value)
    assert isinstance(error.value, MemoryError)
    del error
    assert open_files() == before
    assert not list(runtime.rglob("*.json"))


def test_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    assert 0 < memory.available_memory() < total
    files = [tmp_path / name for name in ("limit", "used", "stat")]
    for file, text in zip(files, ("5000\n", "4000\n", "anon 3\ninactive_file 70\nactive_file 800\n"), strict=True):
        file.write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", ((*map(str, files), ""),))
    assert memory.available_memory() == 5000 - 4000 + 70 + 800
    files[0].write_text("max\n")
    assert memory.available_memory() > 1 << 20


def test_a_shard_cut_short_while_it_is_loaded(rollouts_path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "dataset"
    shutil.copytree(rollouts_path, path)
    create = registries.create_segment

    def cut(*arguments: Any) -> int:
        os.truncate(path / "shards/000001.arrow", 100)
        return create(*arguments)

    monkeypatch.setattr(registries, "create_segment", cut)
    before = open_files()
    with pytest.raises(CorruptShardError, match=r"000001\.arrow: the file has 100 bytes"):
        gear_data.open(path, residency="host")
    assert open_files() == before


@pytest.mark.parametrize(
    ("code", "kind", "why"),
    [
        (errno.EACCES, CorruptShardError, "cannot be read.*Permission denied"),
        (errno.EMFILE, OpenFilesError, "too many files are open"),
    ],
)
def test_a_shard_that_cannot_be_opened(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], why: str
) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent.name == "shards":
            raise OSError(code, os.strerror(code))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(kind, match=rf"\.arrow: .*{why}"):
        gear_data.open(rollouts_path, residency="host")


def test_too_many_open_files(rollouts_path: Path) -> None:
    """Each file is once the first that cannot be opened."""
    gear_data.open(rollouts_path, residency="host")  # imports modules
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open("/", os.O_RDONLY) for _ in range(64)]
    for each in free:
        os.close(each)
    refused = 0
    gc.freeze()  # the process of the tests has many objects
    for limit in free:
        gc.collect()  # the traceback of an error may hold a dataset, which holds its manifest
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            gear_data.open(rollouts_path, residency="host")
            break
        except OpenFilesError as error:
            assert "ulimit -n" in str(error.hint)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 1 < refused < len(free)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EMFILE, OpenFilesError), (errno.ENOMEM, HostMemoryError), (errno.EPERM, HostMemoryError)]
)
def test_a_segment_that_the_system_refuses(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(kind, match="shared memory"):
        gear_data.open(rollouts_path, residency="host")


def test_the_seals_have_the_values_of_linux(runtime: Path) -> None:
    """Values of linux/fcntl.h: shrink 2, grow 4, write 8, and no further seal 1."""
    descriptor = make()
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == 1 | 2 | 4 | 8
    os.close(descriptor)

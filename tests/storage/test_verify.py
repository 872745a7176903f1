"""`verify` finds every change of a dataset."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import HostMemoryError, OpenFilesError
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.mapped_shards import map_file
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras, video_file
from tests.support.changed_tables import changed_tables
from tests.support.manifests import edited_manifest, read_ipc, replace_table, sign_file


@pytest.fixture
def dataset(rollouts_path: Path, tmp_path: Path) -> Path:
    shutil.copytree(rollouts_path, tmp_path / "d")
    return tmp_path / "d"


def _failed(dataset: Path) -> dict[str, str]:
    report = gear_data.verify(dataset)
    assert report.ok is all(check.ok for check in report.shards)
    assert all((check.error is None) is check.ok for check in report.shards)
    return {check.file: str(check.error) for check in report.shards if not check.ok}


def test_an_intact_dataset(dataset: Path) -> None:
    report = gear_data.verify(dataset)
    assert report.ok
    shards = [shard.entry.file for shard in gear_data.open(dataset).manifest.shards]
    assert [check.file for check in report.shards] == ["episodes.arrow", "finals.arrow", *shards]
    assert json.loads(json.dumps(report.to_json()))["shards"][0] == {
        "file": "episodes.arrow",
        "ok": True,
        "error": None,
    }


@pytest.mark.parametrize("file", ["shards/000000.arrow", "shards/000002.arrow", "episodes.arrow", "finals.arrow"])
def test_one_flipped_bit(file: str, dataset: Path) -> None:
    whole = (dataset / file).read_bytes()
    rng = random.Random(4)
    for place in (0, len(whole) // 2, len(whole) - 1, *rng.sample(range(len(whole)), 5)):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        (dataset / file).write_bytes(data)
        failed = _failed(dataset)
        assert list(failed) == [file]
        assert "checksum" in failed[file]


def test_a_flipped_bit_with_a_matching_checksum(dataset: Path) -> None:
    """The content hash in the episode table finds the episode."""
    file = "shards/000001.arrow"
    shard = gear_data.open(dataset).manifest.shards[1]
    data = bytearray((dataset / file).read_bytes())
    data[shard.buffers["actions"] + 8 * (shard.steps - 1)] ^= 1
    (dataset / file).write_bytes(data)
    sign_file(dataset, file)
    failed = _failed(dataset)
    assert list(failed) == [file]
    assert "content hash" in failed[file]
    starts = [start for start, s in gear_data.open(dataset).episodes.select("start", "shard").rows() if s == 1]
    assert f"row {starts[-1]}:" in failed[file]


@pytest.mark.parametrize("cut", [0, 1, 100, None])
def test_a_truncated_or_missing_shard(cut: int | None, dataset: Path) -> None:
    path = dataset / "shards/000001.arrow"
    if cut is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:cut])
    failed = _failed(dataset)
    assert list(failed) == ["shards/000001.arrow"]
    assert ("missing" if cut is None else f"has {cut} bytes") in failed["shards/000001.arrow"]


@pytest.mark.parametrize("file", ["shards/000001.arrow", "episodes.arrow", "finals.arrow"])
@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0" + b"\0" * 200 + b"ARROW1", b"?" * 5000])
def test_a_replaced_file_with_a_matching_checksum(file: str, content: bytes, dataset: Path) -> None:
    (dataset / file).write_bytes(content)
    sign_file(dataset, file)
    if file.startswith("shards") and len(content) < 5000:  # the buffers are outside the file
        with pytest.raises(gear_data.errors.ManifestError, match=file):
            gear_data.verify(dataset)
    else:
        assert list(_failed(dataset)) == [file]


def test_swapped_shards(dataset: Path) -> None:
    a, b = dataset / "shards/000000.arrow", dataset / "shards/000001.arrow"
    for path, content in ((a, b.read_bytes()), (b, a.read_bytes())):
        path.write_bytes(content)
    assert _failed(dataset).keys() == {"shards/000000.arrow", "shards/000001.arrow"}


def _drop_row(table: pa.Table) -> pa.Table:
    return table.slice(1)


def _replaced(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def replace(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(change(table.column(name).to_pylist()), field.type))

    replace.__name__ = name
    return replace


def _without(name: str) -> Callable[[pa.Table], pa.Table]:
    def drop(table: pa.Table) -> pa.Table:
        return table.drop_columns([name])

    drop.__name__ = f"without-{name}"
    return drop


def _as_text(table: pa.Table) -> pa.Table:
    return table.set_column(3, "length", table.column("length").cast(pa.string()))


@pytest.mark.parametrize(
    "change",
    [
        _drop_row,
        _replaced("episode_id", lambda ids: ids[::-1]),
        _replaced("length", lambda lengths: [lengths[0] + 1, *lengths[1:]]),
        _replaced("length", lambda lengths: [-1, *lengths[1:]]),
        _replaced("start", lambda starts: [1, *starts[1:]]),
        _replaced("start", lambda starts: [1 << 40, *starts[1:]]),
        _replaced("shard", lambda shards: [99, *shards[1:]]),
        _replaced("shard", lambda shards: [-1, *shards[1:]]),
        _replaced("content", lambda contents: [*contents[:-1], contents[0]]),
        _without("start"),
        _without("content"),
        _as_text,
    ],
    ids=lambda change: change.__name__,
)
def test_an_episode_table_that_does_not_fit(change: Callable[[pa.Table], pa.Table], dataset: Path) -> None:
    path = dataset / "episodes.arrow"
    table = change(read_ipc(path))
    replace_table(dataset, "episodes.arrow", table)
    assert "episodes.arrow" in _failed(dataset)
    # No value becomes a bad address: opening fails, or the wrong table gives existing rows.
    try:
        ds = gear_data.open(dataset)
        for i in range(ds.num_episodes):
            assert len(ds.episode(i)["rewards"]) > 0
    except gear_data.GearError as error:
        assert "episodes.arrow" in str(error)


@pytest.fixture
def filmed(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`dataset`, with a camera whose files do not exist: `verify` does not look at them."""
    lengths = gear_data.open(dataset).lengths.tolist()
    files = [video_file(f"{number}.mp4", length) for number, length in enumerate(lengths)]
    numbers = np.arange(len(lengths))
    attach_cameras(dataset, files, {"observations.front": VideoSegments(numbers, 0 * numbers)})
    monkeypatch.setattr("gear_data.storage.verify.video_checks", lambda *_, **__: ())
    return dataset


@pytest.mark.parametrize("file", ["episodes.arrow", "finals.arrow", "videos.arrow", "video_packets.arrow"])
def test_wrong_tables_that_were_signed_again_are_reported(file: str, filmed: Path) -> None:
    """Opening them gives a typed error, or values."""
    whole = read_ipc(filmed / file)
    for change, table in changed_tables(whole):
        replace_table(filmed, file, table)
        wrong = {check.file for check in gear_data.verify(filmed, deep=True).shards if not check.ok}
        # The content hashes do not cover the camera that was attached.
        tables = {each for each in wrong if not each.startswith("shards/")}
        if not table.schema.equals(whole.schema):
            assert tables, change
        try:
            ds = gear_data.open(filmed)
            _ = ds.episodes, ds.store.videos, ds.final(1), [ds.episode(i)["rewards"] for i in range(4)]
        except gear_data.GearError as error:
            assert tables, f"{change}: {error}"


def test_changed_final_observations(dataset: Path) -> None:
    path = dataset / "finals.arrow"
    table = read_ipc(path)
    values = table.column("observations").to_pylist()
    values[-1][0] += 1
    column = pa.array(values, table.schema.field("observations").type)
    table = table.set_column(1, table.schema.field("observations"), column)
    replace_table(dataset, "finals.arrow", table)
    failed = _failed(dataset)
    assert list(failed) == [gear_data.open(dataset).manifest.shards[-1].entry.file]
    table = table.drop_columns(["observations"])
    replace_table(dataset, "finals.arrow", table)
    assert "finals.arrow" in _failed(dataset)
    with pytest.raises(gear_data.GearError, match="observations"):
        gear_data.open(dataset).final(0)


def test_changed_buffer_offsets(dataset: Path) -> None:
    with edited_manifest(dataset) as data:
        data["shards"][1]["buffers"]["actions"] += 8
    failed = _failed(dataset)
    assert list(failed) == ["shards/000001.arrow"]
    assert "buffer offsets differ from the manifest" in failed["shards/000001.arrow"]


def test_an_unusable_manifest_raises(dataset: Path) -> None:
    (dataset / "manifest.json").write_text("{}")
    with pytest.raises(gear_data.errors.ManifestError):
        gear_data.verify(dataset)


@pytest.mark.parametrize("number", [errno.ENOMEM, None], ids=["with a number", "only a text"])
def test_missing_memory_is_no_damage(dataset: Path, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    """Nothing is reported, skipped or set aside because a file that is whole cannot be mapped."""
    live = dataset.with_name("live")
    writer = gear_data.Writer(live)
    writer.append(actions=1.0, rewards=1.0)
    writer.end_episode(terminated=True)
    (journal,) = live.with_name("live.journal").glob("*/*.arrows")
    (shard, *_) = sorted(dataset.glob("shards/*.arrow"))

    def fail(*_: object, **__: object) -> None:
        text = "Memory mapping file failed: Cannot allocate memory"
        raise OSError(text) if number is None else OSError(number, "failed")

    with monkeypatch.context() as context:
        context.setattr(pa, "memory_map", fail)
        with pytest.raises(HostMemoryError, match="no further memory") as caught:
            gear_data.verify(dataset)
        assert "max_map_count" in str(caught.value.hint)
        with pytest.raises(HostMemoryError, match="no further memory"):
            gear_data.open(dataset, on_bad_shard="skip")
        with pytest.raises(HostMemoryError, match="no further memory"):
            map_file(shard)
    with monkeypatch.context() as context:
        context.setattr("gear_data.storage.journal.reading.mmap.mmap", fail)
        with pytest.raises(HostMemoryError, match="no further memory"):
            read_journal(journal)
    writer.close()
    assert len(gear_data.open(live)) == 1 and gear_data.verify(dataset).ok


def _whole(dataset: Path) -> None:
    assert gear_data.verify(dataset).ok


def _writer(dataset: Path) -> None:
    with gear_data.Writer(dataset):
        pass


@pytest.mark.parametrize(
    "use",
    [gear_data.open, partial(gear_data.open, on_bad_shard="skip"), _whole, _writer],
    ids=["open", "skip", "verify", "writer"],
)
def test_too_many_open_files_are_no_damage(dataset: Path, use: Callable[[Path], object]) -> None:
    """Each file is once the first that cannot be opened."""
    use(dataset)  # imports modules
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.open(dataset, os.O_RDONLY)
    os.close(first)
    refused = 0
    for limit in count(first):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            use(dataset)
            break
        except OpenFilesError as error:
            assert "ulimit -n" in str(error.hint)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused > 1
    assert gear_data.verify(dataset).ok


def test_missing_memory_for_offsets_is_no_damage(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "failed")

    monkeypatch.setattr("gear_data.storage.verify.buffer_offsets", fail)
    with pytest.raises(HostMemoryError):
        gear_data.verify(dataset)

"""Tests of Arrow IPC streams, IPC files and Feather."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.tables.file_stream import FileTables
from gear_data.ingest.sources.tables.files.arrow import ARROW
from gear_data.ingest.sources.tables.open import open_tables
from gear_data.storage.episode_block import BEGIN, END
from tests.support.rollouts import episode_numbers, step_table


def _write(path: Path, table: pa.Table, *, chunk: int | None = None, compression: str | None = None) -> Path:
    """Writes an IPC stream, an IPC file or Feather, by the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".feather":
        feather.write_feather(table, path, compression=compression, chunksize=chunk)
        return path
    new = pa.ipc.new_file if path.suffix == ".ipc" else pa.ipc.new_stream
    with (
        pa.OSFile(str(path), "wb") as sink,
        new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer,
    ):
        writer.write_table(table, max_chunksize=chunk)
    return path


def _steps(sources: Any, count: int = 8) -> pa.Table:
    rollouts = sources.make_rollouts(count)
    table = step_table([r.columns for r in rollouts], episode_index=episode_numbers(rollouts))
    return table.append_column("task", pa.array([f"task {i % 3}" for i in range(len(table))]))


def _check(dataset: Path, table: pa.Table) -> None:
    opened = gear_data.open(dataset)
    for name in ("observations", "actions", "rewards", "task"):
        found = np.concatenate([episode[name] for episode in opened])
        np.testing.assert_array_equal(found, np.array(table.column(name).to_pylist(), found.dtype), name)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("name", ["s.arrow", "s.ipc", "s.feather"])
def test_streams_files_and_feather(name: str, compression: str | None, sources: Any, tmp_path: Path) -> None:
    table = _steps(sources)
    compression = compression or ("uncompressed" if name == "s.feather" else None)
    source = _write(tmp_path / name, table, chunk=7, compression=compression)
    assert gear_data.convert(source, tmp_path / "d", progress=False).format == "step-rows"
    _check(tmp_path / "d", table)


@pytest.mark.parametrize("name", ["s.arrow", "s.ipc"])
def test_dictionaries(name: str, sources: Any, tmp_path: Path) -> None:
    table = _steps(sources)
    coded = table.set_column(table.schema.get_field_index("task"), "task", table.column("task").dictionary_encode())
    gear_data.convert(_write(tmp_path / name, coded, chunk=7), tmp_path / "d", progress=False)
    _check(tmp_path / "d", table)


def test_runs_are_decoded(sources: Any, tmp_path: Path) -> None:
    table = _steps(sources)
    runs = pa.compute.run_end_encode(table.column("rewards").combine_chunks())
    coded = table.set_column(table.schema.get_field_index("rewards"), "rewards", runs)
    gear_data.convert(_write(tmp_path / "s.arrow", coded), tmp_path / "d", progress=False)
    _check(tmp_path / "d", table)


def test_a_url_is_streamed(sources: Any, tmp_path: Path) -> None:
    table = _steps(sources)
    for name in ("a.arrow", "b.ipc"):
        data = _write(tmp_path / name, table, chunk=7).read_bytes()
        with fsspec.open(f"memory://gear-arrow/{name}", "wb") as file:
            file.write(data)
        gear_data.convert(f"memory://gear-arrow/{name}", tmp_path / f"{name}-gear", progress=False)
        _check(tmp_path / f"{name}-gear", table)


def test_a_large_batch_is_read_in_parts(tmp_path: Path) -> None:
    """One record batch of 200 MB is read in tables of some megabytes."""
    rows, width = 25_000, 1000
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * width, dtype=np.float64)), width)
    source = _write(tmp_path / "s.arrow", pa.table({"observations": values}))
    tables = FileTables(locate(source, None).files, ARROW)
    before, row = pa.total_allocated_bytes(), 0
    for part in tables.parts(BEGIN, END):
        assert part.table.nbytes < 40 << 20
        assert part.table.column(0)[0].as_py()[0] == row * width
        row += len(part.table)
    assert row == rows
    assert pa.total_allocated_bytes() - before < 40 << 20


def test_a_schema_of_another_file_is_refused(sources: Any, tmp_path: Path) -> None:
    table = _steps(sources)
    _write(tmp_path / "s/a.arrow", table)
    _write(tmp_path / "s/b.arrow", table.drop_columns("task"))
    with pytest.raises(CorruptSourceError, match=r"column 'task': the column is missing; a\.arrow has it"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


@pytest.mark.parametrize("name", ["s.arrow", "s.ipc"])
def test_a_missing_end_is_refused(name: str, sources: Any, tmp_path: Path) -> None:
    source = _write(tmp_path / name, _steps(sources), chunk=7)
    with pa.memory_map(str(source)) as mapped:
        mapped.seek(8 if name == "s.ipc" else 0)
        for _ in zip(range(3), pa.ipc.MessageReader.open_stream(mapped), strict=False):
            end = mapped.tell()
    source.write_bytes(source.read_bytes()[:end])  # at the end of a message, where Arrow notices nothing
    with pytest.raises(CorruptSourceError, match="cannot be read as Arrow: its end is missing"):
        gear_data.convert(source, tmp_path / "d", progress=False)


def test_files_that_are_not_arrow_are_refused(tmp_path: Path) -> None:
    for data, message in (
        (b"", "the file is empty"),
        (b"FEA1" + bytes(20), "Feather version 1"),
        (b"hello, world" * 9, "its end is missing"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
    ):
        (tmp_path / "s.arrow").write_bytes(data)
        with pytest.raises(CorruptSourceError, match=message):
            gear_data.convert(tmp_path / "s.arrow", tmp_path / "d", progress=False)


def test_splits_of_a_cache_are_chosen(sources: Any, tmp_path: Path) -> None:
    tables = {split: _steps(sources, count) for split, count in (("train", 6), ("test", 3))}
    for split, table in tables.items():
        _write(tmp_path / f"s/hopper-{split}.arrow", table)
    with pytest.raises(InvalidArgumentError, match="several splits: test, train"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    gear_data.convert(tmp_path / "s", tmp_path / "d", split="train", progress=False)
    _check(tmp_path / "d", tables["train"])


def test_kinds_beside_each_other_are_refused(sources: Any, tmp_path: Path) -> None:
    _write(tmp_path / "s/a.arrow", _steps(sources))
    sources.write_parquet(tmp_path / "s/b.parquet", _steps(sources))
    with pytest.raises(UnknownFormatError, match=r"1 Parquet \(b\.parquet\), 1 Arrow \(a\.arrow\)\n.*give one file"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


def test_a_dataset_of_gear_is_no_table(sources: Any, tmp_path: Path) -> None:
    source = _write(tmp_path / "s.arrow", _steps(sources))
    gear_data.convert(source, tmp_path / "d", progress=False)
    assert open_tables(locate(tmp_path / "d", None)) is None
    with pytest.raises(UnknownFormatError, match="is already a gear dataset"):
        gear_data.convert(tmp_path / "d", tmp_path / "e", progress=False)

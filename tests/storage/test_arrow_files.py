"""The dataset's Arrow files: format, buffer offsets, and other readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest

import gear_data
from gear_data.storage.arrow_files import table_values, write_ipc


def _steps(rollouts: list[Any], name: str) -> np.ndarray:
    return np.concatenate([r.columns[name] for r in rollouts])


def _read_feather(path: Path) -> dict[str, list[Any]]:
    return pyarrow.feather.read_table(path).to_pydict()  # type: ignore[no-any-return]


def _read_polars(path: Path) -> dict[str, list[Any]]:
    return pl.read_ipc(path).to_dict(as_series=False)


def _read_pandas(path: Path) -> dict[str, list[Any]]:
    frame = pd.read_feather(path)
    return {name: [np.asarray(value).tolist() for value in frame[name]] for name in frame.columns}


@pytest.mark.parametrize("read", [_read_feather, _read_polars, _read_pandas])
def test_any_arrow_reader_opens_a_shard(read: Any, rollouts: list[Any], rollouts_path: Path) -> None:
    shards = [read(rollouts_path / s.entry.file) for s in gear_data.open(rollouts_path).manifest.shards]
    for name in rollouts[0].columns:
        found = [step for shard in shards for step in shard[name]]
        assert found == _steps(rollouts, name).tolist(), name


def test_shard_is_one_uncompressed_batch_with_described_columns(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    for shard in ds.manifest.shards:
        with pa.memory_map(str(rollouts_path / shard.entry.file)) as source:
            reader = pa.ipc.open_file(source)
            assert reader.num_record_batches == 1
            batch = reader.get_batch(0)
        assert batch.num_rows == shard.steps
        assert batch.schema.field("terminated").type == pa.uint8()
        assert batch.schema.field("observations").type.list_size == 3
        assert all(not field.nullable for field in batch.schema)
        assert batch.schema.field("observations").metadata == {
            b"gear.dtype": b"float32",
            b"gear.shape": b"3",
            b"gear.role": b"observation",
        }
        assert batch.schema.field("truncated").metadata[b"gear.dtype"] == b"bool"


def test_buffer_offsets_match_the_manifest(rollouts: list[Any], rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    first = 0
    for shard in ds.manifest.shards:
        data = (rollouts_path / shard.entry.file).read_bytes()
        for name in rollouts[0].columns:
            spec = ds.schema[name]
            expected = _steps(rollouts, name)[first : first + shard.steps].tobytes()
            offset = shard.buffers[name]
            assert offset % 8 == 0
            assert data[offset : offset + shard.steps * spec.row_bytes] == expected
        first += shard.steps
    assert first == ds.num_steps


def test_episode_table_and_finals_are_arrow_files(rollouts: list[Any], rollouts_path: Path) -> None:
    episodes = pl.read_ipc(rollouts_path / "episodes.arrow")
    assert episodes.columns == [
        "episode_id", "shard", "start", "length", "return", "terminated", "truncated", "source", "task", "content",
    ]  # fmt: skip
    assert episodes.schema["shard"] == pl.Int32
    assert episodes.schema["return"] == pl.Float64
    assert episodes["source"].unique().to_list() == ["source.hdf5"]
    assert {len(content) for content in episodes["content"]} == {16}
    finals = pl.read_ipc(rollouts_path / "finals.arrow")
    assert finals["episode_id"].to_list() == list(range(len(rollouts)))
    assert finals["observations"].to_list() == [r.final.tolist() for r in rollouts]


def test_no_pickle_and_no_stray_files(rollouts_path: Path) -> None:
    names = {str(p.relative_to(rollouts_path)) for p in rollouts_path.rglob("*") if p.is_file()}
    shards = {shard.entry.file for shard in gear_data.open(rollouts_path).manifest.shards}
    assert names == {"manifest.json", "README.md", "episodes.arrow", "finals.arrow"} | shards


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_values_of_a_column_are_those_of_all_its_chunks(dtype: str, chunks: int) -> None:
    values = np.arange(60).astype(dtype)
    table = pa.concat_tables([pa.table({"x": values})] * chunks)
    part = table.slice(7, 60 * chunks - 9)
    found = table_values(part, "x")
    assert found.dtype == dtype
    assert found.tolist() == np.tile(values, chunks)[7:-2].tolist()
    if chunks == 1 and dtype != "bool":
        assert found.ctypes.data == part.column("x").chunk(0).to_numpy().ctypes.data


def test_a_column_may_have_more_than_2_to_the_31_elements(tmp_path: Path) -> None:
    """Nulls are elements that take no bytes."""
    nulls = pa.Array.from_buffers(pa.null(), 1 << 31, [None])
    write_ipc(tmp_path / "long.arrow", pa.record_batch({"x": nulls}))
    with pa.memory_map(str(tmp_path / "long.arrow")) as source:
        assert pa.ipc.open_file(source).get_batch(0).num_rows == 1 << 31

"""Tables of a dataset that were changed, or that other programs wrote."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import CorruptShardError, UnsupportedColumnError
from tests.support.hangs import SPECIAL_FILES, no_hang
from tests.support.manifests import edited_manifest, read_ipc, replace_table

EPISODES, FINALS = "episodes.arrow", "finals.arrow"


@pytest.fixture
def dataset(rollouts_path: Path, tmp_path: Path) -> Path:
    shutil.copytree(rollouts_path, tmp_path / "d")
    return tmp_path / "d"


def _use(path: Path) -> None:
    ds = gear_data.open(path)
    ds.episodes.to_dicts()
    ds.final(0)


@pytest.mark.parametrize("file", [EPISODES, FINALS])
def test_a_flipped_bit_is_never_served(file: str, dataset: Path) -> None:
    whole = (dataset / file).read_bytes()
    rng = random.Random(6)
    for place in rng.sample(range(len(whole)), 150):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        (dataset / file).write_bytes(data)
        with pytest.raises(CorruptShardError, match="its checksum is") as error:
            _use(dataset)
        assert error.value.file == str(dataset / file)
        assert "restore the table" in str(error.value.hint)


def _cast(name: str, type_: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, table.column(name).cast(type_))

    change.__name__ = f"{name}-{type_}"
    return change


def _encode(name: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, table.column(name).combine_chunks().dictionary_encode())

    change.__name__ = f"{name}-encoded"
    return change


def _set(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        column = table.column(name).combine_chunks()
        # PyArrow before 17 makes no dictionary of large strings.
        coded = column.type if pa.types.is_dictionary(column.type) else None
        values = column.to_pylist()
        values[row] = value
        changed = pa.array(values, coded.value_type if coded else column.type)
        return table.set_column(index, name, changed.dictionary_encode() if coded else changed)

    change.__name__ = f"{name}-{row}-{value}"
    return change


def _named(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    change.__name__ = name
    return change


def _runs(count: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays([count], [7])


def _codes(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([7] * count).dictionary_encode()])


_REQUIRED = ("episode_id", "shard", "start", "length", "return", "terminated", "truncated", "content")


@pytest.mark.parametrize(
    ("change", "column"),
    [
        *((_encode(name), name) for name in _REQUIRED),
        (_cast("episode_id", pa.int32()), "episode_id"),
        (_cast("shard", pa.int64()), "shard"),
        (_cast("length", pa.float64()), "length"),
        (_cast("length", pa.string()), "length"),
        (_cast("return", pa.float32()), "return"),
        (_cast("source", pa.string()), "source"),
        (_cast("task", pa.dictionary(pa.int64(), pa.large_string())), "task"),
        (_cast("terminated", pa.uint8()), "terminated"),
        (_set("length", 2, None), "length"),
        (_set("source", 1, None), "source"),
        (_set("episode_id", 3, 4), "episode_id"),
        (_set("episode_id", 0, -1), "episode_id"),
        (_named("without", lambda table: table.drop_columns(["start"])), "start"),
        (_named("twice", lambda table: table.append_column("start", table.column("start"))), "start"),
        (_named("order", lambda table: table.select(table.column_names[::-1])), "episode_id"),
        (_named("rows", lambda table: table.slice(0, len(table) - 1)), None),
        (_named("runs", lambda table: table.append_column("runs", _runs(len(table)))), "runs"),
        (_named("codes", lambda table: table.append_column("codes", _codes(len(table)))), "codes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_an_episode_table_of_another_schema(
    change: Callable[[pa.Table], pa.Table], column: str | None, dataset: Path
) -> None:
    replace_table(dataset, EPISODES, change(read_ipc(dataset / EPISODES)))
    with no_hang(), pytest.raises(CorruptShardError) as error:
        _use(dataset)
    assert (error.value.file, error.value.column) == (str(dataset / EPISODES), column)
    assert [check.ok for check in gear_data.verify(dataset).shards[:2]] == [False, True]


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (_encode("episode_id"), "episode_id"),
        (_cast("episode_id", pa.uint64()), "episode_id"),
        (_cast("observations", pa.list_(pa.float64())), "observations"),
        (_set("episode_id", 1, 0), "episode_id"),
        (_set("episode_id", 0, -1), "episode_id"),
        (_set("episode_id", -1, 1 << 40), "episode_id"),
        (_set("observations", 0, None), "observations"),
        (_named("more", lambda table: table.append_column("x", table.column("episode_id"))), "x"),
        (_named("without", lambda table: table.drop_columns(["observations"])), "observations"),
        (_named("order", lambda table: table.select(table.column_names[::-1])), "episode_id"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_table_of_final_observations_of_another_schema(
    change: Callable[[pa.Table], pa.Table], column: str, dataset: Path
) -> None:
    replace_table(dataset, FINALS, change(read_ipc(dataset / FINALS)))
    with no_hang(), pytest.raises(CorruptShardError) as error:
        gear_data.open(dataset).final(0)
    assert (error.value.file, error.value.column) == (str(dataset / FINALS), column)


_ODD_TYPES = [
    pa.decimal256(50, 3),
    pa.decimal128(5, -3),
    pa.list_(pa.decimal256(50, 3)),
    pa.month_day_nano_interval(),
    pa.binary(0),
    pa.struct([("a", pa.int8()), ("a", pa.int8())]),
    pa.list_(pa.int8(), 3),
    pa.list_view(pa.int8()),
    pa.map_(pa.string(), pa.int8()),
    pa.timestamp("us", "Nowhere/At all"),
]


@pytest.mark.parametrize("type_", _ODD_TYPES, ids=str)
def test_metadata_of_a_type_that_polars_cannot_read(type_: pa.DataType, dataset: Path) -> None:
    """Polars raises its own errors, panics, or ends the process."""
    table = read_ipc(dataset / EPISODES)
    replace_table(dataset, EPISODES, table.append_column("odd", pa.nulls(len(table), type_)))
    with pytest.raises(gear_data.GearError, match=r"odd|time zone") as error:
        _use(dataset)
    assert error.value.file == str(dataset / EPISODES)


def test_conversion_refuses_metadata_that_no_table_may_have(tmp_path: Path) -> None:
    """A decimal of 45 digits could be written, and made Polars panic."""
    table = pa.table(
        {
            "observations": [[[0.0], [1.0]]] * 2,
            "rewards": [[1.0, 1.0]] * 2,
            "digits": [Decimal("1" * digits) for digits in (5, 45)],
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(UnsupportedColumnError, match=r"digits.*cannot be stored as decimal256") as error:
        gear_data.convert(tmp_path / "s.parquet", tmp_path / "d", progress=False)
    assert error.value.hint
    assert not (tmp_path / "d/manifest.json").exists()


def test_other_layouts_of_the_same_table(dataset: Path, rollouts_path: Path) -> None:
    """Several record batches, text that is not encoded, usual metadata."""
    table = read_ipc(dataset / EPISODES)
    plain = _cast("source", pa.large_string())(_cast("task", pa.large_string())(table))
    more = {
        "lists": [[i] for i in range(len(table))],
        "structures": [{"a": "b", "c": [1.5]}] * len(table),
        "nothing": [None] * len(table),
    }
    for name, values in more.items():
        plain = plain.append_column(name, [values])
    plain = pa.concat_tables([plain.slice(0, 2), plain.slice(2)])
    replace_table(dataset, EPISODES, plain)
    finals = read_ipc(dataset / FINALS)
    replace_table(dataset, FINALS, pa.concat_tables([finals.slice(0, 1), finals.slice(1)]))
    ds, original = gear_data.open(dataset), gear_data.open(rollouts_path)
    assert ds.episodes.drop(list(more))["source"].to_list() == original.episodes["source"].to_list()
    assert ds.episodes["length"].to_list() == original.episodes["length"].to_list()
    for i in range(len(ds)):
        np.testing.assert_array_equal(ds.final(i)["observations"], original.final(i)["observations"])
    assert gear_data.verify(dataset).ok


@pytest.mark.parametrize("file", [EPISODES, FINALS])
def test_a_compressed_table(file: str, dataset: Path) -> None:
    replace_table(dataset, file, read_ipc(dataset / file), compression="zstd")
    with pytest.raises(CorruptShardError, match="it is compressed"):
        _use(dataset)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
@pytest.mark.parametrize("file", [EPISODES, FINALS, "shards/000000.arrow", "manifest.json"])
def test_special_files_are_refused_at_once(file: str, kind: str, dataset: Path) -> None:
    """Their size agrees with the manifest: none."""
    path = dataset / file
    path.unlink()
    SPECIAL_FILES[kind](path)
    if file in (EPISODES, FINALS):
        with edited_manifest(dataset) as manifest:
            manifest["tables"][file.removesuffix(".arrow")]["bytes"] = path.stat().st_size
    for call in (gear_data.open, gear_data.verify):
        with no_hang():
            try:
                report = call(dataset)
            except gear_data.GearError as error:
                assert error.file == str(path)
                assert "regular file" in str(error)
            else:
                assert call is gear_data.verify
                assert [check.file for check in report.shards if not check.ok] == [file]


@pytest.mark.parametrize("file", [EPISODES, "manifest.json"])
@pytest.mark.parametrize("beginning", [b"", b"ARROW1\0\0\xff\xff\xff\xff\0\x01\0\0", b'{"format": "gear", "a": "'])
def test_a_sparse_file_of_a_terabyte(file: str, beginning: bytes, dataset: Path) -> None:
    path = dataset / file
    data = path.read_bytes()
    path.write_bytes(beginning)
    os.truncate(path, 1 << 40)
    with path.open("ab") as end:
        end.write(data[-2000:])
    if file == EPISODES:
        with edited_manifest(dataset) as manifest:
            manifest["tables"]["episodes"]["bytes"] = path.stat().st_size
    with no_hang(), pytest.raises(gear_data.GearError) as error:
        _use(dataset)
    assert error.value.file == str(path)

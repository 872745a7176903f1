"""Tests of Lance tables, compared with the reading of `pylance`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, MissingExtraError, UnknownFormatError
from gear_data.storage.remote.range_reader import filesystem_of
from tests.support.checks import warning_codes

lance = pytest.importorskip("lance")


def _table(rows: int = 60) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "episode_index": np.arange(rows) // 6,
            "observation": pa.array([{"state": rng.normal(size=3).tolist(), "task": f"go {i}"} for i in range(rows)]),
            "action": pa.FixedSizeListArray.from_arrays(rng.normal(size=2 * rows).astype(np.float32), 2),
            "reward": rng.normal(size=rows),
        }
    )


def _check(dataset: Path, expected: pa.Table) -> None:
    opened = gear_data.open(dataset)
    observations = expected.column("observation").to_pylist()
    columns: dict[str, list[Any]] = {
        "observations": [row["state"] for row in observations],
        "observations.task": [row["task"] for row in observations],
        "actions": expected.column("action").to_pylist(),
        "rewards": expected.column("reward").to_pylist(),
    }
    for name, values in columns.items():
        assert np.concatenate([episode[name] for episode in opened]).tolist() == values


def test_the_latest_version_is_read(tmp_path: Path) -> None:
    source = tmp_path / "s.lance"
    lance.write_dataset(_table(), str(source), max_rows_per_file=7)
    report = gear_data.convert(source, tmp_path / "a", progress=False)
    assert "files-left-out" not in warning_codes(report)
    _check(tmp_path / "a", _table())
    lance.dataset(str(source)).delete("episode_index in (0, 3)")
    gear_data.convert(tmp_path, tmp_path.parent / f"{tmp_path.name}-b", progress=False)
    expected = lance.dataset(str(source)).to_table()
    assert len(expected) == 48
    _check(tmp_path.parent / f"{tmp_path.name}-b", expected)


def test_several_tables_are_refused(tmp_path: Path) -> None:
    for name in ("a.lance", "b.lance"):
        lance.write_dataset(_table(), str(tmp_path / "s" / name))
    with pytest.raises(UnknownFormatError, match=r"several Lance tables: a\.lance, b\.lance\n.*one at a time"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


@pytest.mark.parametrize("folder", ["", "/tables"])
def test_a_table_at_a_url_is_refused(folder: str, tmp_path: Path, memory_url: str) -> None:
    """Lance would read another place: it does not know fsspec's file systems."""
    lance.write_dataset(_table(), str(tmp_path / "s"))
    filesystem, place = filesystem_of(memory_url)
    filesystem.put(f"{tmp_path}/s/", f"{place}{folder}/s", recursive=True)
    with pytest.raises(UnknownFormatError, match=r"only from a local folder\n.*copy the folder to a local disk"):
        gear_data.convert(f"{memory_url}{folder or '/s'}", tmp_path / "d", progress=False)


def test_damage_is_a_typed_error(tmp_path: Path) -> None:
    lance.write_dataset(_table(), str(tmp_path / "s"))
    (file,) = (tmp_path / "s/data").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptSourceError, match="cannot be read as Lance") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert error.value.file == f"data/{file.name}"


def test_without_pylance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(_table(), str(tmp_path / "s"))
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtraError, match=r"gear-data\[lance\]"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)

"""Tests of batches, and of files that are read together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tables import file_stream
from gear_data.ingest.sources.tables.files.parquet import PARQUET
from gear_data.storage.episode_block import BEGIN, END
from tests.support.makers.step_tables import (
    Rollouts,
)


def test_small_files_are_read_together(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts)
    opened, _, _ = open_source(locate(source, None), "lerobot", SourceOptions())
    # The last episode might continue.
    block, last = opened.blocks(BEGIN, END)
    assert (len(block), len(last)) == (len(rollouts) - 1, 1)
    assert block.sources[7] == "data/chunk-000/episode_000007.parquet"
    assert block.rows.tolist() == [0] * len(block)


def test_errors_name_the_file_though_files_are_read_together(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    for layout, write in (("steps", sources.write_steps), ("episodes", sources.write_episodes)):
        for i, rollout in enumerate(rollouts[:9]):
            bad = rollout.columns["rewards"].astype(object)
            source = write(tmp_path / layout / f"part-{i}.parquet", [rollout])
            if layout == "steps":
                table = pq.read_table(source).set_column(5, "episode_index", pa.array([i] * len(rollout)))
                if i == 4:
                    bad[-1] = None
                    table = table.set_column(2, "rewards", pa.array(bad.tolist(), pa.float32()))
                pq.write_table(table, source)
            elif i == 4:
                table = pq.read_table(source)
                bad[-1] = None
                pq.write_table(table.set_column(2, "rewards", pa.array([bad.tolist()], pa.list_(pa.float32()))), source)
        with pytest.raises(BadEpisodeError) as error:
            gear_data.convert(tmp_path / layout, tmp_path / "d")
        row = len(rollouts[4]) - 1 if layout == "steps" else 0
        assert (error.value.file, error.value.row, error.value.column) == ("part-4.parquet", row, "rewards")
        gear_data.convert(tmp_path / layout, tmp_path / f"{layout}-d", on_bad_episode="skip")
        sources.check_dataset(tmp_path / f"{layout}-d", [r for i, r in enumerate(rollouts[:9]) if i != 4])


def test_a_constant_column_is_as_large_in_memory_as_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant column takes few bytes in the file, and its first rows are short."""
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 100_000)
    lengths = [1] * 64 + [500] * 600
    table = pa.table(
        {
            "observations": pa.array([[[0] * 4] * n for n in lengths], pa.list_(pa.list_(pa.uint8()))),
            "rewards": [[1.0] * n for n in lengths],
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    assert (tmp_path / "s.parquet").stat().st_size < table.nbytes / 50
    tables = file_stream.FileTables(locate(tmp_path / "s.parquet", None).files, PARQUET)
    parts = list(tables.parts(BEGIN, END))
    assert sum(len(part.table) for part in parts) == len(lengths)
    assert max(part.table.nbytes for part in parts) < 5 * 100_000


def test_batches_are_bounded_for_consecutive_long_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean size of a row group's rows does not predict its last rows."""
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 400_000)
    lengths = [10] * 4000 + [2000] * 100
    rng = np.random.default_rng(0)
    table = pa.table({"rewards": [rng.standard_normal(n) for n in lengths]})
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=len(table))
    tables = file_stream.FileTables(locate(tmp_path / "s.parquet", None).files, PARQUET)
    parts = list(tables.parts(BEGIN, END))
    assert [n for part in parts for n in pa.compute.list_value_length(part.table["rewards"]).to_pylist()] == lengths
    assert max(part.table.nbytes for part in parts) < 3 * 400_000


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 21, reason="this pyarrow reads only lists with 32-bit offsets")
def test_lists_have_offsets_of_64_bits(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """An episode may have more elements than 32-bit offsets can address.

    test_huge_row_group has a whole row group of such episodes.
    """
    columns = sources.episode_table([r.columns for r in rollouts])
    source = tmp_path / "s.parquet"
    pq.write_table(columns, source, row_group_size=16, store_schema=False)
    tables = file_stream.FileTables(locate(source, None).files, PARQUET)
    part = next(iter(tables.parts(BEGIN, END)))
    assert pa.types.is_large_list(part.table.schema.field("rewards").type)


def test_a_later_file_with_a_column_twice(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    sources.write_episodes(tmp_path / "s" / "a.parquet", rollouts)
    table = pq.read_table(tmp_path / "s" / "a.parquet")
    pq.write_table(table.append_column("rewards", table["rewards"]), tmp_path / "s" / "b.parquet")
    with pytest.raises(CorruptSourceError, match="two columns have this name") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d")
    assert (error.value.file, error.value.column) == ("b.parquet", "rewards")

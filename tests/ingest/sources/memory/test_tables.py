"""pandas, Polars and Arrow tables in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.sources.tables import dataset_stream
from tests.support.checks import warning_codes


def frame_of(rollouts: list[Any]) -> pd.DataFrame:
    columns = {
        name: list(np.concatenate([rollout.columns[name] for rollout in rollouts])) for name in rollouts[0].columns
    }
    return pd.DataFrame({"run": np.repeat(range(len(rollouts)), list(map(len, rollouts))), **columns})


@pytest.mark.parametrize("kind", ["pandas", "index", "polars", "lazy", "arrow", "reader"])
def test_tables_are_read_as_files(
    sources: Any, rollouts: list[Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_stream, "_PART_BYTES", 500)  # many parts
    frame = frame_of(rollouts)
    arrow = pa.Table.from_pandas(frame)
    table: Any = {
        "pandas": lambda: frame.set_axis(range(5, 5 + len(frame))),
        "index": lambda: frame.set_index("run"),  # a level with a name is a column
        "polars": lambda: pl.from_arrow(arrow),
        "lazy": lambda: pl.from_arrow(arrow).lazy(),  # type: ignore[union-attr]
        "arrow": lambda: arrow,
        "reader": lambda: pa.RecordBatchReader.from_batches(arrow.schema, arrow.to_batches(max_chunksize=7)),
    }[kind]()
    report = gear_data.convert(table, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run"))
    assert (report.format, warning_codes(report)) == ("step-rows", [])
    sources.check_dataset(tmp_path / "d", rollouts)
    pq.write_table(arrow, tmp_path / "a.parquet")
    assert gear_data.convert(
        tmp_path / "a.parquet", tmp_path / "file", episodes=gear_data.EpisodeBoundaries(episode_column="run")
    ).fingerprint == (report.fingerprint)


def test_a_row_may_be_an_episode(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    rows = [{name: values.tolist() for name, values in rollout.columns.items()} for rollout in rollouts]
    report = gear_data.convert(pl.DataFrame(rows), tmp_path / "d")
    assert (report.format, report.episodes) == ("episode-rows", len(rollouts))


def test_a_column_of_several_types_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedColumnError, match=r"DataFrame in memory.*mixed") as error:
        gear_data.convert(pd.DataFrame({"mixed": [1, "a", [2.0]], "episode": [0, 0, 0]}), tmp_path / "d")
    assert "one type" in str(error.value)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """Concatenated frames have the columns 0, 1, ... twice, and a column may also be a level of the index."""
    frame = pd.DataFrame({"episode": [0, 0, 1], "x": [0.0, 1.0, 2.0]})
    for table in (pd.concat([frame, frame], axis=1), frame.set_index("episode", drop=False)):
        with pytest.raises(UnsupportedColumnError, match="cannot be converted to an Arrow table") as error:
            gear_data.convert(table, tmp_path / "d")
        assert "a name of its own" in (error.value.hint or "")

"""Writers of small sources, one per format, for tests/ingest/test_ideas.py. Not a test.

A writer takes episodes as plain mappings, under the names that a user would choose, so that one episode can be written
in every format.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

#: Name -> [T, ...], or a value of the whole episode.
Episode = Mapping[str, Any]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Writer:
    """A writer of a format.

    Attributes:
        write: writes episodes to an empty folder, and returns the source.
        rows: what a row of the source is: a step, an episode, or neither.
        scalars: whether a column holds one number a step, so that only the first element of a vector is written.
    """

    write: Callable[[Path, Sequence[Episode]], Any]
    rows: str = ""
    scalars: bool = False

    def seen(self, values: Array) -> Array:
        """Returns the part of [T, ...] values that the format holds."""
        return values.reshape(len(values), -1)[:, 0] if self.scalars else values


def _length(episode: Episode) -> int:
    return min(len(values) for values in episode.values() if np.ndim(values))


def _flat(episodes: Sequence[Episode], *, ids: bool = True) -> dict[str, Array]:
    """Returns the steps of all episodes in one array a column. Values of an episode are repeated.

    With `ids`, there is a column `episode`, of which the episodes may have a value.
    """
    columns = {
        name: np.concatenate([np.asarray(_per_step(each[name], _length(each))) for each in episodes])
        for name in episodes[0]
    }
    numbers = np.repeat(np.arange(len(episodes)), [_length(each) for each in episodes])
    return columns | ({"episode": columns.get("episode", numbers)} if ids else {})


def _per_step(value: Any, length: int) -> Any:
    return value if np.ndim(value) else [value] * length


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def step_table(episodes: Sequence[Episode]) -> pa.Table:
    """Returns a table with a row a step, and the column `episode`."""
    return pa.table({name: pa.array(values.tolist()) for name, values in _flat(episodes).items()})


def episode_table(episodes: Sequence[Episode]) -> pa.Table:
    """Returns a table with a row an episode."""
    return pa.Table.from_pylist([{name: _plain(value) for name, value in each.items()} for each in episodes])


def _parquet(table: Callable[[Sequence[Episode]], pa.Table]) -> Callable[[Path, Sequence[Episode]], Path]:
    def write(folder: Path, episodes: Sequence[Episode]) -> Path:
        pq.write_table(table(episodes), folder / "data.parquet")
        return folder / "data.parquet"

    return write


def _json_lines(table: Callable[[Sequence[Episode]], pa.Table]) -> Callable[[Path, Sequence[Episode]], Path]:
    def write(folder: Path, episodes: Sequence[Episode]) -> Path:
        (folder / "data.jsonl").write_text("\n".join(map(json.dumps, table(episodes).to_pylist())))
        return folder / "data.jsonl"

    return write


def _csv(folder: Path, episodes: Sequence[Episode]) -> Path:
    columns = {name: values.reshape(len(values), -1)[:, 0].tolist() for name, values in _flat(episodes).items()}
    with open(folder / "data.csv", "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return folder / "data.csv"


def _pandas(_: Path, episodes: Sequence[Episode]) -> pd.DataFrame:
    return pd.DataFrame({name: values.tolist() for name, values in _flat(episodes).items()})


def _polars(table: Callable[[Sequence[Episode]], pa.Table]) -> Callable[[Path, Sequence[Episode]], pl.DataFrame]:
    def write(_: Path, episodes: Sequence[Episode]) -> pl.DataFrame:
        frame = pl.from_arrow(table(episodes))
        assert isinstance(frame, pl.DataFrame)
        return frame

    return write


def _saved(table: Callable[[Sequence[Episode]], pa.Table]) -> Callable[[Path, Sequence[Episode]], Path]:
    def write(folder: Path, episodes: Sequence[Episode]) -> Path:
        import datasets

        datasets.disable_progress_bars()
        datasets.Dataset(table(episodes)).save_to_disk(folder / "saved")
        return folder / "saved"

    return write


def _npz(folder: Path, episodes: Sequence[Episode]) -> Path:
    np.savez(folder / "data.npz", **_flat(episodes))
    return folder / "data.npz"


def _npz_lengths(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes flat arrays of any number of rows an episode, or one value an episode, and the lengths."""
    columns = {name: np.concatenate([np.atleast_1d(each[name]) for each in episodes]) for name in episodes[0]}
    np.savez(folder / "data.npz", episode_lengths=[_length(each) for each in episodes], **columns)
    return folder / "data.npz"


def _npz_files(folder: Path, episodes: Sequence[Episode]) -> Path:
    for i, episode in enumerate(episodes):
        np.savez(folder / f"{i}.npz", **episode)
    return folder


def _d4rl(folder: Path, episodes: Sequence[Episode]) -> Path:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, values in _flat(episodes, ids=False).items():
            file[name] = values
    return folder / "data.hdf5"


def _lerobot(folder: Path, episodes: Sequence[Episode]) -> Path:
    columns = _flat(episodes)
    lengths = [_length(each) for each in episodes]
    columns["episode_index"] = columns.pop("episode")
    columns["frame_index"] = np.concatenate([np.arange(length) for length in lengths])
    features = {
        name: {"dtype": values.dtype.name, "shape": list(values.shape[1:]) or [1], "names": None}
        for name, values in columns.items()
    }
    for path in ("data/chunk-000", "meta"):
        (folder / path).mkdir(parents=True)
    pq.write_table(
        pa.table({name: pa.array(values.tolist()) for name, values in columns.items()}),
        folder / "data/chunk-000/episode_000000.parquet",
    )
    info = {"codebase_version": "v2.1", "fps": 10, "features": features, "total_episodes": len(episodes)}
    info |= {
        "total_frames": sum(lengths),
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    }
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/tasks.jsonl").write_text("")
    lines = [{"episode_index": i, "tasks": [], "length": length} for i, length in enumerate(lengths)]
    (folder / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


WRITERS: dict[str, Writer] = {
    "Parquet, a row a step": Writer(_parquet(step_table), "step"),
    "JSON lines, a row a step": Writer(_json_lines(step_table), "step"),
    "CSV": Writer(_csv, "step", scalars=True),
    "save_to_disk, a row a step": Writer(_saved(step_table), "step"),
    "pandas": Writer(_pandas, "step"),
    "Polars, a row a step": Writer(_polars(step_table), "step"),
    "LeRobot": Writer(_lerobot, "step"),
    "Parquet, a row an episode": Writer(_parquet(episode_table), "episode"),
    "JSON lines, a row an episode": Writer(_json_lines(episode_table), "episode"),
    "save_to_disk, a row an episode": Writer(_saved(episode_table), "episode"),
    "Polars, a row an episode": Writer(_polars(episode_table), "episode"),
    "episodes in memory": Writer(lambda _, episodes: [dict(each) for each in episodes]),
    "arrays in memory": Writer(lambda _, episodes: _flat(episodes)),
    "npz": Writer(_npz),
    "npz with lengths": Writer(_npz_lengths),
    "npz, a file an episode": Writer(_npz_files),
    "D4RL": Writer(_d4rl, "step"),
}

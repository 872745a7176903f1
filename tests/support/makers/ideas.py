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
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.makers import own_formats
from tests.support.makers.flat_episodes import Array, Episode, flat_arrays, length_of
from tests.support.makers.tar_samples import write_samples


@dataclass(frozen=True)
class Writer:
    """A writer of a format.

    Attributes:
        write: writes episodes to an empty folder, and returns the source.
        rows: what the source is: "step" or "episode", where a row is one; "ids" for arrays with ids; "alone" where
            each file, group or item is an episode.
        scalars: whether a column holds one number a step, so that only the first element of a vector is written.
        observations: the column that the observations become.
        own_names: whether the format has names of its own.
        own_flags: whether the format has end flags of its own.
        single: whether fractions are float32.
        needs: a package that is needed to write the format.
    """

    write: Callable[[Path, Sequence[Episode]], Any]
    rows: str = ""
    scalars: bool = False
    observations: str = "observations"
    own_names: bool = False
    own_flags: bool = False
    single: bool = False
    needs: str = ""

    def column(self, name: str) -> str:
        """Returns the column that the values of a canonical name become."""
        return self.observations if name == "observations" else name

    def seen(self, values: Array) -> Array:
        """Returns the part of [T, ...] values that the format holds."""
        values = values.astype(np.float32) if self.single and values.dtype == np.float64 else values
        return values.reshape(len(values), -1)[:, 0] if self.scalars else values


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def step_table(episodes: Sequence[Episode]) -> pa.Table:
    """Returns a table with a row a step, and the column `episode`."""
    return pa.table(
        {name: pa.array(values.tolist(), _bytes_type(values)) for name, values in flat_arrays(episodes).items()}
    )


def _bytes_type(values: Any) -> pa.DataType | None:
    """Returns the type of rows of uint8, which their Python numbers have lost; None for other values."""
    is_bytes = getattr(values, "dtype", None) == np.uint8 and values.ndim == 2
    return pa.list_(pa.uint8()) if is_bytes else None


def episode_table(episodes: Sequence[Episode]) -> pa.Table:
    """Returns a table with a row an episode."""
    table = pa.Table.from_pylist([{name: _plain(value) for name, value in each.items()} for each in episodes])
    for i, (name, values) in enumerate(episodes[0].items()):
        if (type_ := _bytes_type(values)) is not None:
            table = table.set_column(i, name, table.column(name).cast(pa.list_(type_)))
    return table


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
    columns = {name: values.reshape(len(values), -1)[:, 0].tolist() for name, values in flat_arrays(episodes).items()}
    with open(folder / "data.csv", "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return folder / "data.csv"


def _pandas(_: Path, episodes: Sequence[Episode]) -> pd.DataFrame:
    columns = flat_arrays(episodes)
    return pd.DataFrame({n: list(v) if v.dtype == np.uint8 else v.tolist() for n, v in columns.items()})


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


def _samples(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes WebDataset, a sample a step."""
    columns = flat_arrays(episodes)
    steps = len(columns["episode"])
    samples = [{f"{name}.npy": values[step] for name, values in columns.items()} for step in range(steps)]
    return write_samples(folder / "data.tar", samples)


def _episode_samples(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes WebDataset, a sample an episode."""
    samples = [{f"{name}.npy": np.asarray(values) for name, values in each.items()} for each in episodes]
    return write_samples(folder / "data.tar", samples)


def _lance(folder: Path, episodes: Sequence[Episode]) -> Path:
    import lance

    lance.write_dataset(step_table(episodes), str(folder / "data.lance"))
    return folder / "data.lance"


def _npz(folder: Path, episodes: Sequence[Episode]) -> Path:
    np.savez(folder / "data.npz", **flat_arrays(episodes))
    return folder / "data.npz"


def _npz_lengths(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes flat arrays of any number of rows an episode, or one value an episode, and the lengths."""
    columns = {name: np.concatenate([np.atleast_1d(each[name]) for each in episodes]) for name in episodes[0]}
    np.savez(folder / "data.npz", episode_lengths=[length_of(each) for each in episodes], **columns)
    return folder / "data.npz"


def _npz_files(folder: Path, episodes: Sequence[Episode]) -> Path:
    for i, episode in enumerate(episodes):
        np.savez(folder / f"{i}.npz", **episode)
    return folder


def _npz_numbered(folder: Path, episodes: Sequence[Episode]) -> Path:
    np.savez(folder / "data.npz", **{f"{name}_{i}": each[name] for i, each in enumerate(episodes) for name in each})
    return folder / "data.npz"


def _npy(folder: Path, episodes: Sequence[Episode]) -> Path:
    for name, values in flat_arrays(episodes).items():
        np.save(folder / f"{name}.npy", values)
    return folder


def _npy_folders(folder: Path, episodes: Sequence[Episode]) -> Path:
    for i, episode in enumerate(episodes):
        (folder / str(i)).mkdir()
        for name, values in episode.items():
            np.save(folder / f"{i}/{name}.npy", values)
    return folder


def _hdf5(group: str, **names: str) -> Callable[[Path, Sequence[Episode]], Path]:
    """Returns a writer of a group an episode; the path of a group holds its number in place of `{}`."""

    def write(folder: Path, episodes: Sequence[Episode]) -> Path:
        with h5py.File(folder / "data.hdf5", "w") as file:
            for i, episode in enumerate(episodes):
                for name, values in episode.items():
                    own_formats.store(file, f"{group.format(i)}/{names.get(name, name)}", values)
        return folder / "data.hdf5"

    return write


def _hdf5_ids(folder: Path, episodes: Sequence[Episode]) -> Path:
    return own_formats.write_hdf5(folder / "data.hdf5", flat_arrays(episodes))


def _hdf5_ends(folder: Path, episodes: Sequence[Episode]) -> Path:
    arrays = {f"data/{name}": values for name, values in flat_arrays(episodes, ids=False).items()}
    ends = np.cumsum([length_of(each) for each in episodes])
    return own_formats.write_hdf5(folder / "data.hdf5", arrays | {"meta/episode_ends": ends})


def write_zarr(arrays: Mapping[str, Any], root: Path) -> Path:
    """Writes arrays of one chunk without compression, as version 2 has them: zarr itself is slow."""
    for path, values in arrays.items():
        array = np.asarray(values)
        (root / path).mkdir(parents=True)
        for group in (root, *(root / path).parents[:1]):
            (group / ".zgroup").write_text('{"zarr_format": 2}')
        chunks = [max(1, size) for size in array.shape]
        about = {"shape": array.shape, "chunks": chunks, "dtype": array.dtype.str, "compressor": None, "filters": None}
        about |= {"zarr_format": 2, "order": "C", "fill_value": None}
        (root / path / ".zarray").write_text(json.dumps(about))
        if array.size:
            (root / path / ".".join(["0"] * max(1, array.ndim))).write_bytes(array.tobytes())
    return root


def _zarr_groups(folder: Path, episodes: Sequence[Episode]) -> Path:
    arrays = {f"episode_{i}/{name}": values for i, each in enumerate(episodes) for name, values in each.items()}
    return write_zarr(arrays, folder / "data.zarr")


def _replay_buffer(folder: Path, episodes: Sequence[Episode]) -> Path:
    arrays = {f"data/{name}": values for name, values in flat_arrays(episodes, ids=False).items()}
    ends = np.cumsum([length_of(each) for each in episodes])
    return write_zarr(arrays | {"meta/episode_ends": ends}, folder / "data.zarr")


def _d4rl(folder: Path, episodes: Sequence[Episode]) -> Path:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, values in flat_arrays(episodes, ids=False).items():
            own_formats.store(file, name, values)
    return folder / "data.hdf5"


def _lerobot(folder: Path, episodes: Sequence[Episode]) -> Path:
    columns = flat_arrays(episodes)
    lengths = [length_of(each) for each in episodes]
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
    "WebDataset, a sample a step": Writer(_samples, "step"),
    "Lance": Writer(_lance, "step", needs="lance"),
    "pandas": Writer(_pandas, "step"),
    "Polars, a row a step": Writer(_polars(step_table), "step"),
    "LeRobot": Writer(_lerobot, "step"),
    "Parquet, a row an episode": Writer(_parquet(episode_table), "episode"),
    "JSON lines, a row an episode": Writer(_json_lines(episode_table), "episode"),
    "save_to_disk, a row an episode": Writer(_saved(episode_table), "episode"),
    "WebDataset, a sample an episode": Writer(_episode_samples, "episode"),
    "Polars, a row an episode": Writer(_polars(episode_table), "episode"),
    "episodes in memory": Writer(lambda _, episodes: [dict(each) for each in episodes], "alone"),
    "arrays in memory": Writer(lambda _, episodes: flat_arrays(episodes), "ids"),
    "npz": Writer(_npz, "ids"),
    "npz with lengths": Writer(_npz_lengths),
    "npz, a file an episode": Writer(_npz_files, "alone"),
    "npz, an array an episode": Writer(_npz_numbered, "alone"),
    "npy": Writer(_npy, "ids"),
    "npy, a folder an episode": Writer(_npy_folders, "alone"),
    "D4RL": Writer(_d4rl, "step", own_names=True),
    "HDF5, flat with ids": Writer(_hdf5_ids, "step"),
    "HDF5, flat with ends": Writer(_hdf5_ends, "step"),
    "HDF5, a group an episode": Writer(_hdf5("episode_{}"), "alone"),
    "robomimic": Writer(
        _hdf5("data/demo_{}", observations="obs/x", next_observations="next_obs/x"),
        "alone",
        observations="observations.x",
        own_names=True,
    ),
    "Zarr, a group an episode": Writer(_zarr_groups, "alone"),
    "Zarr replay buffer": Writer(_replay_buffer, "step"),
    "Minari (HDF5)": Writer(own_formats.minari_hdf5, "alone", own_names=True, own_flags=True),
    "Minari (Arrow)": Writer(own_formats.minari_arrow, "alone", own_names=True, own_flags=True),
    "V-D4RL": Writer(own_formats.vd4rl, "step", own_names=True, own_flags=True),
    "d3rlpy": Writer(own_formats.d3rlpy, "alone", own_names=True, own_flags=True),
    "ACT": Writer(own_formats.act, "alone", observations="observations.qpos", own_names=True),
    "Stable-Baselines3": Writer(own_formats.stable_baselines3, "step", own_names=True, own_flags=True),
    "TorchRL": Writer(own_formats.torchrl, "step", own_names=True, needs="tensordict"),
    "RLDS": Writer(own_formats.rlds, "alone", own_names=True, own_flags=True, single=True, needs="tensorflow_datasets"),
}

"""Readings of datasets and sources without gear-data, for tests/fuzz/readers.py.

Datasets are read by pyarrow, sources by the library of their format. Not a test.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from gear_data.errors import GearError

#: Column -> values of an episode as bytes, or as a list for text.
Values = dict[str, bytes | list[Any]]


def dataset_episodes(folder: Path) -> Iterator[Values]:
    """Yields the values of each episode of a gear dataset.

    The order is the order of the episode table.
    """
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shards = [_read(folder / shard["file"]) for shard in manifest["shards"]]
    for row in _read(folder / manifest["tables"]["episodes"]["file"]).to_pylist():
        steps = shards[row["shard"]].slice(row["start"], row["length"])
        yield {name: _plain(steps.column(name)) for name in steps.column_names}


def differences(folder: Path, episodes: Iterator[Any]) -> str | None:
    """Returns the first difference of a dataset's episodes to its files.

    It is None if they are equal.
    """
    for i, (plain, episode) in enumerate(zip(dataset_episodes(folder), episodes, strict=True)):
        for name, expected in plain.items():
            values = episode[name]
            found = values.tolist() if values.dtype == object else values.tobytes()
            if found != expected:
                return f"episode {i}, column {name} differs from the file"
    return None


def statistics_differ(folder: Path, statistics: Mapping[str, Any]) -> str | None:
    """Returns the first column whose means or limits are wrong; None if there is none.

    Columns of text, and columns with NaN or Inf, are not compared.
    """
    manifest = json.loads((folder / "manifest.json").read_bytes())
    shards = [_read(folder / shard["file"]) for shard in manifest["shards"]]
    for name in statistics:
        if any(name not in shard.column_names for shard in shards):  # a camera: its statistics are of a sample
            continue
        parts = [_plain_array(shard.column(name)).reshape(len(shard), -1) for shard in shards if len(shard)]
        values = np.concatenate(parts).astype(np.float64)
        found = statistics[name]
        if not np.isfinite(values).all() or found.mean.size != values.shape[1]:
            continue
        same = np.allclose(found.mean, values.mean(axis=0), rtol=1e-9, atol=1e-12)
        if not same or (found.min != values.min(axis=0)).any() or (found.max != values.max(axis=0)).any():
            return f"statistics of {name} are not the shards'"
    return None


def frames_differ(folder: Path, dataset: Any, intact: Set[int]) -> str | None:
    """Returns the first episode with a frame that PyAV reads otherwise, in sequence from the file.

    It is None if there is none. A file is left out if it has a packet whose digest is not in `intact`: decoders guess
    the frames of damaged packets.
    """
    manifest = json.loads((folder / "manifest.json").read_bytes())
    episodes, files, packets = (
        _read(folder / manifest["tables"][name]["file"]) for name in ("episodes", "videos", "video_packets")
    )
    ends = np.cumsum(files.column("packets").to_numpy())
    for i, row in enumerate(episodes.to_pylist()):
        for camera in (video["name"] for video in manifest["videos"]):
            number, first = row[f"videos/{camera}/file"], row[f"videos/{camera}/first_frame"]
            count = files.column("packets")[number].as_py()
            digests = packets.column("digest").slice(int(ends[number]) - count, count).to_pylist()
            if not intact.issuperset(digests):
                continue
            try:
                found = np.asarray(dataset.episode(row["episode_id"])[camera])
            except GearError:
                continue
            with av.open(str(folder / files.column("file")[number].as_py())) as container:
                frames = sorted(container.decode(video=0), key=lambda frame: frame.pts)
            expected = [frame.to_ndarray(format="rgb24") for frame in frames[first : first + row["length"]]]
            if len(found) != len(expected) or not np.array_equal(found, expected):
                return f"episode {i}, camera {camera} differs from its file"
    return None


def _read(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()


def _plain(column: pa.ChunkedArray) -> bytes | list[Any]:
    array = column.combine_chunks()
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return list(array.to_pylist())
    return _plain_array(column).tobytes()


def _plain_array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    array = column.combine_chunks()
    while pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _d4rl(folder: Path, name: str) -> list[Any]:
    found = []
    for path in _files(folder, ".hdf5"):
        with h5py.File(path) as file:
            found.append(file[name][()])
    return found


def _robomimic(folder: Path, name: str) -> list[Any]:
    found = []
    for path in _files(folder, ".hdf5"):
        with h5py.File(path) as file:
            demos = sorted(file["data"], key=lambda demo: int(demo.rpartition("_")[2]))
            found += [file["data"][demo][name][()] for demo in demos]
    return found


def _step_rows(folder: Path, name: str) -> list[Any]:
    found = []
    for path in _files(folder, ".parquet"):
        found.append(np.array(pq.read_table(path).column(name).to_pylist()))
    return found


def _episode_rows(folder: Path, name: str) -> list[Any]:
    found = []
    for path in _files(folder, ".parquet"):
        found += [np.array(row) for row in pq.read_table(path).column(name).to_pylist()]
    return found


def _saved(folder: Path, name: str) -> list[Any]:
    import datasets

    return [np.array(datasets.load_from_disk(folder).with_format("arrow")[:].column(name).to_pylist())]


def _arrow(folder: Path, name: str) -> list[Any]:
    found = []
    for path in sorted(folder.iterdir()):
        data = pa.BufferReader(path.read_bytes())
        table = feather.read_table(data) if path.suffix == ".feather" else pa.ipc.open_stream(data).read_all()
        found += [np.array(row) for row in table.column(name).to_pylist()]
    return found


def _json(folder: Path, name: str) -> list[Any]:
    found = []
    for path in sorted(folder.iterdir()):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
            text = file.read()
        rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]
        found += [np.array(row[name]) for row in rows]
    return found


def _npz(folder: Path, name: str) -> list[Any]:
    found = []
    for path in _files(folder, ".npz"):
        with np.load(path, allow_pickle=False) as file:
            found.append(file[name])
    return found


def _act(folder: Path, name: str) -> list[Any]:
    def order(path: Path) -> tuple[str, int]:
        start, _, number = path.stem.rpartition("_")
        return start, int(number)

    found = []
    for path in sorted(_files(folder, ".hdf5"), key=order):
        with h5py.File(path) as file:
            found.append(file["action" if name == "actions" else name][()])
    return found


def _zarr(folder: Path, name: str) -> list[Any]:
    import zarr

    found = []
    for path in sorted(folder.iterdir()):
        store = zarr.storage.ZipStore(path) if path.suffix == ".zip" else path
        group = zarr.open_group(store, mode="r")
        found.append(group[f"data/{name.removesuffix('s')}"][...])
    return found


def _files(folder: Path, suffix: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())


#: Maker of sources (tests/support/source_makers.py) -> its reader: arrays of a column, in order.
READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    "d4rl": _d4rl,
    "d4rl-no-timeouts": _d4rl,
    "robomimic": _robomimic,
    "robomimic-isaac-lab": _robomimic,
    "robomimic-libero": _robomimic,
    "step-rows": _step_rows,
    "episode-rows": _episode_rows,
    "episode-rows-arrow": _arrow,
    "episode-rows-json": _json,
    "step-rows-saved": _saved,
    "step-rows-json": lambda folder, name: [values[None] for values in _json(folder, name)],
    "npz": _npz,
    "act": _act,
    "zarr": _zarr,
}


def source_differs(name: str, source: Path, dataset: Any) -> str | None:
    """Returns the first difference of a converted dataset to its source.

    It is None if there is no difference, or if nobody can tell. Actions and rewards are compared: they have one
    name and one meaning in these formats.
    """
    for column in ("actions", "rewards"):
        try:
            expected = np.concatenate([np.asarray(values, np.float64) for values in READERS[name](source, column)])
        except Exception:  # the library of the format does not read the column, so that nothing can be compared
            continue
        if column not in dataset.schema.names or dataset.num_steps == 0:
            continue
        found = np.concatenate([np.asarray(episode[column], np.float64) for episode in dataset])
        if found.size != expected.size:
            return f"{column}: {found.size} values, the source has {expected.size}"
        if not np.array_equal(found.ravel(), expected.ravel(), equal_nan=True):
            return f"{column}: the values are not the source's"
    return None

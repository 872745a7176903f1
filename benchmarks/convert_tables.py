"""Tables of steps for benchmarks/convert.py: writers, and floors by `datasets`.

The floor of a saved dataset is `load_from_disk`, and an Arrow IPC write of the same bytes with fsync. The floor of text
and tar files is `load_dataset`, which writes Arrow too.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from common import Episodes
from convert_frames import frames


def steps_of(values: npt.NDArray[Any]) -> pa.Array:
    """Returns an array [N, width] as one list per row."""
    offsets = pa.array(np.arange(0, values.size + 1, values.shape[1], dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))


def bounds(episodes: Episodes) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(episodes.lengths)])


def step_table(episodes: Episodes, fixed: bool) -> pa.Table:
    def vector(values: npt.NDArray[Any]) -> pa.Array:
        if fixed:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        return steps_of(values)

    starts = np.repeat(bounds(episodes)[:-1], episodes.lengths)
    return pa.table(
        {
            "observations": vector(episodes.observations),
            "actions": vector(episodes.actions),
            "rewards": episodes.rewards,
            "dones": episodes.terminals,
            "episode_index": np.repeat(np.arange(len(episodes)), episodes.lengths),
            "step_index": np.arange(episodes.steps) - starts,
        }
    )


def write_step_rows(episodes: Episodes, folder: Path) -> None:
    pq.write_table(step_table(episodes, fixed=False), folder / "steps.parquet", row_group_size=100_000)


def write_fixed_step_rows(episodes: Episodes, folder: Path) -> None:
    pq.write_table(step_table(episodes, fixed=True), folder / "steps.parquet", row_group_size=100_000)


def write_saved(episodes: Episodes, folder: Path) -> None:
    """Writes a dataset with `save_to_disk`."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(step_table(episodes, fixed=False)).save_to_disk(folder)


def write_json_lines(episodes: Episodes, folder: Path) -> None:
    with open(folder / "steps.jsonl", "w") as file:
        for batch in step_table(episodes, fixed=False).to_batches(max_chunksize=10_000):
            file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())


def write_csv(episodes: Episodes, folder: Path) -> None:
    """Writes one column for each element of a vector."""
    table = step_table(episodes, fixed=False).drop_columns(["observations", "actions"])
    columns = {f"observation_{i}": values for i, values in enumerate(episodes.observations.T)}
    columns |= {f"action_{i}": values for i, values in enumerate(episodes.actions.T)}
    columns |= {name: table.column(name).to_numpy() for name in table.column_names}
    with open(folder / "steps.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for first in range(0, episodes.steps, 10_000):
            writer.writerows(
                zip(*(values[first : first + 10_000].tolist() for values in columns.values()), strict=True)
            )


def write_tar(episodes: Episodes, folder: Path) -> None:
    """Writes WebDataset, one sample per step, with a frame that is not compressed."""
    arrays = {"observations": episodes.observations, "actions": episodes.actions}
    facts = step_table(episodes, fixed=False).drop_columns(list(arrays)).to_pylist()
    arrays["frame"] = frames(episodes.steps, (84, 84))
    with tarfile.open(folder / "steps.tar", "w") as archive:
        for i, fact in enumerate(facts):
            members = {"json": json.dumps(fact).encode()}
            for name, values in arrays.items():
                sink = io.BytesIO()
                np.save(sink, values[i])
                members[f"{name}.npy"] = sink.getvalue()
            for suffix, data in members.items():
                member = tarfile.TarInfo(f"{i:09d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def floor_saved(source: Path, destination: Path) -> int:
    """Reads a saved dataset and writes it as Arrow; returns the bytes in memory."""
    import datasets

    destination.mkdir()
    loaded = datasets.load_from_disk(source).with_format("arrow")
    size = 0
    path = str(destination / "data.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, loaded.features.arrow_schema) as writer:
        for table in loaded.iter(10_000):
            writer.write_table(table)
            size += table.nbytes
    with open(path, "rb") as written:
        os.fsync(written.fileno())
    return size


def _floor_loaded(kind: str, source: Path, destination: Path) -> int:
    """Reads files with `load_dataset`; returns the bytes in memory."""
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, source.iterdir()))
    loaded = datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(destination))
    return int(loaded.data.nbytes)


def floor_json(source: Path, destination: Path) -> int:
    return _floor_loaded("json", source, destination)


def floor_csv(source: Path, destination: Path) -> int:
    return _floor_loaded("csv", source, destination)


def floor_tar(source: Path, destination: Path) -> int:
    return _floor_loaded("webdataset", source, destination)

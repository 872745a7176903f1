"""Seeded rollouts, and writers of plain source layouts.

Tests use them through the fixture `sources`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Rollout:
    """One episode in canonical form.

    Canonical columns [T, ...], and the observation after the last step.
    """

    columns: Columns
    final: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.columns["rewards"])

    @property
    def ends(self) -> npt.NDArray[np.bool_]:
        """bool [T], true at the last step."""
        return np.arange(len(self)) == len(self) - 1

    @property
    def next_observations(self) -> npt.NDArray[Any]:
        return np.concatenate([self.columns["observations"][1:], self.final[None]])

    def with_columns(self, **columns: npt.NDArray[Any]) -> Rollout:
        return replace(self, columns={**self.columns, **columns})


def make_rollouts(
    count: int = 9, seed: int = 0, *, max_length: int = 12, states: int = 3, actions: int = 2, short: bool = True
) -> list[Rollout]:
    """Returns episodes of 1 to `max_length` steps.

    With `short`, the first episode has one step. Episodes terminate and are truncated in turn.
    """
    rng = np.random.default_rng(seed)
    rollouts = []
    for i in range(count):
        length = 1 if i == 0 and short else int(rng.integers(1, max_length + 1))
        last = np.arange(length) == length - 1
        columns: Columns = {
            "observations": rng.normal(size=(length, states)).astype(np.float32),
            "actions": rng.normal(size=(length, actions)).astype(np.float32),
            "rewards": rng.normal(size=length).astype(np.float32),
            "terminated": last if i % 2 == 0 else np.zeros(length, np.bool_),
            "truncated": last if i % 2 == 1 else np.zeros(length, np.bool_),
        }
        rollouts.append(Rollout(columns, rng.normal(size=states).astype(np.float32)))
    return rollouts


def nested(values: npt.NDArray[Any]) -> pa.Array:
    """Returns [n, ...] as an Arrow array of nested lists, [n] as a flat array."""
    return pa.array(values.tolist(), _list_type(values))


def _list_type(values: npt.NDArray[Any]) -> pa.DataType:
    type_ = pa.from_numpy_dtype(values.dtype)
    for _ in range(values.ndim - 1):
        type_ = pa.list_(type_)
    return type_


def episode_table(columns: Sequence[Columns], **facts: Sequence[Any]) -> pa.Table:
    """Returns a table with one row per episode; `facts` are scalar columns."""
    arrays = {
        name: pa.array([episode[name].tolist() for episode in columns], pa.list_(_list_type(columns[0][name])))
        for name in columns[0]
    }
    return pa.table({**arrays, **facts})


def step_table(columns: Sequence[Columns], **facts: Any) -> pa.Table:
    """Returns a table with one row per step; `facts` are further columns."""
    arrays = {name: nested(np.concatenate([episode[name] for episode in columns])) for name in columns[0]}
    return pa.table({**arrays, **facts})


def episode_numbers(rollouts: Sequence[Rollout]) -> npt.NDArray[np.int64]:
    """Returns int64 [steps]: the episode of each step."""
    return np.repeat(np.arange(len(rollouts)), [len(rollout) for rollout in rollouts])


def write_parquet(path: Path, table: pa.Table, *, row_group: int = 1 << 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)
    return path


def write_episodes(path: Path, rollouts: Sequence[Rollout], *, row_group: int = 1 << 20, **facts: Any) -> Path:
    """Writes Parquet with one row per episode, under canonical names."""
    return write_parquet(path, episode_table([r.columns for r in rollouts], **facts), row_group=row_group)


def write_steps(path: Path, rollouts: Sequence[Rollout], *, row_group: int = 1 << 20) -> Path:
    """Writes Parquet with one row per step and an `episode_index`."""
    table = step_table([r.columns for r in rollouts], episode_index=episode_numbers(rollouts))
    return write_parquet(path, table, row_group=row_group)


def write_d4rl(
    path: Path,
    rollouts: Sequence[Rollout],
    *,
    timeouts: bool = True,
    next_observations: bool = True,
    column_vectors: bool = False,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Writes D4RL HDF5.

    With `column_vectors`, rewards and flags have shape (N, 1). `extra` are further datasets by path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = {name: np.concatenate([r.columns[name] for r in rollouts]) for name in rollouts[0].columns}
    datasets = {name: flat[name] for name in ("observations", "actions", "rewards")}
    datasets["terminals"] = flat["terminated"]
    if timeouts:
        datasets["timeouts"] = flat["truncated"]
    if column_vectors:
        datasets = {name: values.reshape(len(values), -1) for name, values in datasets.items()}
    if next_observations:
        datasets["next_observations"] = np.concatenate([r.next_observations for r in rollouts])
    with h5py.File(path, "w") as file:
        for name, values in {**datasets, **(extra or {})}.items():
            file.create_dataset(name, data=values, **(options if np.ndim(values) else {}))
    return path


def write_lerobot(folder: Path, rollouts: Sequence[Rollout], *, info: dict[str, Any] | None = None) -> Path:
    """Writes a LeRobot v2.1 folder.

    It has two tasks in turn, and a declared feature without a Parquet column.
    """
    first = 0
    for i, rollout in enumerate(rollouts):
        columns, count = rollout.columns, len(rollout)
        table = pa.table(
            {
                "observation.state": nested(columns["observations"]),
                "action": nested(columns["actions"]),
                "next.reward": columns["rewards"],
                "next.terminated": columns["terminated"],
                "next.truncated": columns["truncated"],
                "timestamp": (np.arange(count) / 30).astype(np.float32),
                "frame_index": np.arange(count),
                "episode_index": np.full(count, i),
                "index": np.arange(first, first + count),
                "task_index": np.full(count, i % 2),
            }
        )
        write_parquet(folder / f"data/chunk-000/episode_{i:06d}.parquet", table)
        first += count
    features = {name: {"dtype": "float32"} for name in table.column_names}
    features["observation.effort"] = {"dtype": "float32"}
    known = {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "fps": 30,
        "total_episodes": len(rollouts),
        "total_frames": first,
        "features": features,
    }
    meta = folder / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "info.json").write_text(json.dumps({**known, **(info or {})}))
    tasks = [{"task_index": 0, "task": "pick"}, {"task_index": 1, "task": "place"}]
    (meta / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder

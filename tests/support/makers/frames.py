"""Makers of small sources of frames, for tests/support/source_makers.py."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.support.rollouts import Rollout


def dqn_replay(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two checkpoints of Dopamine's replay buffer. Episodes terminate.

    The first buffer is not full. In the second one, the last row is the oldest: the end of an overwritten episode.
    """
    folder.mkdir(parents=True)
    stores = {"observation": "observations", "action": "actions", "reward": "rewards", "terminal": "terminated"}
    for number in range(2):
        for store, name in stores.items():
            values = [rollout.columns[name] for rollout in rollouts]
            padded = [np.concatenate([np.zeros_like(part[:1]).repeat(3, 0), part]) for part in values]
            rows = np.concatenate([*padded, np.ones_like(values[0][:1])])
            rows = rows.astype(np.uint8) if store == "terminal" else rows
            with gzip.open(folder / f"$store$_{store}_ckpt.{number}.gz", "wb", compresslevel=1) as file:
                np.save(file, rows)
        count = len(rows) * (number + 1) - 1
        for name, integers in (
            ("add_count", np.array(count)),
            ("invalid_range", (count + np.arange(-1, 4)) % len(rows)),
        ):
            with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb") as file:
                np.save(file, integers)


def calvin(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a split with one file a step; the last one belongs to no recording."""
    folder.mkdir(parents=True)
    number, ranges = 17, []
    for rollout in rollouts:
        ranges.append((number, number + len(rollout) - 1))
        for step in range(len(rollout)):
            values = {name: column[step] for name, column in rollout.columns.items()}
            np.savez_compressed(folder / f"episode_{number:07d}.npz", **values, rel_actions=values["actions"])
            number += 1
    np.savez_compressed(folder / f"episode_{number:07d}.npz", actions=np.zeros(2))
    np.save(folder / "ep_start_end_ids.npy", np.array(ranges))


def vd4rl(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two shards of time steps, T + 1 rows an episode."""
    folder.mkdir(parents=True)
    rows: dict[str, list[Any]] = {name: [] for name in ("observation", "action", "reward", "discount", "step_type")}
    for rollout in rollouts:
        columns = rollout.columns
        rows["observation"].append(np.concatenate([columns["observations"], rollout.final[None]]))
        for name, column in (("action", "actions"), ("reward", "rewards")):
            rows[name].append(np.concatenate([np.zeros_like(columns[column][:1]), columns[column]]))
        rows["discount"].append(np.append(1, 1 - columns["terminated"]).astype(np.float32))
        rows["step_type"].append(np.array([0, *[1] * (len(rollout) - 1), 2.0]))
    for shard in range(2):
        with h5py.File(folder / f"{shard}.hdf5", "w") as file:
            for name, parts in rows.items():
                file.create_dataset(name, data=np.concatenate(parts), compression="gzip")

"""Makers of small sources of frames, for tests/support/source_makers.py. Not a test."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.rollouts import Rollout


def dqn_replay(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two checkpoints of Dopamine's replay buffer; every episode terminates in this layout.

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

"""Layouts of image observations for benchmarks/convert.py, whose floor is NumPy.

The floor reads every array whole, as the project of the layout does, and writes nothing.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import Episodes

#: Steps of a replay buffer; DQN Replay has 1,000,000.
CHECKPOINT_STEPS = 20_000


def frames(steps: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Returns uint8 [steps, *shape]: a noisy border, a plain field, two moving things."""
    random = np.random.default_rng(0)
    background = random.integers(0, 255, shape, np.uint8)
    background[shape[0] // 4 : shape[0] * 3 // 4] = 0
    values = np.repeat(background[None], steps, axis=0)
    for frame, (y, x, v, u) in zip(values, random.integers(0, min(shape[:2]) - 8, (steps, 4)), strict=True):
        frame[y : y + 4, x : x + 4] = 200
        frame[v : v + 8, u : u + 3] = 100
    return values


def write_dqn_replay(episodes: Episodes, folder: Path) -> None:
    """Writes full ring buffers of 84 x 84 frames, without Dopamine's padding."""
    for number, start in enumerate(range(0, episodes.steps, CHECKPOINT_STEPS)):
        rows = slice(start, start + CHECKPOINT_STEPS)
        steps = len(episodes.rewards[rows])
        stores: dict[str, npt.NDArray[Any]] = {
            "$store$_observation": frames(steps, (84, 84)),
            "$store$_action": (np.arange(steps) % 17 + 1).astype(np.int32),
            "$store$_reward": episodes.rewards[rows].astype(np.float32),
            "$store$_terminal": episodes.terminals[rows].astype(np.uint8),
            "add_count": np.array(2 * steps - 1),
            "invalid_range": np.arange(steps - 2, steps + 3) % steps,
        }
        for name, values in stores.items():
            with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb", compresslevel=6) as file:
                np.save(file, values)


def floor_gzip(source: Path, destination: Path) -> int:
    """Reads all arrays as Dopamine's `load` does."""
    destination.mkdir()
    size = 0
    for path in source.glob("*.gz"):
        with gzip.open(path) as file:
            size += np.load(file).nbytes
    return size


def write_calvin(episodes: Episodes, folder: Path) -> None:
    """Writes one recording, a file a step, with two cameras and a depth image."""
    cameras = {
        name: frames(episodes.steps, (side, side, 3)) for name, side in (("rgb_static", 200), ("rgb_gripper", 84))
    }
    for step in range(episodes.steps):
        values = {name: values[step] for name, values in cameras.items()}
        depth = values["rgb_static"][..., 0].astype(np.float32) / 255
        state = {"robot_obs": np.arange(15.0) + step, "scene_obs": np.zeros(24), "rel_actions": np.zeros(7)}
        np.savez_compressed(
            folder / f"episode_{step:07d}.npz", **values, **state, actions=np.full(7, step), depth_static=depth
        )
    pieces = [(first, min(first + 100, episodes.steps) - 1) for first in range(0, episodes.steps, 100)]
    np.save(folder / "ep_start_end_ids.npy", np.array(pieces))


def floor_npz(source: Path, destination: Path) -> int:
    """Reads all arrays of all files with `np.load`."""
    destination.mkdir()
    size = 0
    for path in source.glob("*.npz"):
        with np.load(path) as file:
            size += sum(file[name].nbytes for name in file)
    return size


def write_vd4rl(episodes: Episodes, folder: Path) -> None:
    """Writes a shard of 84 x 84 images, in episodes of 501 rows."""
    import h5py

    rows = np.arange(episodes.steps)
    values = {
        "observation": np.moveaxis(frames(episodes.steps, (84, 84, 3)), 3, 1),
        "action": np.where(rows[:, None] % 501, episodes.actions, 0).astype(np.float32),
        "reward": np.where(rows % 501, 1, 0).astype(np.float32),
        "discount": np.ones(len(rows), np.float32),
        "step_type": np.where(rows % 501 == 0, 0, np.where(rows % 501 == 500, 2, 1)).astype(np.float64),
    }
    with h5py.File(folder / "0.hdf5", "w") as file:
        for name, array in values.items():
            file.create_dataset(name, data=array, compression="gzip")

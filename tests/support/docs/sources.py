"""Datasets and sources that examples of the documentation find in their folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import gear_data
from tests.support import source_makers
from tests.support.cameras.depth import write_depth
from tests.support.cameras.filmed import film
from tests.support.rollouts import Rollout, make_rollouts, write_d4rl, write_episodes, write_lerobot, write_steps


def _hopper(seed: int = 3) -> list[Rollout]:
    """Returns 24 episodes: 11 observations, 3 actions, rewards around 1."""
    rollouts = make_rollouts(24, seed=seed, max_length=80, states=11, actions=3, short=False)
    return [r.with_columns(rewards=1 + r.columns["rewards"] / 4) for r in rollouts]


def _dataset(path: Path, seed: int = 3) -> None:
    source = write_d4rl(path.with_suffix(".hdf5"), _hopper(seed))
    gear_data.convert(source, path, shard_bytes=16 << 10, progress=False)
    source.unlink()


def _pendulum(path: Path) -> None:
    """Converts 24 episodes of 3 observations and 1 action."""
    rollouts = make_rollouts(24, seed=5, max_length=80, states=3, actions=1, short=False)
    gear_data.convert(write_d4rl(path.with_suffix(".hdf5"), rollouts), path, progress=False)


def _arm(path: Path) -> None:
    """Converts 24 episodes, and gives them two cameras."""
    _dataset(path)
    film(path, gear_data.open(path).lengths.tolist())


def _from_maker(name: str) -> Callable[[Path], None]:
    return lambda path: source_makers.MAKERS[name](path, make_rollouts(9, seed=1)) and None


def _ogbench(path: Path) -> None:
    """Writes the two files of a dataset, train and val."""
    source_makers.MAKERS["ogbench"](path, make_rollouts(9, seed=1))
    (path / "cube-single-play-v0-000.npz").rename(path / "cube-single-play-v0.npz")
    (path / "cube-single-play-v0-001.npz").rename(path / "cube-single-play-v0-val.npz")


def _stable_baselines3(path: Path) -> None:
    """Writes one archive, as the page says."""
    source_makers.MAKERS["stable-baselines3"](path, make_rollouts(9, seed=1))
    (path / "a.npz").rename(path / "replay_buffer.npz")
    (path / "b.h5").unlink()


def _zarr(path: Path) -> None:
    """Writes one store."""
    stores = path.with_name("stores")
    source_makers.MAKERS["zarr"](stores, make_rollouts(9, seed=1))
    (stores / "a.zarr").rename(path)
    shutil.rmtree(stores)


def _calvin(path: Path) -> None:
    """Writes a dataset with two splits."""
    path.mkdir()
    for split in ("training", "validation"):
        source_makers.MAKERS["calvin"](path / split, make_rollouts(9, seed=1))


def _robot(path: Path) -> None:
    """Writes an HDF5 file with a group per episode."""
    rollouts = make_rollouts(9, seed=1)
    with h5py.File(path, "w") as file:
        for i, rollout in enumerate(rollouts):
            columns = rollout.columns
            group = file.create_group(f"lab/run_{i}", track_order=True)
            group["action"], group["reward"] = columns["actions"], columns["rewards"]
            group["state"] = np.concatenate([columns["observations"], rollout.final[None]])
            group["terminated"], group["truncated"] = columns["terminated"], columns["truncated"]
            group.attrs["success"] = bool(i % 2)


def _flights(path: Path) -> None:
    """Writes a CSV file for each episode, with a column for each number."""
    path.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        values = rng.normal(size=(20 + i, 5))
        np.savetxt(path / f"flight_{i}.csv", values, "%.4f", ",", header="x,y,vx,thrust,reward", comments="")


#: Name in the folder of the example -> the function that creates it.
SOURCES: dict[str, Callable[[Path], object]] = {
    "hopper": _dataset,
    "arm": _arm,
    "pendulum": _pendulum,
    "walker": lambda path: _dataset(path, seed=4),
    "hopper-medium.parquet": lambda path: write_episodes(path, _hopper()),
    "hopper_medium-v2.hdf5": lambda path: write_d4rl(path, _hopper()),
    "steps.parquet": lambda path: write_steps(path, _hopper()),
    "flights": _flights,
    "reach": lambda path: write_depth(path, (6, 8, 4)),
    "pusht": lambda path: write_lerobot(path, make_rollouts(9, seed=1)),
    "minari": _from_maker("minari"),
    "aloha": _from_maker("act"),
    "lift": _from_maker("robomimic"),
    "libero_10": _from_maker("robomimic-libero"),
    "isaac": _from_maker("robomimic-isaac-lab"),
    "imitation": _from_maker("npz-imitation"),
    "ogbench": _ogbench,
    "d3rlpy": _from_maker("d3rlpy"),
    "sb3": _stable_baselines3,
    "robot.h5": _robot,
    "arrays": _from_maker("numpy"),
    "pusht.zarr": _zarr,
    "Pong": _from_maker("dqn-replay"),
    "task_D_D": _calvin,
    "84px": _from_maker("vd4rl"),
    "images": _from_maker("images"),
}

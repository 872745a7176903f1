"""HDF5 layouts for benchmarks/convert.py, whose floor is h5py.

The floor reads every array whole, and writes nothing.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import Episodes
from convert_tables import bounds


def write_d4rl(episodes: Episodes, folder: Path, compression: str | None = "gzip") -> None:
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(name, data=getattr(episodes, name), compression=compression)
        file.create_dataset("timeouts", data=np.zeros(episodes.steps, np.bool_), compression=compression)


def write_plain_d4rl(episodes: Episodes, folder: Path) -> None:
    write_d4rl(episodes, folder, None)


def write_isaac_lab(episodes: Episodes, folder: Path) -> None:
    """Writes Isaac Lab's HDF5: demonstrations with the states of the scene."""
    import h5py

    assets = {"articulation/robot/joint_position": 9, "rigid_object/cube/root_pose": 7}
    with h5py.File(folder / "dataset.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"], data.attrs["total"] = json.dumps({"env_name": "Isaac-Lift", "type": 2}), episodes.steps
        for i, (first, last) in enumerate(pairwise(bounds(episodes).tolist())):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"], demo.attrs["seed"], demo.attrs["success"] = last - first, i, True
            observations, actions = episodes.observations[first:last], episodes.actions[first:last]
            arrays = {
                "actions": actions,
                "processed_actions": actions,
                "obs/actions": actions,
                "obs/policy": observations,
            }
            for asset, width in assets.items():
                arrays[f"states/{asset}"] = observations[:, :width]
                arrays[f"initial_state/{asset}"] = observations[:1, :width]
            for name, values in arrays.items():
                demo.create_dataset(name, data=values, compression="gzip")


def write_minari(episodes: Episodes, folder: Path) -> None:
    import h5py

    data = folder / "data"
    data.mkdir()
    places = bounds(episodes).tolist()
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for i, (first, last) in enumerate(pairwise(places)):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"] = i, last - first
            group["observations"] = np.concatenate([episodes.observations[first:last], episodes.observations[:1]])
            group["actions"] = episodes.actions[first:last]
            group["rewards"] = episodes.rewards[first:last]
            group["terminations"] = episodes.terminals[first:last]
            group["truncations"] = np.zeros(last - first, np.bool_)
    facts = {"total_episodes": len(episodes), "total_steps": episodes.steps, "data_format": "hdf5"}
    (data / "metadata.json").write_text(json.dumps(facts))


def write_act(episodes: Episodes, folder: Path) -> None:
    """Writes a file per episode, with a camera of 120 x 160 pixels."""
    import h5py

    places = bounds(episodes).tolist()
    frames = np.random.default_rng(0).integers(0, 255, (max(np.diff(places)), 120, 160, 3), np.uint8)
    for i, (first, last) in enumerate(pairwise(places)):
        with h5py.File(folder / f"episode_{i}.hdf5", "w") as file:
            file.attrs["sim"] = True
            file["action"] = episodes.actions[first:last]
            file["observations/qpos"] = episodes.observations[first:last]
            images = frames[: last - first]
            file.create_dataset("observations/images/top", data=images, chunks=(1, *images.shape[1:]))


def write_tree(episodes: Episodes, folder: Path) -> None:
    """Writes a group per episode, whose names no format knows."""
    import h5py

    with h5py.File(folder / "data.hdf5", "w") as file:
        for i, (first, last) in enumerate(pairwise(bounds(episodes).tolist())):
            for name, values in (("action", episodes.actions), ("state", episodes.observations)):
                file[f"runs/run_{i}/{name}"] = values[first:last]
            file[f"runs/run_{i}/reward"] = episodes.rewards[first:last]


def floor_hdf5(source: Path, destination: Path) -> int:
    import h5py

    destination.mkdir()
    sizes = []
    for path in sorted(source.rglob("*.hdf5")):
        with h5py.File(path) as file:

            def read(_: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    sizes.append(np.asarray(item[()]).nbytes)

            file.visititems(read)
    return sum(sizes)

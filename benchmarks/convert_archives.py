"""Layouts of NumPy archives and replay buffers for benchmarks/convert.py.

The floor of archives is NumPy: it reads every array that gear-data reads, and writes nothing. `ogbench` itself needs
MuJoCo; its `load_dataset` reads the same arrays with NumPy.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from common import Episodes

#: Environments of a replay buffer.
ENVIRONMENTS = 8


def write_ogbench(episodes: Episodes, folder: Path) -> None:
    """Writes a compressed archive with the simulator's state, as published."""
    arrays = {name: getattr(episodes, name) for name in ("observations", "actions")}
    ends = np.zeros(episodes.steps, np.bool_)
    ends[np.cumsum(episodes.lengths) - 1] = True
    state = {"qpos": episodes.observations[:, :6], "qvel": episodes.observations[:, 6:]}
    np.savez_compressed(folder / "cube-single-play-v0.npz", **arrays, terminals=ends, **state)


def write_stable_baselines3(episodes: Episodes, folder: Path) -> None:
    """Writes the arrays of a full buffer of several environments, not compressed."""
    rows = episodes.steps // ENVIRONMENTS

    def of_environments(name: str) -> np.ndarray:
        values = getattr(episodes, name)[: rows * ENVIRONMENTS]
        return np.ascontiguousarray(values.reshape(ENVIRONMENTS, rows, *values.shape[1:]).swapaxes(0, 1))

    arrays = {name: of_environments(name) for name in ("observations", "actions", "rewards")}
    dones = of_environments("terminals").astype(np.float32)
    following = np.concatenate([arrays["observations"][1:], arrays["observations"][:1]])
    timeouts = np.zeros_like(dones)
    buffer = {"next_observations": following, "dones": dones, "timeouts": timeouts, "pos": rows // 3, "full": True}
    np.savez(folder / "replay_buffer.npz", **arrays, **buffer)


def write_d3rlpy(episodes: Episodes, folder: Path) -> None:
    """Writes a dataset for each episode and array, as d3rlpy's `dump` does."""
    import h5py

    places = np.concatenate([[0], np.cumsum(episodes.lengths)]).tolist()
    with h5py.File(folder / "buffer.hdf5", "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = len(episodes), "2.1"
        for i, (first, last) in enumerate(pairwise(places)):
            file[f"observations_{i}"] = episodes.observations[first:last]
            file[f"actions_{i}"] = episodes.actions[first:last]
            file[f"rewards_{i}"] = episodes.rewards[first:last, None]
            file[f"terminated_{i}"] = bool(episodes.terminals[last - 1])


def floor_archives(source: Path, destination: Path) -> int:
    """Reads every array but the simulator's state; returns the bytes in memory."""
    destination.mkdir()
    size = 0
    for path in sorted(source.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            size += sum(file[name].nbytes for name in file.files if name not in ("qpos", "qvel"))
    return size

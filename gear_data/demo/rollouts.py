"""Rollouts of Gymnasium's Pendulum-v1, by policies from random to good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_datasets
from gear_data.common.progress import progress_bar

FloatArray = npt.NDArray[np.float32]

#: Steps of a Pendulum-v1 episode. Every episode is truncated there; none terminates.
_LENGTH = 200
_MAX_TORQUE = 2.0
#: Probability that the random torque of an episode changes at a step.
_TORQUE_CHANGES = 0.1


def write_rollouts(path: Path, episodes: int, seed: int, progress: bool | None) -> None:
    """Writes rollouts as Parquet, one row per episode.

    This is the layout of HuggingFace's Decision Transformer datasets.

    Args:
        path: the file to write.
        episodes, seed, progress: see `make_rollouts`.

    Raises:
        MissingExtraError: `datasets` is not installed.
    """
    datasets = import_datasets()
    columns = make_rollouts(episodes, seed, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()})
    bars_were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        rows.to_parquet(path)
    finally:
        if not bars_were_disabled:
            datasets.enable_progress_bars()


def make_rollouts(episodes: int, seed: int, progress: bool | None = False) -> dict[str, npt.NDArray[Any]]:
    """Returns episodes of Pendulum-v1 by policies of different skill.

    The torque of episode i is skill[i] * controller + (1 - skill[i]) * random torque. Skills are spread over [0, 1], so
    returns run from about -1700 to 0. The random torque changes at about one step in ten. A model can infer it from
    earlier actions, so a model of sequences has something to learn.

    Args:
        episodes: number of episodes.
        seed: seed of the environments, skills and random torques.
        progress: show a bar; None shows one only on a terminal.

    Returns:
        `observations` float32 [E, 200, 3], `actions` float32 [E, 200, 1], `rewards` float32 [E, 200], `terminated` and
        `truncated` bool [E, 200].
    """
    import gymnasium

    rng = np.random.default_rng(seed)
    skill = rng.permutation(np.linspace(0.0, 1.0, episodes, dtype=np.float32))
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=episodes, vectorization_mode="sync")
    columns: dict[str, npt.NDArray[Any]] = {
        "observations": np.empty((episodes, _LENGTH, 3), np.float32),
        "actions": np.empty((episodes, _LENGTH, 1), np.float32),
        "rewards": np.empty((episodes, _LENGTH), np.float32),
        "terminated": np.empty((episodes, _LENGTH), np.bool_),
        "truncated": np.empty((episodes, _LENGTH), np.bool_),
    }
    try:
        observations, _ = envs.reset(seed=seed)
        random_torque = np.zeros(episodes, np.float32)
        with progress_bar(_LENGTH * episodes, "rollouts", "step", progress) as bar:
            for t in range(_LENGTH):
                fresh = rng.uniform(-_MAX_TORQUE, _MAX_TORQUE, episodes).astype(np.float32)
                changes = (rng.random(episodes) < _TORQUE_CHANGES) | (t == 0)
                random_torque = np.where(changes, fresh, random_torque)
                torque = skill * swing_up(observations) + (1 - skill) * random_torque
                actions = torque[:, None]
                columns["observations"][:, t], columns["actions"][:, t] = observations, actions
                observations, rewards, terminated, truncated, _ = envs.step(actions)
                columns["rewards"][:, t] = rewards
                columns["terminated"][:, t], columns["truncated"][:, t] = terminated, truncated
                bar.update(episodes)
    finally:
        envs.close()
    return columns


def swing_up(observations: FloatArray) -> FloatArray:
    """Returns a controller's torque [N] for observations [N, 3].

    An observation is cos and sin of the angle from upright, and the speed.

    Far from upright, the controller pumps energy up to the energy of the rod at rest upright. Near upright,
    proportional-derivative control holds the rod. Source: Astrom and Furuta, "Swinging up a pendulum by energy
    control", 2000.
    """
    cosine, sine, speed = observations.T
    # The environment's rod: acceleration = 15 sin(angle) + 3 torque. Torque 0 keeps this energy; at the goal it is 15.
    energy = speed**2 / 2 + 15 * cosine
    pump = 0.3 * (15 - energy) * np.where(speed >= 0, 1.0, -1.0)
    hold = -8 * np.arctan2(sine, cosine) - 2 * speed
    torque: FloatArray = np.where((cosine > 0.9) & (np.abs(speed) < 4), hold, pump).astype(np.float32)
    return torque.clip(-_MAX_TORQUE, _MAX_TORQUE)

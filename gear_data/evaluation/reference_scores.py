"""Reference returns of D4RL, and its normalised score.

Source: `infos.py` of Farama-Foundation/D4RL. A score of 0 is a random policy, and a score of 100 is an expert. The
returns were measured in D4RL's own environments. Later versions of an environment have other dynamics, so scores of
Gymnasium's v4 and v5 are close to D4RL's, but not the same.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gear_data.errors import unknown_name

#: Environment or task, lower case -> the mean return of a random policy, and of an expert.
REFERENCE_RETURNS = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
    "maze2d-open": (0.01, 20.66),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-open-dense": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense": (68.537689, 193.66285642381482),
    "maze2d-medium-dense": (44.264742, 297.4552547777125),
    "maze2d-large-dense": (30.569041, 303.4857382709002),
    "bullet-halfcheetah": (-1275.766996, 2381.6725),
    "bullet-hopper": (20.058972, 1441.8059623430963),
    "bullet-walker2d": (16.523877, 1623.6476303317536),
    "bullet-ant": (373.705955, 2650.495),
    "bullet-maze2d-open": (8.75, 64.15),
    "bullet-maze2d-umaze": (32.46, 153.99),
    "bullet-maze2d-medium": (14.87, 238.05),
    "bullet-maze2d-large": (1.82, 285.92),
}

_SAME_REWARDS = ("halfcheetah", "hopper", "walker2d", "ant", "pen", "hammer", "door", "relocate")


def reference_returns(name: str) -> tuple[float, float] | None:
    """Returns the reference returns of an environment; None if D4RL has none.

    Args:
        name: an environment or a dataset, such as `Hopper-v5`, `hopper-medium-v2` or `mujoco/hopper/expert-v0`.
    """
    # Gymnasium's names have capital letters. Its mazes and kitchen have other rewards than D4RL's.
    known = REFERENCE_RETURNS if name.islower() else {key: REFERENCE_RETURNS[key] for key in _SAME_REWARDS}
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower().replace("adroithand", "")) if word]
    runs = ["-".join(words[first : first + count]) for count in (3, 2, 1) for first in range(len(words) - count + 1)]
    # The hopper of dm_control has other rewards.
    return None if "dm-control" in runs else next((known[run] for run in runs if run in known), None)


def normalized_scores(returns: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    """Returns 100 * (return - random) / (expert - random).

    The scores are float64, of the shape of `returns`.

    Raises:
        UnknownNameError: D4RL has no reference returns for this environment.
    """
    references = reference_returns(name)
    if references is None:
        raise unknown_name("environment", name, REFERENCE_RETURNS)
    low, high = references
    return 100 * (np.asarray(returns, np.float64) - low) / (high - low)

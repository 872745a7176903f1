"""The plan of the kernels that draw goals: one record for each kind of goal.

A record holds everything that stays the same from batch to batch. This module needs neither Numba nor CuPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Probabilities are integers over 2^PROBABILITY_BITS. A random word's upper bits are compared with them.
PROBABILITY_BITS = 53

_FIELDS = (
    "seed",  # uint64 bits
    "domain",  # random domain of the goals, see `gear_data.kernels.cpu.random`
    "current",  # probability of the current step
    "current_or_trajectory",  # probability of the current step or a later step of the episode
    "survivors",  # address of int64: the probabilities of offsets above 1, 2, 3, ...; 0: offsets are uniform
    "longest",  # number of survivors
    "final",  # 1: goals reach the final observation, and all later states are equally likely if offsets are uniform
    "lengths",  # address of int64, the steps of each episode of the dataset
    "final_rows",  # address of int64, -1 for episodes without a final observation; 0: no episode has one
    "random",  # address of the WINDOW_PLAN that draws random steps; 0: no goal is random
    "subgoal",  # steps to a subgoal; 0: there are no subgoals
)
#: One record, every field int64.
GOAL_PLAN = np.dtype([(name, np.int64) for name in _FIELDS])

#: GOAL_PLAN [1].
GoalPlanArray = npt.NDArray[Any]

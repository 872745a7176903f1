"""Goals: states for goal-conditioned training, drawn with each window.

OGBench's `GCDataset` and `HGCDataset` define them, as does HIQL. The strategy `future` is hindsight experience
replay's.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.kernels.goal_plan import GOAL_PLAN, PROBABILITY_BITS, GoalPlanArray
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers.uniform import uniform_window_sampler
from gear_data.selection.window_sampler import WindowSampler
from gear_data.selection.windows import Int64Array, Windows

_ONE = 1 << PROBABILITY_BITS
#: Keys of the batch, without and with subgoals.
_FLAT = ("value_goals", "actor_goals")
_HIERARCHICAL = ("value_goals", "low_actor_goals", "high_actor_goals", "high_actor_targets")


@suggest_fields
@dataclass(frozen=True)
class Goals:
    """How goals are drawn. Shares are probabilities.

    A value goal is the current step (`current`), a later step of the episode (`trajectory`), or a random step of the
    dataset or view (`random`). An actor goal is drawn in the same way, independently, by `actor_...`. The defaults are
    OGBench's for HIQL.

    Attributes:
        current, trajectory, random: shares of value goals, with a sum of 1.
        discount: a geometric goal is more than n steps later with probability discount^n. 0 <= discount < 1.
        geometric: True: later steps are drawn with geometric offsets, at least 1. False: they are drawn uniformly; the
            next and the last step get half of the share of the steps between, as in OGBench.
        actor_current, actor_trajectory, actor_random: shares of actor goals, with a sum of 1.
        actor_geometric: `geometric` for actor goals.
        negative: whether rewards are 0 at the goal and -1 elsewhere. False: 1 at the goal, and 0 elsewhere.
        future: True draws as HER's strategy `future`. Later states include the final observation. Uniform draws give
            all of them equal shares. A transition is at the goal if its next observation is the goal. The dataset's
            masks stay. False draws as OGBench. The last goal of an episode is its last step. A transition is at the
            goal if its observation is the goal; its mask is 0 then, and 1 elsewhere.
        subgoal_steps: steps to the goals of a low-level actor, as in OGBench's `HGCDataset`. Batches then have
            `low_actor_goals`, `high_actor_goals` and `high_actor_targets` in place of `actor_goals`.
        goal_column: the column whose values at the goals' steps are in the batch.

    Raises:
        InvalidArgumentError: shares that are not probabilities with a sum of 1, a discount out of its range,
            `subgoal_steps` below 1, or `actor_current` with `subgoal_steps`.
    """

    current: float = 0.2
    trajectory: float = 0.5
    random: float = 0.3
    discount: float = 0.99
    geometric: bool = True
    actor_current: float = 0.0
    actor_trajectory: float = 1.0
    actor_random: float = 0.0
    actor_geometric: bool = False
    negative: bool = True
    future: bool = False
    subgoal_steps: int | None = None
    goal_column: str = "observations"

    def __post_init__(self) -> None:
        for names in (("current", "trajectory", "random"), ("actor_current", "actor_trajectory", "actor_random")):
            _check_shares({name: getattr(self, name) for name in names})
        for name in ("geometric", "actor_geometric", "negative", "future"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} is True or False, not {getattr(self, name)!r}")
        if not _is_number(self.discount) or not 0 <= self.discount < 1:
            raise InvalidArgumentError(
                f"discount of goals is {self.discount!r}; it must be at least 0 and below 1",
                hint="give geometric=False for later steps of equal probability",
            )
        if not isinstance(self.goal_column, str):
            raise InvalidArgumentError(f"goal_column is the name of one column, not {self.goal_column!r}")
        steps = self.subgoal_steps
        if steps is None:
            return
        check_range("subgoal_steps", steps, 1)
        # A NumPy integer becomes Python's: the loader's state is JSON.
        object.__setattr__(self, "subgoal_steps", int(steps))
        if self.actor_current:
            raise InvalidArgumentError(
                f"actor_current is {self.actor_current} with subgoal_steps={steps}: a high-level goal is never the "
                "current step",
                hint="give actor_current=0, and shares of actor_trajectory and actor_random with a sum of 1",
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of goals in a batch, in the order in which they are drawn."""
        return _FLAT if self.subgoal_steps is None else _HIERARCHICAL

    def to_json(self) -> dict[str, Any]:
        """Returns every field, JSON-able."""
        return dataclasses.asdict(self)


class GoalSampler:
    """Draws the goals of a dataset's windows.

    The goals of slot i of step t are a pure function of the arguments, of t and i, and of the slot's window.

    Args:
        goals: how goals are drawn.
        anchors: the steps that random goals can have, one window of one step for each.
        lengths: int64 [episodes of the whole dataset], their steps.
        final_rows: int64 [episodes of the whole dataset], -1 for an episode without a final observation; None: no goal
            is a final observation.
        seed: seed of the loader, 0 to 2^64 - 1.
        at_end: whether the current step of a window is its last one. False: its first one.
    """

    def __init__(
        self,
        goals: Goals,
        anchors: Anchors,
        lengths: Int64Array,
        final_rows: Int64Array | None,
        seed: int,
        at_end: bool,
    ) -> None:
        self._arguments = goals, anchors, lengths, final_rows, seed, at_end
        self.goals = goals
        self._at_end = at_end
        lengths = np.ascontiguousarray(lengths, np.int64)
        # Kept alive: the plans hold their addresses.
        self._arrays: list[Int64Array] = [lengths] if final_rows is None else [lengths, final_rows]
        self._samplers: list[WindowSampler] = []
        self._survivors = survivors(goals.discount, int(lengths.max(initial=0)))
        common = {
            "seed": int(np.uint64(seed).astype(np.int64)),
            "final": goals.future,
            "lengths": lengths.ctypes.data,
            "final_rows": 0 if final_rows is None else final_rows.ctypes.data,
        }
        domains = cpu.random
        self._value = self._plan(
            common, (goals.current, goals.trajectory, goals.random), goals.geometric, anchors, seed,
            (domains.DOMAIN_VALUE_GOAL, domains.DOMAIN_VALUE_GOAL_STEP), None,
        )  # fmt: skip
        self._actor = self._plan(
            common, (goals.actor_current, goals.actor_trajectory, goals.actor_random), goals.actor_geometric, anchors,
            seed, (domains.DOMAIN_ACTOR_GOAL, domains.DOMAIN_ACTOR_GOAL_STEP), goals.subgoal_steps,
        )  # fmt: skip
        self._addresses = int(self._value.ctypes.data), int(self._actor.ctypes.data)

    def __reduce__(self) -> tuple[Any, ...]:
        # The plans hold addresses, so they are built again.
        return (GoalSampler, self._arguments)

    def _plan(
        self,
        common: dict[str, int | bool],
        shares: tuple[float, float, float],
        geometric: bool,
        anchors: Anchors,
        seed: int,
        domains: tuple[int, int],
        subgoal_steps: int | None,
    ) -> GoalPlanArray:
        """Returns the plan of one kind of goal."""
        plan = np.zeros(1, GOAL_PLAN)
        for field, value in common.items():
            plan[field] = value
        current, trajectory, random = shares
        plan["domain"] = domains[0]
        plan["current"] = round(current * _ONE)
        plan["current_or_trajectory"] = round((current + trajectory) * _ONE) if random else _ONE
        if random:
            sampler = uniform_window_sampler(anchors, seed, "step", domains[1])
            self._samplers.append(sampler)
            plan["random"] = sampler.plan_address
        if geometric:
            plan["survivors"], plan["longest"] = self._survivors.ctypes.data, len(self._survivors)
        plan["subgoal"] = subgoal_steps or 0
        return plan

    def draw(self, step: int, windows: Windows) -> Int64Array:
        """Draws the goals of a batch.

        Args:
            step: the batch's step.
            windows: the windows of slots 0 to B - 1.

        Returns:
            int64 [2, goals, B]: episode ids, and steps in the episodes, in the order of `Goals.keys`. The number of an
            episode's steps stands for its final observation.
        """
        out = np.empty((2, len(self.goals.keys), len(windows)), np.int64)
        current = self.current(windows)
        cpu.goals.draw_goals(*self._addresses, step, windows.episode_id, current, out)
        return out

    def current(self, windows: Windows) -> Int64Array:
        """Returns the current step of each window, int64 [B]."""
        if not self._at_end:
            return windows.start
        last: Int64Array = windows.start + windows.length - 1
        return last

    def reached(self, windows: Windows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns whether each window is at its value goal, bool [B]."""
        if windows.goals is None:
            raise RuntimeError("these windows have no goals")
        episode_id, step = windows.goals[:, 0]
        current = self.current(windows) + self.goals.future
        return (episode_id == windows.episode_id) & (step == current)  # type: ignore[no-any-return]


def survivors(discount: float, longest: int) -> Int64Array:
    """Returns the probabilities of geometric offsets, as integers over 2^53.

    Number k, from 0 on, is the probability of an offset above k + 1. The table ends where a probability rounds to 0, or
    at the longest episode.

    Args:
        discount: 0 <= discount < 1.
        longest: steps of the longest episode.
    """
    if discount > 0:
        longest = min(longest, math.ceil(-(PROBABILITY_BITS + 2) * math.log(2) / math.log(discount)))
    # Products in order: equal bits on every machine.
    table: Int64Array = np.rint(np.multiply.accumulate(np.full(longest, float(discount))) * _ONE).astype(np.int64)
    return table[: np.count_nonzero(table)]


def _check_shares(shares: dict[str, float]) -> None:
    for name, share in shares.items():
        if not _is_number(share) or not 0 <= share <= 1:
            raise InvalidArgumentError(f"{name} is {share!r}; it must be a probability, 0 to 1")
    if not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        text = ", ".join(f"{name}={share}" for name, share in shares.items())
        raise InvalidArgumentError(
            f"{text} have the sum {sum(shares.values()):g}, not 1", hint="give all three shares of these goals"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

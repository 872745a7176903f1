"""The scenarios of benchmarks/feed.py: data, batch shapes, contenders and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Columns of a batch, by the name of gear-data's preset.
#: decision_transformer: observations, actions, rewards, return-to-go, timesteps, mask.
#: raw: observations, actions, timesteps, mask.
#: goals: transitions (observations, actions, next observations) with value and actor goals.
#: transitions: observations, actions, rewards, next observations, masks.
#: shifted: raw, with the observations' images shifted at random by 4 pixels.
#: stacked: raw, with observations that are stored as two columns, and become one at loading.
#: priorities: transitions, drawn by priorities that change after every batch.
Contract = Literal["decision_transformer", "raw", "goals", "transitions", "shifted", "stacked", "priorities"]

#: A large copy has at least this many times the bytes of the last-level cache.
CACHE_MULTIPLE = 10

#: Highest share of a 5 ms training step that a trainer may wait.
WAIT_TARGET = 0.02


@dataclass(frozen=True)
class Family:
    """A kind of data.

    `steps`, `observation` and `actions` describe the synthetic data that is used without a source.
    """

    title: str
    contract: Contract
    steps: int
    observation: tuple[int, ...]
    actions: int  # width of an action; 0: a discrete action


FAMILIES: Mapping[str, Family] = {
    "hopper": Family("Hopper", "decision_transformer", 200_000, (11,), 3),
    "g1": Family("G1 robot", "raw", 36_000, (26,), 26),
    "frames": Family("frames", "raw", 60_000, (84, 84), 0),
    "goals": Family("transitions with goals, Hopper's shape", "goals", 200_000, (11,), 3),
    "shifted": Family("images, shifted at random", "shifted", 30_000, (64, 64, 3), 5),
    "stacked": Family("Hopper, observations of two columns", "stacked", 200_000, (11,), 3),
    "priorities": Family("Hopper, prioritised transitions", "priorities", 200_000, (11,), 3),
    "transitions": Family("Hopper, transitions", "transitions", 200_000, (11,), 3),
    "wide": Family("wide (Humanoid-like)", "decision_transformer", 250_000, (376,), 17),
}


@dataclass(frozen=True)
class Scenario:
    """One table: batches of one shape from one dataset.

    Attributes:
        family: name in `FAMILIES`.
        peers: contenders other than gear-data.
        large: the data is copied until the cache holds less than a tenth of it.
        targets: contender -> lowest accepted ratio of gear-data's padded bytes/s to the contender's.
    """

    name: str
    family: str
    batch_size: int
    context: int
    peers: tuple[str, ...]
    large: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)


_LIMITS = ("memcpy", "memcpy-hot")
_FLOORS = ("floor", "floor-kept")
#: Contenders that accept any columns, images included.
_RAW = ("torchrl", "torchrl-memmap", "dt", *_LIMITS)
#: Reverb fills its table window by window: minutes for 200,000 steps, too long for the large copy.
_LARGE = (*_FLOORS, *_RAW, "d3rlpy", "hf", "hf-arrow")
_ALL = (*_LARGE, "dt-published", "reverb")

SCENARIOS = (
    Scenario(
        "hopper-256x20",
        "hopper",
        256,
        20,
        _ALL,
        targets={"torchrl": 12.0, "dt": 40.0, "reverb": 150.0, "memcpy": 0.45, "floor": 1 / 1.15},
    ),
    Scenario("hopper-256x20-large", "hopper", 256, 20, _LARGE, large=True, targets={"memcpy": 0.22}),
    Scenario("hopper-64x20", "hopper", 64, 20, _FLOORS, targets={"floor": 1 / 1.2}),
    Scenario("hopper-16x5", "hopper", 16, 5, _FLOORS, targets={"floor": 1 / 1.1}),
    Scenario("hopper-64x100", "hopper", 64, 100, _ALL),
    Scenario("hopper-64x100-large", "hopper", 64, 100, _LARGE, large=True),
    # No Reverb: filling its table (999 steps of padding before each episode) took more than 15 minutes.
    Scenario(
        "hopper-64x1000",
        "hopper",
        64,
        1000,
        (*_LARGE, "dt-published"),
        targets={"memcpy": 0.65, "floor": 1 / 1.3},
    ),
    Scenario("hopper-64x1000-large", "hopper", 64, 1000, _LARGE, large=True, targets={"memcpy": 0.65}),
    Scenario("g1-26+26", "g1", 256, 20, _RAW),
    Scenario("frames-32x16", "frames", 32, 16, _RAW, targets={"memcpy": 1.0}),
    Scenario(
        "transitions-256",
        "transitions",
        256,
        1,
        (*_FLOORS, "numpy", "ogbench-transitions", "torchrl-transitions", "d3rlpy-transitions", "flashbax"),
        targets={"numpy": 1.2, "floor": 1 / 1.5},
    ),
    Scenario("wide-256x20", "wide", 256, 20, _ALL),
    Scenario("goals-256", "goals", 256, 1, ("ogbench", *_LIMITS)),
    Scenario("shifts-256", "shifted", 256, 1, ("numpy-shifts", *_LIMITS)),
    Scenario("stacks-256x20", "stacked", 256, 20, ("gear-converted", "numpy-stacks", *_LIMITS)),
    Scenario("priorities-256", "priorities", 256, 1, ("torchrl-priorities",)),
)


def chosen_scenarios(names: str | None) -> list[Scenario]:
    """Returns the scenarios of a comma-separated list (None: all).

    Raises SystemExit for an unknown name.
    """
    if names is None:
        return list(SCENARIOS)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown shapes {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in wanted]

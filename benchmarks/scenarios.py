"""What is measured: data, shapes of batches, who takes part, and the figures aimed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: What a batch holds beside its padding, named as gear-data's presets are.
#: decision_transformer: observations, actions, rewards, return-to-go, timesteps, mask.
#: raw: observations, actions, timesteps, mask.
Contract = Literal["decision_transformer", "raw"]

#: A large copy has at least so many times the bytes of the last-level cache.
CACHE_MULTIPLE = 10

#: A trainer may wait at most this share of a step of 5 ms.
WAIT_TARGET = 0.02


@dataclass(frozen=True)
class Family:
    """Data of one kind; `steps`, `observation` and `actions` are of what is made where none is given."""

    title: str
    contract: Contract
    steps: int
    observation: tuple[int, ...]
    actions: int  # width of an action; 0: a number, of a discrete one


FAMILIES: Mapping[str, Family] = {
    "hopper": Family("Hopper", "decision_transformer", 200_000, (11,), 3),
    "g1": Family("G1 robot", "raw", 36_000, (26,), 26),
    "frames": Family("frames", "raw", 60_000, (84, 84), 0),
    "wide": Family("wide (Humanoid-like)", "decision_transformer", 250_000, (376,), 17),
}


@dataclass(frozen=True)
class Scenario:
    """One table: batches of one shape from one data set.

    Attributes:
        family: name in `FAMILIES`.
        peers: contenders beside gear-data's own.
        large: on so many copies of the data that no cache holds a tenth of it.
        targets: contender -> least ratio of gear-data's padded bytes to it.
    """

    name: str
    family: str
    batch_size: int
    context: int
    peers: tuple[str, ...]
    large: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)


_LIMITS = ("memcpy", "memcpy-hot")
#: Those that take any columns, pictures too.
_RAW = ("torchrl", "torchrl-memmap", "dt", *_LIMITS)
#: Reverb fills its table window by window: minutes for 200,000 steps, too long for the large copy.
_LARGE = (*_RAW, "d3rlpy", "hf", "hf-arrow")
_ALL = (*_LARGE, "dt-published", "reverb")

SCENARIOS = (
    Scenario(
        "hopper-256x20",
        "hopper",
        256,
        20,
        _ALL,
        targets={"torchrl": 12.0, "dt": 40.0, "reverb": 150.0, "memcpy": 0.45},
    ),
    Scenario("hopper-256x20-large", "hopper", 256, 20, _LARGE, large=True, targets={"memcpy": 0.22}),
    Scenario("hopper-64x100", "hopper", 64, 100, _ALL),
    Scenario("hopper-64x100-large", "hopper", 64, 100, _LARGE, large=True),
    # No Reverb: its table of such windows, 999 steps of padding before each episode, was not full after 15 minutes.
    Scenario("hopper-64x1000", "hopper", 64, 1000, (*_LARGE, "dt-published"), targets={"memcpy": 0.65}),
    Scenario("hopper-64x1000-large", "hopper", 64, 1000, _LARGE, large=True, targets={"memcpy": 0.65}),
    Scenario("g1-26+26", "g1", 256, 20, _RAW),
    Scenario("frames-32x16", "frames", 32, 16, _RAW, targets={"memcpy": 1.0}),
    Scenario("wide-256x20", "wide", 256, 20, _ALL),
)


def chosen_scenarios(names: str | None) -> list[Scenario]:
    """Those named, comma-separated, or all. Raises SystemExit at an unknown name."""
    if names is None:
        return list(SCENARIOS)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown shapes {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in wanted]

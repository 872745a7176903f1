"""Transitions by a plain loop over the steps of an episode, and episodes with every kind of end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gear_data
from tests.support.feed import data as feed_data

#: Terminated without and with a final observation, cut off without and with one, a terminal step inside.
ENDS = ("terminated", "terminated, final", "cut off", "cut off, final", "inside", "cut off", "terminated, final")
LENGTHS = (7, 5, 9, 12, 11, 1, 1)


def episodes_of_every_end(seed: int = 3) -> list[dict[str, Any]]:
    """Episodes with a key `final`: the final observation, or None."""
    rng = np.random.default_rng(seed)
    made = feed_data.locomotion(LENGTHS, seed)
    for episode, end, length in zip(made, ENDS, LENGTHS, strict=True):
        episode["terminated"] = np.zeros(length, np.bool_)
        episode["terminated"][-1] = end.startswith("terminated")
        if end == "inside":
            episode["terminated"][4] = True
        episode["final"] = rng.normal(size=4).astype(np.float32) if end.endswith("final") else None
    return made


def convert(episodes: Sequence[dict[str, Any]], folder: Path) -> gear_data.Dataset:
    source = folder.with_suffix(".parquet")
    feed_data.write_episodes([{k: v for k, v in each.items() if k != "final"} for each in episodes], source)
    finals = [None if each["final"] is None else each["final"].tolist() for each in episodes]
    table = pq.read_table(source).append_column("final_observations", pa.array(finals, pa.list_(pa.float32())))
    pq.write_table(table, source)
    gear_data.convert(source, folder, progress=False, format="episode-rows", shard_bytes=1024)
    return gear_data.open(folder)


def hop(episode: dict[str, Any], step: int, most: int) -> tuple[int, bool]:
    """Returns the number of steps to the next state, and whether the episode terminates before."""
    terminated = episode["terminated"]
    for taken in range(1, most + 1):
        after = step + taken
        if after > len(terminated) or (after == len(terminated) and episode["final"] is None):
            if after == len(terminated) and terminated[-1]:
                return taken, True
            return taken - 1, False
        if terminated[after - 1]:
            return taken, True
    return most, False


def state(episode: dict[str, Any], index: int) -> np.ndarray | None:
    """Returns the observation at an index, which may be the final observation."""
    if index < len(episode["observations"]):
        found: np.ndarray = episode["observations"][index]
        return found
    return episode["final"]  # type: ignore[no-any-return]


def stack(episode: dict[str, Any], last: int, frames: int) -> np.ndarray:
    """Returns the `frames` observations up to an index; the first is repeated, and nothing is zeros."""
    if state(episode, last) is None:
        return np.zeros((frames, 4), np.float32)
    return np.stack([state(episode, max(0, last - back)) for back in reversed(range(frames))])


def transition(episode: dict[str, Any], step: int, n: int, discount: float, frames: int) -> dict[str, Any]:
    """Returns one row of the batch; observations have an axis of frames."""
    taken, ended = hop(episode, step, n)
    nothing = np.zeros((frames, 4), np.float32)
    return {
        "observations": stack(episode, step, frames),
        "actions": episode["actions"][step],
        "rewards": sum(discount**j * float(episode["rewards"][step + j]) for j in range(max(taken, 1))),
        "next_observations": stack(episode, step + taken, frames) if taken else nothing,
        "terminated": ended,
        "masks": 0.0 if ended else 1.0,
        "discounts": 0.0 if ended or not taken else discount**taken,
        "intervals": taken,
    }

"""Maker of a dataset that grew, for tests/fuzz/readers.py. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gear_data
from tests.support.rollouts import Rollout


def grown(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a dataset of several generations, from which episodes left, with sidecars, and journals that wait."""
    live = folder / "live"
    readers = []
    with gear_data.Writer(live, durability="os", shard_bytes=1024, max_steps=sum(map(len, rollouts))) as writer:
        for number in range(8):
            _record(writer, rollouts[number % len(rollouts)], number)
            writer.seal()
            if number % 3 == 0:  # a generation that is read stays
                ds = gear_data.open(live)
                ds.quantiles("rewards")
                readers.append(ds.with_discount(0.9))
    for dead in (0, 1):
        writer = gear_data.Writer(live, durability="os", shard_bytes=1024)
        for number in range(3):
            _record(writer, rollouts[number], 10 + 3 * dead + number)
            if number == 1:
                writer._sink._rotated()  # type: ignore[attr-defined]
        writer._sink._journals._stack.close()  # type: ignore[attr-defined] # as the end of a process
        writer._closed = True
        if not dead:  # else the next Writer would take its folder
            (folder / "live.journal/000").rename(folder / "live.journal/003")


def _record(writer: gear_data.Writer, rollout: Rollout, number: int) -> None:
    ends = {name: bool(rollout.columns[name][-1]) for name in ("terminated", "truncated")}
    for t in range(len(rollout)):
        writer.append(**{name: values[t] for name, values in rollout.columns.items() if name not in ends})
    writer.end_episode(**ends, final=rollout.final, number=number, task=f"task {number % 2}")


GROWN_MAKERS = {"grown": grown}

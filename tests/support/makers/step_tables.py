"""Tables with one row per step, and the rollouts expected from them.

tests/ingest/sources/tables uses them. Not a test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import gear_data

Rollouts = list[Any]


def flat_table(sources: Any, rollouts: Rollouts, **more: Any) -> pa.Table:
    """Returns one row per step, without a column that separates the episodes."""
    columns = [{n: r.columns[n] for n in ("observations", "actions", "rewards")} for r in rollouts]
    table: pa.Table = sources.step_table(columns, **more)
    return table


def episode_lengths(rollouts: Rollouts) -> list[int]:
    """Returns the number of steps of each rollout."""
    return [len(r) for r in rollouts]


def step_numbers(rollouts: Rollouts, first: int = 0) -> list[int]:
    """Returns the number of each step in its rollout, from `first` on."""
    return [first + t for r in rollouts for t in range(len(r))]


def episode_names(rollouts: Rollouts, form: str = "run-{:04d}") -> list[str]:
    """Returns the name of the rollout of each step."""
    return [form.format(i) for i, r in enumerate(rollouts) for _ in range(len(r))]


def as_truncated(rollouts: Rollouts) -> Rollouts:
    """Returns the rollouts as a source without end flags gives them."""
    return [
        r.with_columns(terminated=np.zeros(len(r), np.bool_), truncated=np.arange(len(r)) == len(r) - 1)
        for r in rollouts
    ]


def as_terminated(rollouts: Rollouts) -> Rollouts:
    """Returns the rollouts as a source with one end flag gives them."""
    return [
        r.with_columns(terminated=np.arange(len(r)) == len(r) - 1, truncated=np.zeros(len(r), np.bool_))
        for r in rollouts
    ]


def finding_counts(path: Path) -> dict[str, int]:
    """Returns code -> count of a dataset's findings, without episodes of one step."""
    found = {f["code"]: f["count"] for f in gear_data.open(path).manifest.findings}
    return {code: count for code, count in found.items() if code != "one-step-episode"}

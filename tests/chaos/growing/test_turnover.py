"""Turns a dataset over once. `python -m tests.chaos --only growing.turnover --runs 10000` does so many times."""

from __future__ import annotations

from tests.chaos.growing import turnover
from tests.chaos.result import Limit, run_in_own_process


def test_a_limit_holds_over_generations() -> None:
    result = run_in_own_process(turnover, seed=1, limit=Limit(runs=250))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 250 and result.tried["held generations"] > 3
    assert result.notes[0].startswith("largest disk use: limit + ")

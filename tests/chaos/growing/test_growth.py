"""Runs the harness of growing datasets briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.growing import growth
from tests.chaos.result import Limit, run_in_own_process


def test_killed_writers_lose_and_repeat_nothing() -> None:
    result = run_in_own_process(growth, seed=1, limit=Limit(runs=12))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 12 or result.skipped

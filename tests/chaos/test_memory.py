"""Runs the harness of memory briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos import memory
from tests.chaos.result import Limit, run_in_own_process


def test_jobs_without_memory_leave_nothing_half_done() -> None:
    result = run_in_own_process(memory, seed=1, limit=Limit(runs=6))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 6 or result.skipped

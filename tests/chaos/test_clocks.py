"""Runs the harness of clocks briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos import clocks
from tests.chaos.result import Limit, run_in_own_process


def test_jobs_do_not_depend_on_the_clock() -> None:
    result = run_in_own_process(clocks, seed=1, limit=Limit(runs=9))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 9 or result.skipped

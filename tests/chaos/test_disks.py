"""Runs the harness of disks briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos import disks
from tests.chaos.result import Limit, run_in_own_process
from tests.support.chaos.write_paths import LIGHT


def test_jobs_on_bad_disks_leave_nothing_half_done() -> None:
    result = run_in_own_process(disks, seed=1, limit=Limit(runs=LIGHT))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == LIGHT or result.skipped

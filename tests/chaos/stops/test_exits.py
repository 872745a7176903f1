"""Runs the harness of ends briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.result import Limit, run_in_own_process
from tests.chaos.stops import exits
from tests.support.chaos import ended_script


def test_processes_end_in_the_middle_of_every_job() -> None:
    jobs = len(ended_script.JOBS)
    result = run_in_own_process(exits, seed=1, limit=Limit(runs=jobs))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == jobs

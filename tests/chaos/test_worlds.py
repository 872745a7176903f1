"""Runs the harness of worlds briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos import worlds
from tests.chaos.result import Limit, run_in_own_process


def test_random_worlds_read_what_one_process_reads() -> None:
    result = run_in_own_process(worlds, seed=1, limit=Limit(runs=3))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 3

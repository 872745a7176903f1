"""Runs one crowd for some seconds. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.growing import crowd
from tests.chaos.result import Limit, run_in_own_process


def test_a_crowd_loses_nothing() -> None:
    result = run_in_own_process(crowd, seed=1, limit=Limit(runs=1, first=1))
    assert not result.failures, "\n".join(result.failures)

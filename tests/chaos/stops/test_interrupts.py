"""Runs the harness of interrupts briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.result import Limit, run_in_own_process
from tests.chaos.stops import interrupts


def test_no_interrupt_is_lost_and_nothing_hangs() -> None:
    result = run_in_own_process(interrupts, seed=1, limit=Limit(runs=5))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 5

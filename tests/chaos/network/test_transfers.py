"""Runs the harness of transfers briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.network import transfers
from tests.chaos.result import Limit, run_in_own_process


def test_disturbed_transfers_leave_the_old_or_the_new_dataset() -> None:
    result = run_in_own_process(transfers, seed=1, limit=Limit(runs=5))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 5

"""Runs the harness of hostile clients and nodes briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos.network import hostile
from tests.chaos.result import Limit, run_in_own_process


def test_hostile_clients_and_nodes() -> None:
    result = run_in_own_process(hostile, seed=1, limit=Limit(runs=24))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 24 and len(result.tried) > 5

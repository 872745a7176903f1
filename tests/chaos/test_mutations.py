"""Runs the harness of mutations briefly. `make chaos` runs it for longer."""

from __future__ import annotations

from tests.chaos import mutations
from tests.chaos.result import Limit, run_in_own_process


def test_damaged_files_give_their_values_or_typed_errors() -> None:
    result = run_in_own_process(mutations, seed=1, limit=Limit(runs=12))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs > 7

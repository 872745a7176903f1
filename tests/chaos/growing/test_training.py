"""Kills training runs beside a Writer. `make chaos` kills more."""

from __future__ import annotations

from tests.chaos.growing import training
from tests.chaos.result import Limit, run_in_own_process


def test_a_run_beside_a_writer_reads_what_one_process_reads() -> None:
    result = run_in_own_process(training, seed=1, limit=Limit(runs=2))
    assert not result.failures, "\n".join(result.failures)
    assert result.runs == 2

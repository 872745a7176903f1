"""Grain under jax.distributed: rows of all processes through a kill and a resume."""

from __future__ import annotations

from pathlib import Path

from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_resumed, global_batches


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    expected = global_batches(trained_on, 10, batch_size=60, context=20)
    _, resumed = check_resumed(
        ranks, SCRIPTS / "with_grain.py", trained_on, tmp_path, expected, imports=["jax", "grain"], world_sizes=(2, 1)
    )
    assert "step 8: loss" in resumed.logs[0]

"""Trainer: epochs, accumulation, and checkpoints that carry the loader's state."""

from __future__ import annotations

from pathlib import Path

from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_resumed, global_batches

SCRIPT = SCRIPTS / "with_transformers.py"
OPTIONS = {"batch_size": 64, "context": 20, "preset": "decision_transformer"}
IMPORTS = [
    "gear_data.integrations.transformers",
    "transformers.models.decision_transformer.modeling_decision_transformer",
]


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    """Checkpoints are saved every two updates of two batches."""
    expected = global_batches(trained_on, 10, "states", **OPTIONS)
    check_resumed(
        ranks, SCRIPT, trained_on, tmp_path, expected, imports=IMPORTS, resumed_at=4,
        arguments=["--save-every", 2, "--accumulate", 2],
    )  # fmt: skip

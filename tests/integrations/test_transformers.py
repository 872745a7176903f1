"""Trainer: epochs, accumulation, and checkpoints that carry the loader's state."""

from __future__ import annotations

from pathlib import Path

from tests.support.integrations.training_runs import ROOT, SCRIPTS, RankServer, check_resumed, global_batches

CHECKS = ROOT / "tests" / "support" / "integrations" / "transformers_checks.py"
# Trainer imports DeepSpeed if it is installed.
IMPORTS = ["deepspeed", "gear_data.integrations.transformers", "transformers.models.decision_transformer"]


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    """Epochs have six batches, and updates two. Checkpoints have four and eight."""
    expected = global_batches(trained_on, 12, "states", batch_size=64, context=20, preset="decision_transformer")
    check_resumed(
        ranks, SCRIPTS / "with_transformers.py", trained_on, tmp_path, expected, imports=IMPORTS,
        arguments=["--steps", 6, "--epochs", 2, "--accumulate", 2, "--save-every", 2], kill_at=9, resumed_at=8,
    )  # fmt: skip


def test_steps_evaluations_and_refusals(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    ranks.train(CHECKS, [trained_on, tmp_path], 1, imports=[*IMPORTS, "pytest"])

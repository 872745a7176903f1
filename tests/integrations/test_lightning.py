"""Lightning: exact resume in the middle of an epoch, with and without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

import gear_data
from tests.support.integrations.training_runs import ROOT, SCRIPTS, RankServer, check_resumed, global_batches

CHECKS = ROOT / "tests" / "support" / "integrations" / "lightning_checks.py"
IMPORTS = ["gear_data.integrations.lightning"]


@pytest.mark.parametrize(
    ("epoch", "kill_at", "world_sizes"),
    [(None, 6, (2, 1)), (6, 9, (2, 3))],
    ids=["without an end", "in the second epoch"],
)
def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path, epoch: int | None, kill_at: int, world_sizes: tuple[int, int]
) -> None:
    """Checkpoints are saved every four steps."""
    train = gear_data.open(trained_on).split({"train": 0.9, "val": 0.1}, seed=0)["train"]
    expected = global_batches(train, 11, batch_size=64, context=20)
    check_resumed(
        ranks, SCRIPTS / "with_lightning.py", trained_on, tmp_path, expected, imports=IMPORTS,
        arguments=[] if epoch is None else ["--epoch", epoch], kill_at=kill_at, world_sizes=world_sizes,
    )  # fmt: skip


def test_epochs_and_validations(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    ranks.train(CHECKS, [trained_on, tmp_path], 1, imports=[*IMPORTS, "pytest"])

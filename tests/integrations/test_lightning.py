"""Lightning: exact resume in the middle of an epoch, with and without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

import gear_data
from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_resumed, global_batches

SCRIPT = SCRIPTS / "with_lightning.py"


@pytest.mark.parametrize("epoch", [None])
def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path, epoch: int | None
) -> None:
    train = gear_data.open(trained_on).split({"train": 0.9, "val": 0.1}, seed=0)["train"]
    expected = global_batches(train, 10, batch_size=64, context=20)
    check_resumed(
        ranks, SCRIPT, trained_on, tmp_path, expected, imports=["gear_data.integrations.lightning"],
        arguments=[] if epoch is None else ["--epoch", epoch],
    )  # fmt: skip

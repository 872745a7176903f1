"""TorchTitan: rows through a kill and a resume by its CheckpointManager."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.checkpoint.stateful import Stateful

import gear_data
from gear_data.errors import StateMismatchError
from gear_data.integrations.torchtitan import dataloader_builder
from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_over, check_resumed, global_batches


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    expected = global_batches(trained_on, 10, batch_size=60, context=20)
    imports = ["tests.support.integrations.warm.torchtitan"]
    _, resumed = check_resumed(ranks, SCRIPTS / "with_torchtitan.py", trained_on, tmp_path, expected, imports=imports)
    assert "step 10: loss" in resumed.logs[0]
    check_over(ranks, SCRIPTS / "with_torchtitan.py", trained_on, tmp_path, 8, imports=imports)


def test_the_state_is_checked(trained_on: Path) -> None:
    ds = gear_data.open(trained_on)

    def build(seed: int) -> Stateful:
        make = functools.partial(gear_data.SequenceLoader, ds, context=20, seed=seed)
        job = SimpleNamespace(training=SimpleNamespace(local_batch_size=8))
        return dataloader_builder(make, lambda batch: ({"input": batch["observations"]}, batch["actions"]))(
            dp_world_size=4, dp_rank=3, tokenizer=None, job_config=job
        )

    batches = build(0)
    assert isinstance(batches, Stateful)
    inputs, labels = next(iter(batches))
    assert inputs["input"].shape == (8, 20, 7) and labels.shape == (8, 20, 3)
    build(0).load_state_dict({})
    with pytest.raises(StateMismatchError, match="seed"):
        build(1).load_state_dict(batches.state_dict())

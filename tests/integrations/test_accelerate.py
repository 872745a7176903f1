"""Accelerate: rows of all ranks through a kill and a resume; ends of passes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils.deepspeed import DeepSpeedSchedulerWrapper

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.accelerate import PreparedLoader, prepare_loader
from tests.support.integrations import recorder
from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_over, check_resumed, global_batches


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    expected = global_batches(trained_on, 10, batch_size=64, context=20)
    _, resumed = check_resumed(
        ranks, SCRIPTS / "with_accelerate.py", trained_on, tmp_path, expected, imports=["accelerate"]
    )
    # The scheduler stepped once a batch, with two and with three processes.
    assert "step 10: " in resumed.logs[0] and "learning rate 0\n" in resumed.logs[0]
    check_over(ranks, SCRIPTS / "with_accelerate.py", trained_on, tmp_path, 10, imports=["accelerate"])


def test_gradients_are_synchronised_at_the_last_batch_of_a_pass(trained_on: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ds = gear_data.open(trained_on)
    batches = prepare_loader(accelerator, gear_data.SequenceLoader(ds, 4, context=5, steps=5))
    validation = prepare_loader(accelerator, gear_data.SequenceLoader(ds, 4, context=5, steps=2))
    model = accelerator.prepare(torch.nn.Linear(recorder.WIDTH, 3))
    found = []
    for step, batch in enumerate(batches):
        with accelerator.accumulate(model):
            model(batch["observations"])
            found.append(accelerator.sync_gradients)
        if step == 2:
            next(iter(validation))  # an iteration that does not reach its end
            assert accelerator.gradient_state.active_dataloader is batches
    assert found == [False, True, False, True, True]
    assert len(batches) == 5
    assert not accelerator.gradient_state.in_dataloader


_SCHEDULER = """
import sys, torch
from accelerate import Accelerator
import gear_data
from gear_data.integrations.accelerate import prepare_loader
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(7, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))
for batch in prepare_loader(accelerator, gear_data.SequenceLoader(gear_data.open(sys.argv[1]), 4)):
    model(batch["observations"])
"""


def test_a_scheduler_that_would_step_for_each_process(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCHEDULER)
    refused = ranks.train(script, [trained_on], 2, imports=["accelerate"], status=1)
    for log in refused.logs:
        assert "step the learning-rate scheduler 2 times a batch" in log
        assert "DataLoaderConfiguration(split_batches=True)" in log
    assert refused.inputs == [[], []]


def test_a_scheduler_that_deepspeed_steps(trained_on: Path) -> None:
    """Accelerate does not step it, and `split_batches` does not concern it."""
    GradientState._reset_state()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    accelerator = SimpleNamespace(num_processes=2, gradient_state=GradientState(), device=torch.device("cpu"))
    batches = PreparedLoader(accelerator, gear_data.SequenceLoader(gear_data.open(trained_on), 4, steps=3))
    accelerator._schedulers = [DeepSpeedSchedulerWrapper(scheduler, optimizer)]
    assert len(list(batches)) == 3
    accelerator._schedulers = [AcceleratedScheduler(scheduler, optimizer)]
    with pytest.raises(InvalidArgumentError, match="2 times a batch"):
        next(iter(batches))

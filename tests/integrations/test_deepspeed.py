"""DeepSpeed: rows of all processes through a kill and a resume; batch sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.utils import DeepSpeedPlugin

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.integrations.deepspeed import batch_sizes
from tests.support.integrations.training_runs import SCRIPTS, RankServer, check_over, check_resumed, global_batches

WARM = ["tests.support.integrations.warm.deepspeed"]


def test_a_killed_run_resumes_on_another_number_of_processes(
    ranks: RankServer, trained_on: Path, tmp_path: Path
) -> None:
    expected = global_batches(trained_on, 10, batch_size=60, context=20)
    _, resumed = check_resumed(ranks, SCRIPTS / "with_deepspeed.py", trained_on, tmp_path, expected, imports=WARM)
    assert "step 8: loss" in resumed.logs[0]
    check_over(ranks, SCRIPTS / "with_deepspeed.py", trained_on, tmp_path, 8, imports=WARM)


_TRAINING_DATA = """
import sys, torch, deepspeed
import gear_data
deepspeed.init_distributed()
model = torch.nn.Linear(7, 3)
loader = gear_data.SequenceLoader(gear_data.open(sys.argv[1]), 60)
config = {"train_batch_size": 60, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=loader, config=config)
"""


def test_training_data_of_deepspeed(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_TRAINING_DATA)
    refused = ranks.train(tmp_path / "script.py", [trained_on], 2, imports=WARM, status=1)
    for log in refused.logs:
        assert "DeepSpeed would divide and batch the loader's batches" in log
        assert "leave training_data= out" in log


_TRAINER = """
import sys, torch
from transformers import TrainingArguments
import gear_data
from gear_data.integrations.transformers import LoaderTrainer
names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
args = TrainingArguments(
    sys.argv[2], max_steps=1, use_cpu=True, report_to=[], gradient_accumulation_steps=2,
    deepspeed={**dict.fromkeys(names, "auto"), "zero_optimization": {"stage": 0}},
)
loader = gear_data.SequenceLoader(gear_data.open(sys.argv[1]), 60)
trainer = LoaderTrainer(torch.nn.Linear(7, 3), args, train_dataset=loader)
config = trainer.accelerator.state.deepspeed_plugin.deepspeed_config
print("sizes:", *(config[name] for name in names), flush=True)
"""


def test_auto_in_the_arguments_of_trainer(ranks: RankServer, trained_on: Path, tmp_path: Path) -> None:
    """Without the loader's sizes, "auto" is the 8 rows that a process has by default."""
    (tmp_path / "script.py").write_text(_TRAINER)
    imports = [*WARM, "transformers.trainer"]
    made = ranks.train(tmp_path / "script.py", [trained_on, tmp_path], 2, imports=imports)
    for log in made.logs:
        assert "sizes: 120 30 2\n" in log


@pytest.mark.parametrize(
    ("config", "accumulated"),
    [
        (None, 1),
        ({"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}, 1),
        ({"train_batch_size": "auto", "gradient_accumulation_steps": 4}, 4),
        ({"train_batch_size": 192, "train_micro_batch_size_per_gpu": "auto"}, 3),
        ({"train_micro_batch_size_per_gpu": 16, "train_batch_size": 64}, 1),
    ],
)
def test_sizes_that_are_missing_or_auto(trained_on: Path, config: dict[str, object], accumulated: int) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(trained_on), 64, rank=2, world_size=4)
    sizes = batch_sizes(loader, config)
    assert sizes == {
        "train_batch_size": 64 * accumulated,
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": accumulated,
    }


@pytest.mark.parametrize(
    ("batch_size", "config", "message"),
    [
        (63, {}, "batch_size is 63 for 4 processes"),
        (64, {"train_micro_batch_size_per_gpu": 64}, "train_micro_batch_size_per_gpu 64, but (.|\n)*make 16"),
        (64, {"train_batch_size": 100}, "train_batch_size 100, but (.|\n)*make 64"),
        (64, {"train_batch_size": 64, "gradient_accumulation_steps": 2}, "train_batch_size 64, but (.|\n)*make 128"),
    ],
)
def test_sizes_that_contradict(trained_on: Path, batch_size: int, config: dict[str, int], message: str) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(trained_on), batch_size, rank=2, world_size=4)
    with pytest.raises(InvalidArgumentError, match=message):
        batch_sizes(loader, config)


def test_the_plugin_of_accelerate(trained_on: Path) -> None:
    """With "auto", `accelerator.prepare` takes any `batch_size` for a process's rows."""
    plugin = DeepSpeedPlugin(zero_stage=0)
    assert plugin.is_auto("train_micro_batch_size_per_gpu")
    loader = gear_data.SequenceLoader(gear_data.open(trained_on), 64, rank=2, world_size=4)
    plugin.deepspeed_config.update(batch_sizes(loader, plugin.deepspeed_config))
    assert plugin.get_value("train_micro_batch_size_per_gpu") == 16 and plugin.get_value("train_batch_size") == 64
